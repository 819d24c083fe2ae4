"""Level 5's additions to a session and its connections: limits, aliases, reasons (5, sections 3.1.2.11, 3.2.2.3, 4.9).

Not imported at levels 3 and 4. Everything here lasts as long as one network connection, except the client id that the server
assigned. It knows the properties of CONNECT, CONNACK and PUBLISH; the flows are the same at every level.
"""

from flashmqtt.codec.aliases import InboundAliases, OutboundAliases
from flashmqtt.codec.encode import put_publish, put_publish_head
from flashmqtt.codec.packets import CONNACK, CONNECT, DISCONNECT
from flashmqtt.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    SHARED_SUBSCRIPTION_AVAILABLE,
    SUBSCRIPTION_IDENTIFIER,
    SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
    TOPIC_ALIAS_MAXIMUM,
    WILDCARD_SUBSCRIPTION_AVAILABLE,
    check,
    find,
    pack,
    unpack,
)
from flashmqtt.codec.reasons import (
    PACKET_TOO_LARGE,
    QOS_NOT_SUPPORTED,
    RETAIN_NOT_SUPPORTED,
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
)
from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import BufferTooSmall, UsageError
from flashmqtt.fast import copy

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_DEFAULT_EXPIRY_S = const(7 * 86400)  # as in `Level5`
_CLIENT_CODES = b"\x00\x04\x80\x81\x82\x83\x90\x93\x94\x95\x96\x97\x98\x99"  # for DISCONNECT (5, section 3.14.2.1)
_EXPIRED = const(10)
_STAMPED = const(8)  # `expiry.py`
_STAMP_BYTES = const(12)
_HEAD_BYTES = const(64)
_REFUSED = const(7)  # an event: `connection.py`


