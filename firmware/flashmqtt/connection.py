"""One network connection, without I/O: handshake, keep alive, order of events (3.1.1 and 5, sections 3.1, 3.2 and 3.12).

It knows no socket and no clock: bytes come in through `decoder.room()` and `received(n)`, bytes go out through `output.offer()`
and `output.taken(n)`, and the time is an argument. The session below it outlives it; make a new connection for each network
connection, over the same session (or call `start` again on the same object, which saves the buffers).

How to pump it, for any kind of loop (the link does just this; so does the collector):

    session = Session(store, level=4, window=8)
    connection = Connection(session, client_id=b"collector", buffer_bytes=16384, keep_alive_s=60)
    output = connection.output
    sock.connect(...)
    connection.start(now_ms)                    # CONNECT is in the output now
    while True:
        n = output.offer()                      # store.sync() happens here, before the bytes can leave
        if n:                                   # write output.buf from output.start; a short write is fine: the rest stays
            output.taken(sock.send(memoryview(output.buf)[output.start : output.start + n]), now_ms)
        n = sock.recv_into(connection.decoder.room())   # when the socket is readable
        connection.received(n, now_ms)          # n == 0 is the peer's end: ConnectionLost
        while True:
            event = connection.process(now_ms)  # raises MalformedPacket, ProtocolError, ... : close the socket
            if event == NOTHING:                # no whole packet left: write the output, then wait for bytes
                break
            if event == OUTPUT:                 # the output buffer is full: write it, then go on processing
                ...
            elif event == MESSAGE:              # connection.message: topic, payload, qos, retain, dup (views, valid until
                ...                             # the next process()). Take it, then call session.taken(): process() does it, too
            elif event == CONNECTED: ...        # connection.session_present
            elif event == DELIVERED: ...        # session.handle: what session.publish() returned
            elif event == SUBSCRIBED: ...       # see session.subscriptions
            elif event == OVERSIZE: ...         # session.long.topic: a message of session.handle bytes was passed over
            elif event == RESTART: ...          # write the output, close the socket, connect again at once
        wait_ms = connection.check(now_ms)      # keep alive, retries, deadlines; how long the loop may sleep

After `session.publish(...)` or `session.subscribe(...)` call `connection.pump(now_ms)` and write the output; when the socket is
closed, by whoever, call `connection.close()`.

An inbound message's acknowledgement is put into the output when it is taken, and everything that one batch of bytes brought
leaves after one `store.sync()`: that is the whole of group commit.
"""

from .codec.decode import Decoder
from .codec.encode import put_connect, put_disconnect, put_pingreq
from .compat import TYPE_CHECKING, const, ticks_diff
from .errors import (
    CLOSED_BY_PEER,
    ConnectionLost,
    DeadlineExpired,
    FlashMqttError,
    ProtocolError,
    UsageError,
)

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

NOTHING = const(0)
OUTPUT = const(1)
CONNECTED = const(2)
MESSAGE = const(3)
DELIVERED = const(4)
SUBSCRIBED = const(5)
IN_DOUBT = const(6)
REFUSED = const(7)
RESTART = const(8)
DAMAGED = const(9)
EXPIRED = const(10)
DROPPED = const(11)
DISCONNECTED = const(12)  # the link's: a connection that was CONNECTED has ended
OVERSIZE = const(15)

# Packet types, and a level: `codec/packets.py`.
_CONNACK = const(2)
_PUBLISH = const(3)
_PUBACK = const(4)
_PUBREC = const(5)
_PUBREL = const(6)
_PUBCOMP = const(7)
_SUBACK = const(9)
_UNSUBACK = const(11)
_PINGRESP = const(13)
_DISCONNECT = const(14)
_LONG = const(16)  # a PUBLISH longer than the buffer: `codec/decode.py`
_LEVEL_5 = const(5)

# What `state` can be.
CLOSED = const(0)
CONNECTING = const(1)  # CONNECT is in the output or under way
OPEN = const(2)
CLOSING = const(3)  # DISCONNECT is in the output: nothing is read any more

_FOREVER_MS = const(1 << 28)
_SCAN_MS = const(500)  # how often unanswered packets are looked at
_ACK_BYTES = const(8)  # room that one acknowledgement may need


