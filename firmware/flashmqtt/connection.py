"""One network connection, without I/O: handshake, keep alive, order of events (3.1.1 and 5, sections 3.1, 3.2 and 3.12).

It knows no socket and no clock: received bytes enter through `decoder.read_from`, or through `decoder.room` and
`decoder.received`; bytes to send leave through `output.write_to`; the time is an argument. The session outlives the
connection. For each network connection, make a new Connection over the same session, or call `start` again, which reuses the
buffers.

How to drive it, from any kind of loop (as the link and the collector do):

    session = Session(store, level=4, window=8)
    connection = Connection(session, client_id=b"collector", buffer_bytes=16384, keep_alive_s=60)
    output = connection.output
    sock.connect(...)
    connection.start(now_ms)                    # CONNECT is in the output now
    while True:
        if output.end:
            output.write_to(sock, now_ms)       # this calls store.sync() before the bytes are sent; the rest remains
        if connection.decoder.read_from(sock) == 0:     # when the socket is readable
            raise ConnectionLost(CLOSED_BY_PEER)
        connection.received_ms = now_ms         # unless nothing was read
        while True:
            event = connection.process(now_ms)  # raises MalformedPacket, ProtocolError, ...: close the socket then
            if event == NOTHING:                # no complete packet is left: write the output, then wait for bytes
                break
            if event == OUTPUT:                 # the output buffer is full: write it, then continue to process
                ...
            elif event == MESSAGE:              # session.message: topic, payload, qos, retain, dup (views, valid until
                ...                             # the next process()). Then call session.acknowledge(); process() calls it, too
            elif event == CONNECTED: ...        # connection.session_present
            elif event == DELIVERED: ...        # session.handle: what session.publish() returned
            elif event == SUBSCRIBED: ...       # see session.subscriptions
            elif event == OVERSIZE: ...         # session.long.topic: a message of session.handle bytes was skipped
            elif event == RESTART: ...          # write the output, close the socket, connect again at once
        wait_ms = connection.check(now_ms)      # keep alive, retries, deadlines; how long the loop may sleep

After `session.publish(...)` or `requests_of(session).want(...)` call `connection.pump(now_ms)` and write the output. When the
socket is closed, by either side, call `connection.close()`.

Group commit: a received message's acknowledgement is put into the output when the message is taken. All acknowledgements for one
batch of received bytes are sent after one `store.sync()`.
"""

