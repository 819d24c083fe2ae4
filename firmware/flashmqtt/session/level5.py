"""What level 5 adds to a session and its connections: limits, aliases, reasons (5, sections 3.1.2.11, 3.2.2.3, 4.9).

Levels 3 and 4 never import it. Everything here lasts as long as one network connection, except the client id that the server
assigned. It knows the properties of CONNECT, CONNACK and PUBLISH; the flows themselves are the same at every level.
"""

from flashmqtt.codec.aliases import InboundAliases, OutboundAliases
from flashmqtt.codec.encode import put_publish, put_publish_head
from flashmqtt.codec.packets import CONNACK, CONNECT
from flashmqtt.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
    TOPIC_ALIAS_MAXIMUM,
    check,
    pack,
    unpack,
)
from flashmqtt.codec.reasons import (
    PACKET_TOO_LARGE,
    QOS_NOT_SUPPORTED,
    RETAIN_NOT_SUPPORTED,
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
)
from flashmqtt.errors import BufferTooSmall
from flashmqtt.fast import copy

from .subscriptions import DECLINED


class Level5:
    """One client's side of level 5.

    Args:
        expiry_s: how long the broker keeps the session after the connection's end.
        alias_maximum: how many topic aliases the broker may set.
        properties: more properties for CONNECT (a dict), user properties for example.
        will_properties: the will's (a dict): will delay, content type, ...
    """

    def __init__(self, expiry_s=7 * 86400, alias_maximum=0, properties=None, will_properties=None):
        self.expiry_s = expiry_s
        self.alias_maximum = alias_maximum
        self.properties = properties or {}
        self.will_properties = pack(0, will_properties) if will_properties else None
        self.granted = {}  # what CONNACK said: a dict from property to value
        self._outbound = OutboundAliases(0)
        self._packet_limit = 1 << 28
        self._qos_limit = 2
        self._retain = True

    def start(self, session, decoder):
        """A connection begins: return CONNECT's properties, which tell what we can take."""
        if self.alias_maximum:
            decoder.aliases = InboundAliases(self.alias_maximum)
        properties = dict(self.properties)
        properties[SESSION_EXPIRY_INTERVAL] = self.expiry_s
        # Every unacknowledged inbound message may have to be held.
        properties[RECEIVE_MAXIMUM] = max(1, session.hold_limit)
        if not session.chunks:
            properties[MAXIMUM_PACKET_SIZE] = len(decoder.buffer)
        if self.alias_maximum:
            properties[TOPIC_ALIAS_MAXIMUM] = self.alias_maximum
        return pack(CONNECT, properties)

    def accepted(self, session, connection):
        """Take in what CONNACK allows us."""
        packet = connection.decoder
        check(CONNACK, packet.buffer, packet.properties_start, packet.properties_end)
        granted = self.granted = unpack(packet.buffer, packet.properties_start, packet.properties_end)
        session.quota = min(session.window, granted.get(RECEIVE_MAXIMUM, 65535))  # [MQTT-3.3.4-7] [MQTT-4.9.0-1]
        self._packet_limit = granted.get(MAXIMUM_PACKET_SIZE, 1 << 28)
        self._qos_limit = granted.get(MAXIMUM_QOS, 2)
        self._retain = granted.get(RETAIN_AVAILABLE, 1)
        if SERVER_KEEP_ALIVE in granted:  # 5: [MQTT-3.1.2-21] [MQTT-3.2.2-21]
            connection.keep_alive_ms = granted[SERVER_KEEP_ALIVE] * 1000
        if ASSIGNED_CLIENT_IDENTIFIER in granted:  # it is ours from now on: the session is kept under it
            connection.client_id = granted[ASSIGNED_CLIENT_IDENTIFIER].encode()
        self._outbound = OutboundAliases(min(granted.get(TOPIC_ALIAS_MAXIMUM, 0), 16))

    def objection(self, head, length):
        """Return the reason code with which the server would refuse a PUBLISH with this first byte and length; 0: none.

        [MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-15]
        """
        if length > self._packet_limit:
            return PACKET_TOO_LARGE
        if (head >> 1 & 3) > self._qos_limit:
            return QOS_NOT_SUPPORTED
        return RETAIN_NOT_SUPPORTED if head & 1 and not self._retain else 0

    def together(self, entries):
        """Return those of these subscriptions that one SUBSCRIBE can ask for: the properties are the whole packet's.

        One with an identifier, where the server said that it takes none, is declined (5, section 3.2.2.3.12).
        """
        found: list = []
        for entry in entries:
            block = entry.properties
            if block and not self.granted.get(SUBSCRIPTION_IDENTIFIERS_AVAILABLE, 1):
                if SUBSCRIPTION_IDENTIFIER in unpack(block, 0, len(block)):
                    entry.state = DECLINED
                    entry.code = SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
                    continue
            if not found or found[0].properties == block:
                found.append(entry)
        return found

    def put_unstored(self, session, topic, payload, retain, properties):
        """Do what the session's `put_unstored` does: with an alias where the server allows one [MQTT-3.2.2-17] [MQTT-3.2.2-18].

        What the server would refuse is not sent, and done with: it is QoS 0. (With its topic, not with an alias, it must not be
        longer than the server takes.)
        """
        out = session.out
        at = session.out_end
        properties = properties or b""
        n = len(payload)
        aliases = self._outbound
        try:
            if len(topic) + n + len(properties) + 11 > self._packet_limit:
                n += put_publish_head(out, at, topic, n, 0, retain, False, 0, 5, properties) - at
            if self.objection(1 if retain else 0, n):
                return True
            alias = aliases.alias(topic)
            if alias:
                properties += aliases.properties(abs(alias))
            end = put_publish(out, at, b"" if alias > 0 else topic, payload, 0, retain, False, 0, 5, properties)
        except BufferTooSmall:
            return False
        if alias < 0:  # not before the topic is known to be one, and to fit
            aliases.note(topic)
        session.out_end = end
        return True

    def resolve(self, packet, message):
        """Let the message's topic be the one that a received alias stands for."""
        message.topic_buffer = topic = packet.topic
        message.topic_start = 0
        message.topic_end = len(topic)

    def put_held(self, buf, packet):
        """Write a received PUBLISH with an alias as a record that carries its topic; return the record's length."""
        start = packet.payload_start
        n = packet.payload_end - start
        block = bytes(packet.buffer[packet.properties_start : packet.properties_end])
        at = put_publish_head(buf, 0, packet.topic, n, 2, packet.retain, False, packet.packet_id, 5, block)
        copy(buf, at, packet.buffer, start, n)
        return at + n