class Connection:
    """The network connection of a session: what begins with CONNECT and ends with the socket.

    Args:
        session: outlives this connection.
        client_id, user, password: bytes-like.
        broker: bytes that name the broker, "host:port": the session's note is only good for this one.
        keep_alive_s: the broker ends a connection that is silent for 1.5 times this; so do we. 0: neither does, and a link that
            dies silently is noticed only by `response_ms`.
        will: (topic, payload, qos, retain), or None.
        buffer_bytes: size of the input buffer: the longest packet that is accepted.
        response_ms: how long any packet may wait for its answer before the connection is given up. 0: for ever.
        clean: forget the broker's side of the session at every connect (levels 3 and 4: Clean Session).
        five: a `session.level5.Level5`, needed at level 5.
        chunks: hand over a PUBLISH larger than the input buffer in pieces, each as a MESSAGE; only the last one is acknowledged.
            False: pass it over, which is reported as OVERSIZE; at level 5 the broker is told to send none so long.
    """

    def __init__(
        self,
        session: "Any",
        client_id: "Any",
        keep_alive_s: int = 60,
        user: "Any" = None,
        password: "Any" = None,
        will: "Any" = None,
        buffer_bytes: int = 1024,
        response_ms: "Any" = 30000,
        clean: bool = False,
        five: "Any" = None,
        chunks: bool = False,
        broker: "Any" = b"",
    ) -> None:
        if not 0 <= keep_alive_s < 65536:
            raise UsageError("keep_alive_s %d: 0 to 65535" % keep_alive_s)
        self.session = session
        self.output = session.output
        self.client_id = client_id
        self.broker = broker
        self.keep_alive_s = keep_alive_s
        self.user = user
        self.password = password
        self.will = will
        self.response_ms = session.response_ms = response_ms
        self.clean = clean
        # 5: the broker is told Maximum Packet Size, and one that sends more all the same is wrong.
        self.decoder = Decoder(buffer_bytes, session.level, _LONG if chunks or session.level != _LEVEL_5 else 0)
        session.chunks = chunks
        if session.level == _LEVEL_5 and not five:
            raise UsageError("level 5 needs five=Level5()")
        self.five = session.five = five
        self.message = session.message
        # Bound once: to look a method up in an object with many attributes takes a board 20 us, an attribute 2.
        self._next = self.decoder.next  # and by `start`: the collector puts another decoder there
        self._acknowledged = session.acknowledged
        self._show = session.show
        self.state = CLOSED
        self.session_present = False
        self.reports_delivered = True  # False: nobody needs the event DELIVERED
        self.keep_alive_ms = 0
        self._clean_sent = False
        self._purge = False  # the broker knows an earlier life of this client, and has to be told to forget it
        self._unanswered = False
        self._doubtful = False  # an earlier CONNECT had no answer: the session that the broker knows may be that one's
        self.received_ms = self._scanned_ms = self._pinged_ms = 0
        self._blocked = False  # did a message longer than the buffer come in lately? No answer can overtake it.
        self._blocked_ms = 0
        self._pinged = False

    # --- the connection's begin and end ---

    def start(self, now_ms: int) -> None:
        """Put CONNECT [MQTT-3.1.0-1]; what was left of an earlier network connection is forgotten."""
        session = self.session
        output = self.output
        session.disconnected()
        session.not_taken()
        self.decoder.reset()
        self._next = self.decoder.next
        # Clean [MQTT-3.1.2-6], 5: [MQTT-3.1.2-4], means that what was before is discarded.
        # A broker that may hold ids of this client's earlier life is told to forget them. 3.1 can't say whether it does; at
        # level 5 clean start does not make the session end with the connection, so nothing is lost by asking.
        self._clean_sent = (
            self.clean or self._purge or (session.level != 4 and not session.has_note(self.client_id, self.broker))
        )
        five = self.five
        topic, payload, qos, retain = self.will or (None, b"", 0, False)
        output.put(
            put_connect,
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
        output.sent_ms = self.received_ms = self._scanned_ms = self._pinged_ms = now_ms
        self._pinged = self._blocked = False
        self._doubtful = self._unanswered
        self._unanswered = True
        self.state = CONNECTING

    def disconnect(self, code: int = 0, properties: "bytes | bytearray | memoryview | None" = None) -> None:
        """Put DISCONNECT: the broker discards the will [MQTT-3.14.4-3]. Write the output, then close the socket.

        Nothing more is put [MQTT-3.14.4-2]; 5: [MQTT-3.14.4-1]. Level 5 may give another reason code, and properties.
        """
        self._put_disconnect(code, properties)
        self.state = CLOSING

    def put_error_disconnect(self, error: "Any") -> None:
        """Put level 5's DISCONNECT with the reason that this error has, if it has one and there is room [MQTT-4.13.1-1]."""
        code = error.reason if isinstance(error, FlashMqttError) else 0  # others' reasons (ssl's, Unicode's) are texts
        if code and self.five and self.state == OPEN and self._put_disconnect(code):
            self.state = CLOSING

    def _put_disconnect(self, code: int, properties: "bytes | bytearray | memoryview | None" = None) -> "Any":
        output = self.output
        fits = output.room() >= _ACK_BYTES
        if fits:
            output.put(put_disconnect, self.session.level, code, properties)
        output.shut()
        return fits

    def close(self) -> None:
        """The socket is closed, by whoever."""
        self.state = CLOSED
        self.session.disconnected()

    # --- in ---

    def received(self, n: int, now_ms: int) -> None:
        """Take note of n bytes in the decoder's room.

        Raises:
            ConnectionLost: n is 0: the peer has closed.
        """
        if not n:
            raise ConnectionLost(CLOSED_BY_PEER)
        self.decoder.received(n)
        self.received_ms = now_ms

    def process(self, now_ms: int) -> "Any":
        """Take in the received packets up to the next event; NOTHING: they are used up.

        Raises:
            MalformedPacket, ProtocolError: the peer is wrong.
            ConnectRefused: with the broker's reason.
            ConnectionLost: the connection is of no use any more.
        """
        session = self.session
        if session.handed:
            session.taken()
        if self.state != OPEN:
            return self._handshake()
        if session.urgent:
            event = self._urgent(now_ms)
            if event:
                return event
        output = self.output
        decoder = self.decoder
        while decoder.at != decoder.end:
            if output.limit - output.end < _ACK_BYTES:
                session.pump(now_ms)
                return OUTPUT  # any packet may need room for its answer
            kind = self._next()
            if kind == _PUBACK or kind == _PUBCOMP or kind == _PUBREC:
                event = self._acknowledged(decoder, now_ms)
                if event and (event != DELIVERED or self.reports_delivered):
                    return event
            elif kind == _PUBLISH and decoder.qos < 2:
                if session.unsynced:
                    session.sync()  # what was handed over before must not come again, whatever happens in this one's handler
                self._show(decoder)
                if session.waiting is None or not session.waiting.came_again():
                    return MESSAGE
            elif kind:
                event = self._other(kind, now_ms)
                if event:
                    return event
            else:
                break
        if session.cursor != session.store.next_seq or session.wants_request or session.partial:
            session.pump(now_ms)
            if session.urgent:
                return self._urgent(now_ms)
        if (session.inbound and session.inbound.wants_restart(now_ms)) or (
            session.waiting and session.waiting.wants_restart(now_ms)
        ):
            return self._restart()
        return NOTHING

    def _urgent(self, now_ms: int) -> "Any":
        """Do what comes before the next packet: put an acknowledgement that had no room, report, hand over what is held."""
        session = self.session
        output = self.output
        if output.room() < _ACK_BYTES:
            session.pump(now_ms)
            return OUTPUT
        if session.pending_ack:
            output.put_ack(session.pending_ack, session.handed_id)
            session.pending_ack = 0
        if session.reports:
            return session.report()
        if session.undelivered:
            session.undelivered.reported()
        session.urgent = False
        if session.waiting:
            session.waiting.flush()
        return session.inbound.next(self.decoder, now_ms) if session.inbound else NOTHING

    def _other(self, kind: int, now_ms: int) -> "Any":
        """Take in a packet that is not the most frequent kind; return what is to be reported."""
        decoder = self.decoder
        session = self.session
        if kind == _PUBLISH or kind == _PUBREL:
            return session.load_inbound().receive(decoder, now_ms)
        if kind == _LONG:
            self._blocked = True
            self._blocked_ms = now_ms
            return session.load_long().receive(decoder, now_ms)
        if kind == _SUBACK or kind == _UNSUBACK:
            # Another id: the answer to a request that was repeated (3.1).
            return session.requests.answered(decoder) if decoder.packet_id == session.request_id else NOTHING
        if kind == _PINGRESP:
            self._pinged = False
            if session.suspect:
                session.suspect.pong(now_ms)
            return NOTHING
        if kind == _DISCONNECT:
            if self.five:
                self.five.refused(decoder)
            error = ConnectionLost("the broker disconnected: code 0x%02x" % decoder.code)
            error.code = decoder.code
            raise error  # whoever catches it closes the connection; 5: [MQTT-4.13.2-1]
        # A second CONNACK; AUTH, which we never asked for [MQTT-4.12.0-6] and never send [MQTT-4.12.0-7].
        raise ProtocolError("packet type %d" % kind)

    def _handshake(self) -> "Any":
        """Take in the packet that comes before all others."""
        kind = self.decoder.next() if self.state == CONNECTING else 0
        return self._accepted(kind) if kind else NOTHING

    def _accepted(self, kind: int) -> "Any":
        """The first packet, which has to be a CONNACK [MQTT-3.2.0-1]."""
        decoder = self.decoder
        session = self.session
        level = session.level
        if kind != _CONNACK:
            raise ProtocolError("packet type %d before CONNACK" % kind)
        if decoder.code:
            from .codec.packets import connect_error

            if self.five:
                self.five.refused(decoder)
            raise connect_error(decoder.code, level)
        self._unanswered = False
        clean = self._clean_sent
        if decoder.session_present and clean:  # 5: [MQTT-3.2.2-4]
            raise ProtocolError("session present after a clean start")
        if self.five:
            self.five.accepted(session, self)
        # 3.1 can't say whether the session is there: it is taken to be, and subscriptions are repeated.
        present = decoder.session_present or (level == 3 and not clean)
        self.output.open()
        if present and not session.has_note(self.client_id, self.broker):
            self._purge = True  # the broker knows an earlier life of this client
            return self._restart()
        if not present:
            session.lost()
        session.write_note(self.client_id, self.broker)
        if clean and not self.clean and level != _LEVEL_5:
            self._purge = False  # the earlier life is forgotten; the next connection is the one that lasts
            return self._restart()
        self.session_present = present
        doubtful = present and self._doubtful
        session.connected(not present or doubtful or level == 3, doubtful)
        self.state = OPEN
        return CONNECTED

    def _restart(self) -> "Any":
        self.disconnect()
        return RESTART

    def pump(self, now_ms: int) -> None:
        """Put into the output what may go out now."""
        if self.state == OPEN:
            self.session.pump(now_ms)

    # --- time ---

    def keep_open(self, now_ms: int) -> None:
        """Say that we are alive although nothing is read: the application is busy with a message and must not lose the link."""
        half = self.keep_alive_ms >> 1
        if half and ticks_diff(now_ms, self.output.sent_ms) >= half:
            self.ping()
        self.received_ms = self._scanned_ms = now_ms
        self._pinged = False

    def ping(self) -> "Any":
        """Put a PINGREQ, where there is room; return whether there was."""
        output = self.output
        fits = output.room() >= _ACK_BYTES
        if fits:
            output.put(put_pingreq)
            if self.session.suspect:
                self.session.suspect.pings += 1
        return fits

    def check(self, now_ms: int) -> "Any":
        """Do what is due: PINGREQ, retries, deadlines. Call it when there is nothing to read; return for how long it can wait.

        Raises:
            DeadlineExpired: CONNACK, an acknowledgement or any sign of life is overdue.
        """
        response = self.response_ms
        if self.state != OPEN:
            wait = response - ticks_diff(now_ms, self._pinged_ms)  # since `start`, however much drips in meanwhile
            if response and wait <= 0:
                raise DeadlineExpired("no CONNACK for %d ms" % response)
            return wait if response else _FOREVER_MS
        silent = ticks_diff(now_ms, self.received_ms)
        session = self.session
        if ticks_diff(now_ms, self._scanned_ms) >= _SCAN_MS:
            self._scanned_ms = now_ms
            overdue = session.overdue_ms(now_ms)
            if session.inbound:
                overdue = max(overdue, session.inbound.overdue_ms(now_ms, response))
            if self._blocked:
                blocked = ticks_diff(now_ms, self._blocked_ms)
                overdue = min(overdue, blocked)
                self._blocked = blocked < 2 * response + self.keep_alive_ms
            if response and overdue >= response:
                raise DeadlineExpired("no acknowledgement for %d ms" % response)
            session.pump(now_ms)
        keep_alive = self.keep_alive_ms
        if not keep_alive:
            return _SCAN_MS
        # Ping an eighth early and wait half an interval: a silent link is found before 1.5 intervals have passed
        # (3.1.2.10) [MQTT-3.1.2-23]; 5: [MQTT-3.1.2-20].
        half = keep_alive >> 1
        wait = ticks_diff(now_ms, self.output.sent_ms)
        if not self._pinged and silent > wait:
            wait = silent
        wait = keep_alive - (keep_alive >> 3) - wait
        if wait <= 0 and self.ping():
            if not self._pinged:
                self._pinged = True
                self._pinged_ms = now_ms
            return 0
        if self._pinged:
            since = ticks_diff(now_ms, self._pinged_ms)
            if self._blocked:
                since = min(since, ticks_diff(now_ms, self._blocked_ms))
            # Any byte is a sign of life, but other traffic must not defer a missing PINGRESP for ever.
            if (response and since >= response + half) or (since if since < silent else silent) >= half:
                raise DeadlineExpired("no PINGRESP: keep alive")
            wait = half - (since if since < silent else silent)
        return wait if wait < _SCAN_MS or not session.is_waiting() else _SCAN_MS