from .codec.decode import Decoder
from .codec.encode import put_connect, put_disconnect, put_pingreq
from .compat import TYPE_CHECKING, const, ticks_diff
from .errors import (
    ConnectionLost,
    DeadlineExpired,
    FlashMqttError,
    ProtocolError,
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
DISCONNECTED = const(12)  # reported by the link: a connection that was CONNECTED has ended
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
CONNECTING = const(1)  # CONNECT is in the output or sent
OPEN = const(2)
CLOSING = const(3)  # DISCONNECT is in the output: nothing is read any more

_FOREVER_MS = const(1 << 28)
_SCAN_MS = const(500)  # how often unanswered packets are checked
_IN_NOTE = const(0x80)  # in byte 1 of the session's note: messages past PUBREC are in doubt
_ACK_BYTES = const(8)  # the room that one acknowledgement may need
_DISCONNECT_BYTES = const(10)  # the room that DISCONNECT may need


class Connection:
    """One network connection of a session, from CONNECT to the closing of the socket.

    Args:
        session: outlives this connection.
        client_id, user, password: bytes-like.
        broker: bytes that name the broker, "host:port": the session's note is valid for this broker only.
        keep_alive_s: the broker and this client end a connection that is silent for 1.5 times this. 0: neither does, and only
            `response_ms` detects a connection that fails silently.
        will: (topic, payload, qos, retain), or None.
        buffer_bytes: size of the input buffer: the longest packet that is accepted.
        response_ms: the connection is closed if a packet waits longer than this for its answer. 0: no limit.
        clean: discard the broker's session at every connect (levels 3 and 4: Clean Session).
        five: a `session.level5.Level5`, required at level 5.
        chunks: hand over a PUBLISH larger than the input buffer in pieces, each as a MESSAGE; only the last one is acknowledged.
            False: skip it and report OVERSIZE; at level 5 the broker is told the maximum packet size.
    """

    on_delivered = True

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
        self.session = session
        self.output = session.output
        self.client_id = client_id
        self.broker = broker
        self.keep_alive_s = keep_alive_s
        self.user = user
        self.password = password
        self.will = will
        session.response_ms = response_ms
        self.clean = clean
        # Level 5 without chunks: the broker knows our Maximum Packet Size, and a longer packet is an error.
        self.decoder = Decoder(buffer_bytes, session.level, _LONG if chunks or session.level != _LEVEL_5 else 0)
        session.chunks = chunks
        self.five = session.five = five
        # Bound methods: on a board, a method lookup in an object with many attributes takes 20 us, an attribute 2 us.
        self._next = self.decoder.next  # set again by `start`, as the collector replaces the decoder
        self._acknowledged = session.acknowledged
        self.state = CLOSED
        self.session_present = False
        self.owner: "Any" = self  # the event DELIVERED is not returned if its `on_delivered` is None
        self.keep_alive_ms = 0
        self._clean_sent = True
        self._purge = False  # the broker has an old session of this client id: connect with a clean start once
        self._unanswered = session.note.octets[1] >= _IN_NOTE
        self._doubtful = False  # an earlier CONNECT had no answer: the broker's session may have begun with that one
        self.received_ms = self._scanned_ms = self._pinged_ms = 0
        self._blocked = False  # head-of-line blocking: a message longer than the buffer came lately and delays answers
        self._blocked_ms = 0
        self._pinged = False

    # --- the connection's begin and end ---

    def start(self, now_ms: int) -> None:
        """Put CONNECT [MQTT-3.1.0-1]; discard all state of the last network connection."""
        session = self.session
        output = self.output
        session.disconnected()
        session.handed = 0
        self.decoder.reset()
        self._next = self.decoder.next
        # A clean start discards the broker's session [MQTT-3.1.2-6], 5: [MQTT-3.1.2-4]. Without a note, the broker may still
        # have packet ids from before this store. Levels 4 and 5 detect that by session_present in CONNACK; level 3 has no such
        # flag. (At level 5 a clean start would do, but mosquitto 2.0 does not save a session that began with one.)
        self._clean_sent = (
            self.clean or self._purge or (session.level == 3 and not session.note.is_of(self.client_id, self.broker))
        )
        output.put(self.put_connect)
        session.keep_doubt(True)  # CONNECT is valid and will be sent
        self.keep_alive_ms = self.keep_alive_s * 1000
        output.sent_ms = self.received_ms = self._scanned_ms = self._pinged_ms = now_ms
        self._pinged = self._blocked = False
        self._doubtful = self._unanswered
        self._unanswered = True
        self.state = CONNECTING

    def put_connect(self, buf: "bytearray | memoryview", pos: int) -> int:
        """Write CONNECT into buf[pos:]; return where it ends."""
        session = self.session
        five = self.five
        topic, payload, qos, retain = self.will or (None, b"", 0, False)
        return put_connect(
            buf,
            pos,
            self.client_id,  # the same for the whole session [MQTT-3.1.3-2]
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

    def disconnect(self, code: int = 0, properties: "bytes | bytearray | memoryview | None" = None) -> bool:
        """Put DISCONNECT: the broker discards the will [MQTT-3.14.4-3]. Write the output, then close the socket.

        No packet may follow [MQTT-3.14.4-2]; 5: [MQTT-3.14.4-1]. Level 5 may send a reason code and properties. Return False if
        there is no room: write the output first.
        """
        output = self.output
        if output.room() < _DISCONNECT_BYTES:
            return False
        output.put(put_disconnect, self.session.level, code, properties)
        output.limit = 0
        self.state = CLOSING
        return True

    def put_error_disconnect(self, error: "Any") -> None:
        """Put level 5's DISCONNECT with the error's reason code, if it has one and there is room [MQTT-4.13.1-1].

        A received message that can't be decoded is acknowledged before, and not asked for again if it is retained; otherwise it
        would end every connection, as some brokers check less than this client.
        """
        code = error.reason if isinstance(error, FlashMqttError) else 0  # in other exceptions `reason` is a text
        if code and self.state == OPEN:
            from .codec.malformed import acknowledge

            if acknowledge(self.decoder, self.output) or self.five:
                if self.five:
                    self.five.avoid_retained(self.session, self.decoder)
                self.disconnect(code)

    def close(self) -> None:
        """Update the state: the socket is closed, by either side."""
        self.state = CLOSED
        self.session.disconnected()

    # --- in ---

    def process(self, now_ms: int) -> "Any":
        """Process received packets up to the next event, and return it; NOTHING: no complete packet is left.

        Raises:
            MalformedPacket, ProtocolError: the peer is wrong.
            ConnectRefused: with the broker's reason.
            ConnectionLost: the connection can't be used any more.
        """
        session = self.session
        if session.handed:
            session.acknowledge()
        if self.state != OPEN:
            kind = self._next() if self.state == CONNECTING else 0
            return self._accepted(kind) if kind else session.report()  # CONNACK may never come
        if session.urgent:
            event = self._urgent(now_ms)
            if event:
                return event
        output = self.output
        decoder = self.decoder
        while decoder.at != decoder.stop:
            if output.limit - output.end < _ACK_BYTES:
                session.pump(now_ms)
                return OUTPUT  # any packet may need room for its answer
            # The last message must not be handed over again if the handler of this one, of QoS 0 or 1, resets the board. If the
            # store fails, the packet is still to be read.
            if session.unsynced and decoder.buffer[decoder.at] & 0xF4 == 0x30:
                session.sync()
            kind = self._next()
            if kind == _PUBLISH and decoder.qos < 2:
                if decoder.moved:
                    self._show(session, decoder)
                else:  # all but the packet id is as in the last PUBLISH
                    session.handed_id = decoder.packet_id
                    session.handed = _PUBACK if decoder.qos else 0
                if not session.waiting or not session.waiting.is_duplicate():
                    return MESSAGE
            elif kind == _PUBACK or kind == _PUBCOMP or kind == _PUBREC:
                event = self._acknowledged(decoder, now_ms)
                if event and (event != DELIVERED or self.owner.on_delivered):
                    return event
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
        # Not in the middle of a message, and not without a DISCONNECT: the broker would publish the will.
        if (
            (session.inbound or session.waiting)
            and output.limit - output.end >= _DISCONNECT_BYTES
            and (
                (session.inbound and session.inbound.wants_restart(now_ms))
                or (session.waiting and session.waiting.wants_restart(now_ms))
            )
        ):
            return self._restart()
        return NOTHING

    def _urgent(self, now_ms: int) -> "Any":
        """Work that precedes the next packet: put a delayed acknowledgement, report, hand over a held message."""
        session = self.session
        output = self.output
        if output.room() < _ACK_BYTES:
            session.pump(now_ms)
            return OUTPUT
        if session.pending_ack:
            output.put_ack(session.pending_ack, session.handed_id)
            session.pending_ack = 0
        event = session.report()
        if event:
            return event
        session.urgent = len(session.reports) > 0
        if session.undelivered and not session.urgent:
            session.undelivered.reported()
        if session.waiting:
            session.waiting.flush()
        return session.inbound.next(self.decoder, now_ms) if session.inbound else NOTHING

    def _other(self, kind: int, now_ms: int) -> "Any":
        """Process a packet of a less frequent type; return the event to report."""
        decoder = self.decoder
        session = self.session
        if kind == _PUBLISH or kind == _PUBREL:
            if session.inbound is None:
                self._load(session.load_inbound)
            return session.inbound.receive(decoder, now_ms)
        if kind == _LONG:
            self._blocked = True
            self._blocked_ms = now_ms
            if session.long is None:
                self._load(session.load_long)
            return session.long.receive(decoder, now_ms)
        if kind == _SUBACK or kind == _UNSUBACK:
            # Another id: the second answer to a request that was repeated (3.1).
            return session.requests.answered(decoder) if decoder.packet_id == session.request_id else NOTHING
        if kind == _PINGRESP:
            self._pinged = False
            if session.suspect:
                session.suspect.pong(now_ms)
            if session.inbound:
                session.inbound.pong()
            return NOTHING
        if kind == _DISCONNECT:
            if self.five:
                self.five.refused(decoder)
            error = ConnectionLost("the broker disconnected: code 0x%02x" % decoder.code)
            error.code = decoder.code
            raise error  # the caller closes the connection; 5: [MQTT-4.13.2-1]
        # A second CONNACK; or AUTH, which we never request [MQTT-4.12.0-6] and never send [MQTT-4.12.0-7].
        raise ProtocolError("packet type %d" % kind)

    def _show(self, session: "Any", decoder: "Any") -> None:
        """Show the first received message. (For the others, an attribute replaces this method.)"""
        session.load_message()
        from .session.message import show

        self._show = show  # type: ignore[method-assign, assignment]
        show(session, decoder)

    def _load(self, load: "Any") -> None:
        """Load the module of a received packet. (A `try` in `_other` would allocate a frame for each packet.)"""
        try:
            load()
        except MemoryError:
            raise ConnectionLost("no memory")  # the packet is already consumed, so the broker must send it again

    def _accepted(self, kind: int) -> "Any":
        """Process the first packet, which must be a CONNACK [MQTT-3.2.0-1]."""
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
        # 3.1 has no session_present flag: assume that the session is present, and subscribe again.
        present = decoder.session_present or (level == 3 and not clean)
        self.output.open()
        if present and not session.note.is_of(self.client_id, self.broker):
            self._purge = True  # the broker has a session from before this store
            return self._restart()
        if not present:
            session.lost()
        # A clean session of levels 3 and 4 ends with its connection. Level 3 must not take the next one for this one.
        ends = self.clean and level != _LEVEL_5
        session.note.begin(self.client_id, b"" if ends else self.broker)
        self._purge = ends and level == 3
        if clean and not self.clean and level != _LEVEL_5:
            return self._restart()  # the next connection is the one to use
        self.session_present = present
        doubtful = present and self._doubtful
        session.connected(not present or doubtful or level == 3, doubtful)
        self.state = OPEN
        return CONNECTED

    def _restart(self) -> "Any":
        self.disconnect()
        return RESTART

    def pump(self, now_ms: int) -> None:
        """Put all packets into the output that may be sent now."""
        if self.state == OPEN:
            self.session.pump(now_ms)

    # --- time ---

    def ping(self) -> "Any":
        """Put a PINGREQ if there is room; return whether there was."""
        output = self.output
        fits = output.room() >= _ACK_BYTES
        if fits:
            output.put(put_pingreq)
            if self.session.suspect:
                self.session.suspect.pings += 1
        return fits

    def check(self, now_ms: int) -> "Any":
        """Handle PINGREQ, retransmissions and deadlines when there is nothing to read; return the ms until the next call.

        Raises:
            DeadlineExpired: CONNACK, an acknowledgement or PINGRESP is overdue.
        """
        response = self.session.response_ms or _FOREVER_MS
        if self.state != OPEN:
            wait = response - ticks_diff(now_ms, self._pinged_ms)  # since `start`; received bytes do not extend it
            if wait <= 0:
                raise DeadlineExpired("no CONNACK for %d ms" % response)
            return wait
        silent = ticks_diff(now_ms, self.received_ms)
        session = self.session
        if ticks_diff(now_ms, self._scanned_ms) >= _SCAN_MS:
            self._scanned_ms = now_ms
            overdue = session.overdue_ms(now_ms)
            if session.inbound:
                overdue = max(overdue, session.inbound.overdue_ms(now_ms, self))
            if self._blocked:
                blocked = ticks_diff(now_ms, self._blocked_ms)
                overdue = min(overdue, blocked)
                self._blocked = blocked < 2 * response + self.keep_alive_ms
            if overdue >= response:
                raise DeadlineExpired("no acknowledgement for %d ms" % response)
            session.pump(now_ms)
        keep_alive = self.keep_alive_ms
        if not keep_alive:
            return _SCAN_MS
        # Ping after 7/8 of the interval and wait half an interval: a silent connection is detected within 1.5 intervals
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
            # Any byte counts as a sign of life, but other traffic must not defer a missing PINGRESP forever.
            wait = half - min(since, silent)
            if wait <= 0 or since >= response + half:
                raise DeadlineExpired("no PINGRESP: keep alive")
        waits = session.flight or session.request_id or session.suspect or session.adopted  # for any answer
        return wait if wait < _SCAN_MS or not waits else _SCAN_MS
