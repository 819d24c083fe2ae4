"""One network connection, without I/O: handshake, keep alive, buffers (3.1.1 and 5, sections 3.1, 3.2 and 3.12).

It knows no socket and no clock: bytes come in through `decoder.room()` and `decoder.received(n)`, bytes go out through
`output()` and `sent(n)`, and the time is an argument. The session below it outlives it; make a new connection for each
network connection, over the same session (or call `start` again on the same object, which saves the buffers).

How to pump it, for any kind of loop (the blocking client does just this; so does the collector):

    session = Session(store, level=4, window=8)
    connection = Connection(session, client_id=b"collector", buffer_bytes=16384, keep_alive_s=60)
    sock.connect(...)
    connection.start(now_ms)                    # CONNECT is in the output now
    while True:
        output = connection.output()            # store.sync() happens here, before the bytes can leave
        if output:
            connection.sent(sock.send(output), now_ms)  # a short write is fine: the rest stays
        n = sock.recv_into(connection.decoder.room())   # when the socket is readable
        connection.received(n, now_ms)          # n == 0 is the peer's end: ConnectionLost
        while True:
            event = connection.process(now_ms)  # raises MalformedPacket, ProtocolViolation, ... : close the socket
            if event == NOTHING:                # no whole packet left: write the output, then wait for bytes
                break
            if event == OUTPUT:                 # the output buffer is full: write it, then go on processing
                ...
            elif event == MESSAGE:              # connection.message: topic, payload, qos, retain, dup (views, valid
                ...                             # until the next process(), which acknowledges it: take it before)
            elif event == CONNECTED: ...        # connection.session_present
            elif event == DELIVERED: ...        # session.handle: what session.publish() returned
            elif event == SUBSCRIBED: ...       # see session.subscriptions
            elif event == RESTART: ...          # write the output, close the socket, connect again at once
        wait_ms = connection.check(now_ms)      # keep alive, retries, deadlines; how long the loop may sleep

After `session.publish(...)` or `session.subscribe(...)` call `connection.pump(now_ms)` and write the output.

An inbound message's acknowledgement is put into the output by the `process()` that follows it, and everything that one
batch of bytes brought leaves after one `store.sync()`: that is the whole of group commit.
"""

from .codec.decode import Decoder
from .codec.encode import put_connect, put_disconnect, put_pingreq
from .codec.packets import connect_error
from .compat import const, ticks_diff
from .errors import (
    ConnectionLost,
    DeadlineExpired,
    FlashMqttError,
    InboundWindowFull,
    PacketTooLarge,
    ProtocolViolation,
    ServerDisconnected,
    UsageError,
)

NOTHING = const(0)
OUTPUT = const(1)
CONNECTED = const(2)
MESSAGE = const(3)
DELIVERED = const(4)
SUBSCRIBED = const(5)
IN_DOUBT = const(6)
REFUSED = const(7)
RESTART = const(8)

# Packet types, and a level: `codec/packets.py`.
_CONNACK = const(2)
_PUBLISH = const(3)
_UNSUBACK = const(11)
_PINGRESP = const(13)
_DISCONNECT = const(14)
_LEVEL_5 = const(5)

# What `state` can be.
CLOSED = const(0)
CONNECTING = const(1)  # CONNECT is in the output or under way
OPEN = const(2)
CLOSING = const(3)  # DISCONNECT is in the output: nothing is read any more

_FOREVER_MS = const(1 << 28)
_SCAN_MS = const(500)  # how often unanswered packets are looked at