class Level5:
    """A client's settings and state of level 5.

    Args:
        expiry_s: how long the broker keeps the session after the end of the connection. In a client with `clean`, 604,800, the
            default, becomes 0: then a will's delay has no effect, because a will is published when the session ends. For a week,
            give another number, such as 604,801.
        alias_maximum: how many topic aliases the broker may set.
        properties: more properties for CONNECT (a dict), user properties for example. A session expiry and a topic alias maximum
            among them replace the two arguments; limits above those of the store and the buffer are lowered.
        will_properties: the will's (a dict): will delay, content type, ...

    Raises:
        UsageError: CONNECT can't have such a property.
    """

    def __init__(
        self,
        expiry_s: int = 7 * 86400,
        alias_maximum: int = 0,
        properties: "dict[int, Any] | None" = None,
        will_properties: "dict[int, Any] | None" = None,
    ) -> None:
        own = {SESSION_EXPIRY_INTERVAL: expiry_s}
        if alias_maximum:
            own[TOPIC_ALIAS_MAXIMUM] = alias_maximum
        if properties:
            pack(CONNECT, properties)
            own.update(properties)
        pack(CONNECT, own)  # what CONNECT can't have is an error here
        self.properties = own
        self.expiry_s = own[SESSION_EXPIRY_INTERVAL]
        self.alias_maximum = own.get(TOPIC_ALIAS_MAXIMUM, 0)
        self.will_properties = pack(0, will_properties) if will_properties else None
        self._first = bytearray(1)
        self.expiry: "Any" = None  # counts Message Expiry Intervals down: `expiry.Expiry`
        self._interval: "int | None" = None  # the rest of the interval of the message that is put now
        self.granted: "dict[int, Any]" = {}  # the properties of CONNACK: property -> value
        self.answer: "dict[int, Any]" = {}  # the properties of the last packet that refused something
        self._outbound = OutboundAliases(0)
        self._packet_limit = 1 << 28
        self._qos_limit = 2
        self._retain = True

    def copy(self, clean: bool = False) -> "Any":
        """Return the same settings without the state, so that several clients may be given one object.

        clean: with the default expiry, the session is to end with the connection.
        """
        five = Level5(self.expiry_s, self.alias_maximum, self.properties)
        if clean and self.expiry_s == _DEFAULT_EXPIRY_S:
            five.expiry_s = 0
        five.will_properties = self.will_properties
        return five

    def start(self, session: "Any", decoder: "Any") -> "Any":
        """A connection begins: return CONNECT's properties, with this client's limits."""
        if self.alias_maximum:
            decoder.aliases = InboundAliases(self.alias_maximum)
        properties = dict(self.properties)
        properties[SESSION_EXPIRY_INTERVAL] = self.expiry_s
        # Every unacknowledged inbound message may have to be held at once.
        properties[RECEIVE_MAXIMUM] = min(session.store.hold_limit, properties.get(RECEIVE_MAXIMUM, 65535))
        if not session.chunks:
            size = len(decoder.buffer)
            properties[MAXIMUM_PACKET_SIZE] = min(size, properties.get(MAXIMUM_PACKET_SIZE, size))
        return pack(CONNECT, properties)

    def accepted(self, session: "Any", connection: "Any") -> None:
        """Apply the limits in CONNACK."""
        packet = connection.decoder
        check(CONNACK, packet.buffer, packet.properties_start, packet.properties_end)
        granted = self.granted = unpack(packet.buffer, packet.properties_start, packet.properties_end)
        session.quota = min(session.window, granted.get(RECEIVE_MAXIMUM, 65535))  # [MQTT-3.3.4-7] [MQTT-4.9.0-1]
        self._packet_limit = granted.get(MAXIMUM_PACKET_SIZE, 1 << 28)
        self._qos_limit = granted.get(MAXIMUM_QOS, 2)
        session.qos_limit = min(session.max_qos, self._qos_limit or 2)
        self._retain = granted.get(RETAIN_AVAILABLE, 1)
        if SERVER_KEEP_ALIVE in granted:  # 5: [MQTT-3.1.2-21] [MQTT-3.2.2-21]
            connection.keep_alive_ms = granted[SERVER_KEEP_ALIVE] * 1000
        if ASSIGNED_CLIENT_IDENTIFIER in granted:  # use it from now on: the session is kept under this id
            known = connection.client_id
            connection.client_id = granted[ASSIGNED_CLIENT_IDENTIFIER].encode()
            try:
                connection.put_connect(session.output.buf, session.output.end)
            except BufferTooSmall:
                connection.client_id = known  # the buffer is too small for it: the server assigns another one each time
        self._outbound = OutboundAliases(min(granted.get(TOPIC_ALIAS_MAXIMUM, 0), 16))

    def refused(self, packet: "Any") -> None:
        """Keep the properties of a packet that refuses something, for example a reason string."""
        try:
            self.answer = unpack(packet.buffer, packet.properties_start, packet.properties_end)
        except MemoryError:  # only a person reads it
            self.answer = {}

    def avoid_retained(self, session: "Any", decoder: "Any") -> None:
        """Ask for no retained messages any more (Retain Handling 2) with the filters that brought a malformed one.

        In a new session, it would come again with each SUBSCRIBE, end each connection, and so stop all other messages.
        """
        from flashmqtt.codec.topics import covers

        for entry in session.subscriptions:
            if covers(entry.filter, decoder.buffer, decoder.topic_start, decoder.topic_end):
                entry.options = entry.options & 15 | 0x20

    def disconnect_properties(self, code: int, expiry_s: "int | None") -> "bytes | None":
        """Return the properties of a DISCONNECT with this reason code and session expiry (None: as in CONNECT).

        Raises:
            UsageError: a client must not send this reason code; or CONNECT set a session expiry of 0, and this one is not 0.
        """
        if not isinstance(code, int) or not 0 <= code < 256 or code not in _CLIENT_CODES:
            raise UsageError("reason code %r in a client's DISCONNECT" % (code,))
        if expiry_s is None:
            return None
        if expiry_s and not self.expiry_s:  # 5, section 3.14.2.2.2
            raise UsageError("expiry_s %d: the session was to end with the connection" % expiry_s)
        return pack(DISCONNECT, {SESSION_EXPIRY_INTERVAL: expiry_s})

    def stamp(self, session: "Any", block: bytes) -> "Any":
        """Return the stamp to store after a PUBLISH with these properties; empty if it can't expire."""
        if find(block, 0, len(block), MESSAGE_EXPIRY_INTERVAL) < 0:
            return b""
        return self._load_expiry(session).stamp()

    def _load_expiry(self, session: "Any") -> "Any":
        if self.expiry is None:
            from .expiry import Expiry

            store = session.store
            # Kept with the store: another client that takes it over must go on counting.
            self.expiry = store.expiry = getattr(store, "expiry", None) or Expiry(store)
        return self.expiry

    def outgoing(self, session: "Any", seq: int, n: int) -> int:
        """Return the packet's length in a stored message of n bytes; 0 if it must not be sent, which is then reported.

        That is so if the message has expired, or exceeds a limit that the server announced.
        """
        first = self._first
        store = session.store
        store.read(seq, 0, first, 0, 1)
        head = first[0]
        self._interval = None
        if head & _STAMPED:
            n -= _STAMP_BYTES
            left = self._load_expiry(session).left(seq, n, self._interval_of(store, seq, n))
            if left <= 0:
                if head & 2 or seq >= session.dup_to:
                    session.load_undelivered().set_aside(_EXPIRED, seq, 0)
                    return 0
                left = 1
            self._interval = left
        code = self.objection(head, n)
        if code:
            session.load_undelivered().set_aside(_REFUSED, seq, code)
            return 0
        return n

    def _interval_of(self, store: "Any", seq: int, n: int) -> int:
        """Return the expiry interval with which a stored message was published."""
        from .expiry import interval_at

        head = bytearray(n if n < _HEAD_BYTES else _HEAD_BYTES)
        while True:
            store.read(seq, 0, head, 0, len(head))
            at = interval_at(head, 0, len(head))
            if at or len(head) == n:
                break
            head = bytearray(min(n, 4 * len(head)))  # a long topic, or many properties
        return head[at] << 24 | head[at + 1] << 16 | head[at + 2] << 8 | head[at + 3]

    def put_interval(self, buf: "bytearray | memoryview", at: int, end: int, dup: bool) -> None:
        """Complete a stored packet in the output, from buf[at] to `end`: DUP, and the rest of its expiry interval."""
        left = self._interval
        if left is not None:
            from .expiry import interval_at

            buf[at] = (buf[at] & ~_STAMPED) | (8 if dup else 0)
            at = interval_at(buf, at, end)
            if at:  # else its properties are longer than the output, and it is sent with the original interval
                for i in range(3, -1, -1):
                    buf[at + i] = left & 255
                    left >>= 8

    def objection(self, head: int, length: int) -> "Any":
        """Return the reason code with which the server would refuse a PUBLISH with this first byte and length, or 0.

        [MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-15]
        """
        if length > self._packet_limit:
            return PACKET_TOO_LARGE
        if head & 6 and not self._qos_limit:  # if the server takes QoS 1, QoS 2 is sent at QoS 1
            return QOS_NOT_SUPPORTED
        return RETAIN_NOT_SUPPORTED if head & 1 and not self._retain else 0

    def together(self, entries: "Any", now_ms: int) -> "Any":
        """Return the entries that fit in one SUBSCRIBE or UNSUBSCRIBE: all with the same properties.

        Declined are entries that are longer than the server accepts, and those with a wildcard, a subscription identifier or a
        share name if the server does not support these (5, sections 3.2.2.3.6 and 3.2.2.3.11 to 3.2.2.3.13).
        """
        granted = self.granted
        found: "list[Any]" = []
        room = 0
        for entry in entries:
            block = entry.properties
            n = len(entry.filter) + 3
            rest = (len(block) if block else 0) + 11  # the most bytes of a SUBSCRIBE besides its filters
            if n + rest > self._packet_limit:
                entry.decline(PACKET_TOO_LARGE, now_ms)
                continue
            if not entry.state:  # not an UNSUBSCRIBE
                filter_ = entry.filter
                code = 0
                if not granted.get(SUBSCRIPTION_IDENTIFIERS_AVAILABLE, 1) and block:
                    if SUBSCRIPTION_IDENTIFIER in unpack(block, 0, len(block)):
                        code = SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
                if not granted.get(SHARED_SUBSCRIPTION_AVAILABLE, 1) and filter_[:7] == b"$share/":
                    code = SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
                if not granted.get(WILDCARD_SUBSCRIPTION_AVAILABLE, 1) and (b"#" in filter_ or b"+" in filter_):
                    code = WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
                if code:
                    entry.decline(code, now_ms)
                    continue
            if not found:
                room = self._packet_limit - rest
            if (not found or found[0].properties == block) and n <= room:
                found.append(entry)
                room -= n
        return found

    def put_unstored(
        self, output: "Any", topic: "Any", payload: "bytes | bytearray | memoryview", retain: bool, properties: "Any"
    ) -> bool:
        """Do what the session's `put_unstored` does, with an alias if the server allows it [MQTT-3.2.2-17] [MQTT-3.2.2-18].

        A message that the server would refuse is dropped, as QoS 0 allows. Its length is checked with the whole topic. A message
        that is nearly too long has no alias, which may make it longer.
        """
        if not topic:  # with an alias, an empty topic would be valid
            from flashmqtt.arguments import refuse_topic

            refuse_topic(topic, False)
        properties = properties or b""
        n = len(payload)
        aliases = self._outbound
        end = output.end
        alias = 0
        try:
            if len(topic) + n + len(properties) + 14 > self._packet_limit:
                n += put_publish_head(output.buf, end, topic, n, 0, retain, False, 0, 5, properties) - end
            else:
                alias = aliases.alias(topic)
            if self.objection(1 if retain else 0, n):
                return True
            if alias:
                properties += aliases.properties(abs(alias))
            output.put(put_publish, b"" if alias > 0 else topic, payload, 0, retain, False, 0, 5, properties)
        except BufferTooSmall:
            return False
        if alias < 0:  # only now the topic is known to be valid and to fit
            aliases.note(topic)
        return True

    def resolve(self, packet: "Any", message: "Any") -> None:
        """Set the message's topic to the topic of the received alias."""
        message.topic_buffer = topic = packet.topic
        message.topic_start = 0
        message.topic_end = len(topic)

    def put_held(self, buf: "bytearray | memoryview", packet: "Any") -> int:
        """Write a received PUBLISH with an alias as a record with the topic itself; return the record's length."""
        start = packet.payload_start
        n = packet.payload_end - start
        block = bytes(packet.buffer[packet.properties_start : packet.properties_end])
        at = put_publish_head(buf, 0, packet.topic, n, 2, packet.retain, False, packet.packet_id, 5, block)
        copy(buf, at, packet.buffer, start, n)
        return at + n