class Connection:
    """The network connection of a session: what begins with CONNECT and ends with the socket.

    Args:
        session: outlives this connection.
        client_id, user, password: bytes-like.
        keep_alive_s: the broker ends a connection that is silent for 1.5 times this; so do we. 0: neither does, and a link that
            dies silently is noticed only by `response_ms`.
        will: (topic, payload, qos, retain), or None.
        buffer_bytes: size of the input buffer: the longest packet that is accepted.
        response_ms: how long any packet may wait for its answer before the connection is given up. 0: for ever.
        clean: forget the broker's side of the session at every connect (levels 3 and 4: Clean Session).
        five: a `session.level5.Level5`, needed at level 5.
        chunks: hand over a PUBLISH larger than the input buffer in pieces, each as a MESSAGE; only the last one is acknowledged.
            At QoS 2, where a message has to be stored before it is handed over, it is refused in any case.
    """

    def __init__(
        self,
        session,
        client_id,
        keep_alive_s=60,
        user=None,
        password=None,
        will=None,
        buffer_bytes=1024,
        response_ms=30000,
        clean=False,
        five=None,
        chunks=False,
    ):
        if not 0 <= keep_alive_s < 65536:
            raise UsageError("keep_alive_s", keep_alive_s)
        self.session = session
        self.client_id = client_id
        self.keep_alive_s = keep_alive_s
        self.user = user
        self.password = password
        self.will = will
        self.response_ms = response_ms
        self.clean = clean
        self.decoder = Decoder(buffer_bytes, session.level, chunks)
        session.chunks = chunks
        session.fit(buffer_bytes)
        if session.level == _LEVEL_5 and not five:
            raise UsageError("level 5 needs a Level5")
        self.five = session.five = five
        self.message = session.message
        self.state = CLOSED
        self.session_present = False
        self._view = memoryview(session.out)
        self._full = len(session.out) - 8  # beyond this an answer may have no room
        self.output_start = 0  # where in `session.out` the bytes start that are not sent; they end at `session.out_end`
        self.keep_alive_ms = 0
        self._clean_sent = False
        self._purge = False
        self._unanswered = False
        self._doubtful = False  # an earlier CONNECT had no answer: the session that the broker knows may be that one's
        self.sent_ms = self._received_ms = self._scanned_ms = self._pinged_ms = 0
        self._pinged = False

    # --- the connection's begin and end ---

    def start(self, now_ms):
        """Put CONNECT [MQTT-3.1.0-1]; what was left of an earlier network connection is forgotten."""
        session = self.session
        session.disconnected()
        self.decoder.reset()
        # Clean [MQTT-3.1.2-6], 5: [MQTT-3.1.2-4], means that what was before is discarded.
        # A broker that may hold ids of this client's earlier life is told to forget them. 3.1 can't say whether it does; at
        # level 5 clean start does not make the session end with the connection, so nothing is lost by asking.
        self._clean_sent = self.clean or self._purge or (not session.is_settled() and session.level != 4)
        five = self.five
        topic, payload, qos, retain = self.will or (None, b"", 0, False)
        session.out_end = put_connect(
            session.out,
            0,
            self.client_id,  # the same one for the session's whole life [MQTT-3.1.3-2]
            session.level,
            self._clean_sent,
            self.keep_alive_s,
            self.user,
            self.password,
            topic,
            payload,
            qos,
            retain,
            five and five.start(session, self.decoder),
            five and five.will_properties,
        )
        self.keep_alive_ms = self.keep_alive_s * 1000
        self.output_start = 0
        self.sent_ms = self._received_ms = self._scanned_ms = self._pinged_ms = now_ms
        self._pinged = False
        self._doubtful = self._unanswered
        self._unanswered = True
        self.state = CONNECTING

    def disconnect(self):
        """Put DISCONNECT: the broker discards the will [MQTT-3.14.4-3]. Write the output, then close the socket.

        Nothing more is put [MQTT-3.14.4-2]; 5: [MQTT-3.14.4-1].
        """
        if self.state == OPEN and self.session.has_room():
            self.session.out_end = put_disconnect(self.session.out, self.session.out_end, self.session.level)
        self.state = CLOSING

    def farewell(self, error):
        """Put level 5's DISCONNECT with the reason that this error has, if it has one and there is room [MQTT-4.13.1-1]."""
        code = error.reason if isinstance(error, FlashMqttError) else 0  # others' reasons (ssl's, Unicode's) are texts
        if code and self.five and self.state == OPEN and self.session.has_room():
            self.session.out_end = put_disconnect(self.session.out, self.session.out_end, _LEVEL_5, code)
            self.state = CLOSING

    def close(self):
        """The socket is closed, by whoever."""
        self.state = CLOSED
        self.session.disconnected()

    # --- out ---

    def output(self):
        """Return the bytes to write, after making durable what they promise (one sync for all of them)."""
        session = self.session
        if session.promised:
            session.settle()
        return self._view[self.output_start : session.out_end]

    def sent(self, n, now_ms):
        """Take note that the first n bytes of the output were written."""
        if n:
            self.output_start += n
            self.sent_ms = now_ms
        if self.output_start >= self.session.out_end:
            self.output_start = self.session.out_end = 0

    # --- in ---

    def received(self, n, now_ms):
        """Take note of n bytes in the decoder's room.

        Raises:
            ConnectionLost: n is 0: the peer has closed.
        """
        if not n:
            raise ConnectionLost("closed by the peer")
        self.decoder.received(n)
        self._received_ms = now_ms

    def process(self, now_ms):
        """Take in the received packets up to the next event; NOTHING: they are used up.

        Raises:
            MalformedPacket, PacketTooLarge, ProtocolViolation: the peer is wrong.
            ConnectRefused: with the broker's reason.
            ConnectionLost: the connection is of no use any more.
        """
        session = self.session
        full = self._full
        if session.untaken >= 0 and session.partial < 0 and session.out_end <= full:
            session.taken()
        if session.lost and session.has_room():
            return session.recover()
        decoder = self.decoder
        while self.state != CLOSING:
            if (session.out_end > full or session.partial >= 0) and self.state == OPEN:
                session.pump(now_ms)
                return OUTPUT  # any packet may need room for its answer
            kind = decoder.next()
            if not kind:
                if session.ready:
                    session.pump(now_ms)
                    if session.lost:
                        return session.recover()
                break
            if self.state == CONNECTING:
                return self._accepted(kind)
            if kind == _PUBLISH:
                if decoder.qos < 2:
                    session.show(decoder)
                    return MESSAGE
                if decoder.more:
                    raise PacketTooLarge(decoder.payload_total)
            if _CONNACK < kind <= _UNSUBACK:
                event = session.receive(decoder, now_ms)
                if event:
                    return event
            elif kind == _DISCONNECT:
                raise ServerDisconnected(decoder.code)  # whoever catches it closes the connection; 5: [MQTT-4.13.2-1]
            elif kind == _PINGRESP:
                self._pinged = False
            else:  # a second CONNACK; AUTH, which we never asked for [MQTT-4.12.0-6] and never send [MQTT-4.12.0-7]
                raise ProtocolViolation("packet type %d" % kind)
        return NOTHING

    def _accepted(self, kind):
        """The first packet, which has to be a CONNACK [MQTT-3.2.0-1]."""
        decoder = self.decoder
        session = self.session
        level = session.level
        if kind != _CONNACK:
            raise ProtocolViolation("packet type %d before CONNACK" % kind)
        if decoder.code:
            raise connect_error(decoder.code, level)
        self._unanswered = False
        if decoder.session_present and self._clean_sent:  # 5: [MQTT-3.2.2-4]
            raise ProtocolViolation("session present after a clean start")
        # 3.1 can't say whether the session is there: it is taken to be, and subscriptions are repeated.
        present = decoder.session_present or (level == 3 and not self._clean_sent)
        if not session.is_settled() and present and not self._clean_sent:
            self._purge = True  # the broker knows an earlier life of this client
            return self._restart()
        session.settle_down()
        if self._clean_sent and not self.clean and level != _LEVEL_5:
            self._purge = False  # the earlier life is forgotten; the next connection is the one that lasts
            return self._restart()
        return self._opened(present)

    def _restart(self):
        self.session.out_end = put_disconnect(self.session.out, 0, self.session.level)
        self.output_start = 0
        self.state = CLOSING
        return RESTART

    def _opened(self, present):
        level = self.session.level
        if self.five:
            self.five.accepted(self.session, self)
        self.session_present = present
        self.output_start = 0
        self.session.connected(present, not present or self._doubtful or level == 3)
        self.state = OPEN
        return CONNECTED

    def pump(self, now_ms):
        """Put into the output what may go out now."""
        if self.state == OPEN:
            self.session.pump(now_ms)

    # --- time ---

    def keep_open(self, now_ms):
        """Say that we are alive although nothing is read: the application is busy with a message and must not lose the link."""
        half = self.keep_alive_ms >> 1
        if self.state == OPEN and half and ticks_diff(now_ms, self.sent_ms) >= half and self.session.has_room():
            self.session.out_end = put_pingreq(self.session.out, self.session.out_end)
        self._received_ms = self._scanned_ms = now_ms
        self._pinged = False

    def check(self, now_ms):
        """Do what is due: PINGREQ, retries, deadlines. Call it when there is nothing to read; return for how long it can wait.

        Raises:
            DeadlineExpired: CONNACK, an acknowledgement or any sign of life is overdue.
        """
        response = self.response_ms
        if self.state != OPEN:
            wait = response - ticks_diff(now_ms, self._pinged_ms)  # since `start`, however much drips in meanwhile
            if response and wait <= 0:
                raise DeadlineExpired("no CONNACK")
            return wait if response else _FOREVER_MS
        silent = ticks_diff(now_ms, self._received_ms)
        session = self.session
        if ticks_diff(now_ms, self._scanned_ms) >= _SCAN_MS:
            self._scanned_ms = now_ms
            overdue = session.overdue_ms(now_ms)
            if response and overdue >= response:
                raise DeadlineExpired("no acknowledgement")
            session.pump(now_ms)
            if session.left_out and not session.pending() and not session.holding:
                raise InboundWindowFull("the store was full")
        keep_alive = self.keep_alive_ms
        if not keep_alive:
            return _SCAN_MS
        # Ping an eighth early and wait half an interval: a silent link is found before 1.5 intervals have passed
        # (3.1.2.10) [MQTT-3.1.2-23]; 5: [MQTT-3.1.2-20].
        half = keep_alive >> 1
        wait = ticks_diff(now_ms, self.sent_ms)
        if not self._pinged and silent > wait:
            wait = silent
        wait = keep_alive - (keep_alive >> 3) - wait
        if wait <= 0 and session.has_room():
            session.out_end = put_pingreq(session.out, session.out_end)
            if not self._pinged:
                self._pinged = True
                self._pinged_ms = now_ms
            return 0
        if self._pinged:
            since = ticks_diff(now_ms, self._pinged_ms)
            # Any byte is a sign of life, but not for ever: an answer that never comes is one that never comes.
            if (response and since >= response + half) or (since if since < silent else silent) >= half:
                raise DeadlineExpired("keep alive")
            wait = half - (since if since < silent else silent)
        return wait if wait < _SCAN_MS or not session.is_waiting() else _SCAN_MS
