"""The additions of level 5 to session and connection: limits, aliases, reason codes, server DISCONNECT (W12, Q5, Q6, Q8)."""

import pytest

from flashmqtt.codec.packets import CONNECT
from flashmqtt.codec.properties import (
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
    pack,
)
from flashmqtt.connection import DELIVERED, IN_DOUBT, REFUSED
from flashmqtt.errors import (
    ConnectionLost,
    ConnectRefused,
    InvalidTopic,
    MalformedPacket,
    ProtocolError,
    Refused,
    UsageError,
)
from flashmqtt.session.level5 import Level5
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from flashmqtt.session.several import unwant
from flashmqtt.session.subscriptions import DECLINED, requests_of
from tools.proof import packets
from tools.proof.packets import length
from wire import CutStore, Peer, id_of, number, packet, peer, settle, split, text
from wire import publish as publish4


def connack(present=0, code=0, properties=b""):
    return packets.connack(5, present, code, properties)


def publish(topic, payload, qos=0, packet_id=0, dup=0, retain=0, properties=b""):
    return packets.publish(topic, payload, qos, packet_id, 5, retain, dup, properties)


def ack(head, packet_id, code=0):
    return packet(head, number(packet_id), bytes([code]) if code else b"")


class Peer5(Peer):
    def __init__(
        self, store=None, window=4, properties=b"", buffer_bytes=1024, out_bytes=1024, packet_bytes=1024, **five
    ):
        session = Session(settle(store or RamStore()), 5, window, out_bytes, packet_bytes)
        super().__init__(session, b"me", buffer_bytes=buffer_bytes, five=Level5(**five))
        session.note.begin(b"me", b"")
        session._may_be_older = False
        self.properties = properties

    def connect(self, present=0):
        self.connection.start(self.now)
        (self.connect_packet,) = self.took()
        self.give(connack(present, 0, self.properties))
        return self.took()


def connected(*arguments, **options):
    """Return a level 5 peer with these arguments, whose broker has accepted the connection."""
    broker = Peer5(*arguments, **options)
    broker.connect()
    return broker


@pytest.mark.req("W12")
def test_connect_properties_state_our_limits():
    broker = connected(RamStore(), window=4, expiry_s=60, buffer_bytes=512)
    head = text(b"MQTT") + b"\x05\x00" + b"\x00\x3c"
    assert broker.connect_packet[2 : 2 + len(head)] == head
    properties = broker.connect_packet[2 + len(head) + 1 :]
    assert b"\x11\x00\x00\x00\x3c" in properties  # Session Expiry Interval
    assert b"\x21\x00\x28" in properties  # Receive Maximum: as many messages as the store can hold
    assert b"\x27\x00\x00\x02\x00" in properties  # Maximum Packet Size


@pytest.mark.req("W12")
def test_limits_among_the_properties_given_for_connect_are_sent():
    given = {SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: 3, MAXIMUM_PACKET_SIZE: 200, TOPIC_ALIAS_MAXIMUM: 2}
    broker = Peer5()
    broker.connection.five = broker.session.five = Level5(properties=given)
    broker.connect()
    for identifier, value in given.items():
        assert pack(CONNECT, {identifier: value}) in broker.connect_packet
    broker.give(publish(b"a", b"x", properties=b"\x23\x00\x02"))  # a topic alias, which was allowed
    broker.give(publish(b"", b"y", properties=b"\x23\x00\x02"))
    assert [message[0] for message in broker.messages] == ["a", "a"]


@pytest.mark.req("W12", "W13")
def test_limits_above_those_of_store_and_buffer_are_lowered():
    given = {RECEIVE_MAXIMUM: 65535, MAXIMUM_PACKET_SIZE: 5000}
    broker = Peer5(buffer_bytes=512)
    broker.connection.five = broker.session.five = Level5(properties=given)
    broker.connect()
    for block in ({RECEIVE_MAXIMUM: 40}, {MAXIMUM_PACKET_SIZE: 512}):
        assert pack(CONNECT, block) in broker.connect_packet


@pytest.mark.req("W12")
@pytest.mark.parametrize(
    "options",
    [
        {"expiry_s": "60"},
        {"expiry_s": -1},
        {"expiry_s": None},
        {"expiry_s": 1 << 32},
        {"alias_maximum": 65536},
        {"alias_maximum": -1},
        {"properties": 5},
        {"properties": "x"},
        {"properties": {0x99: 1}},
        {"properties": {RECEIVE_MAXIMUM: 0}},
        {"properties": {MESSAGE_EXPIRY_INTERVAL: 5}},
        {"will_properties": {SESSION_EXPIRY_INTERVAL: 5}},
    ],
)
def test_invalid_settings_are_refused_when_they_are_made(options):
    with pytest.raises(UsageError):
        Level5(**options)


@pytest.mark.req("W12", "Q6")
@pytest.mark.clause("MQTT-3.3.4-7", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
def test_receive_maximum_limits_the_window():
    broker = connected(window=4, properties=b"\x21\x00\x02")
    for i in range(4):
        broker.session.publish(b"a", bytes([i]), 1)
    assert broker.took() == [publish(b"a", b"\0", 1, 2), publish(b"a", b"\1", 1, 3)]
    broker.give(ack(0x40, 2))
    assert broker.took() == [publish(b"a", b"\2", 1, 4)]


@pytest.mark.req("W12", "Q6")
@pytest.mark.clause("MQTT-3.3.4-7")
def test_receive_maximum_limits_retransmits():
    broker = connected(window=4)
    for i in range(4):
        broker.session.publish(b"a", bytes([i]), 1)
    assert len(broker.took()) == 4
    broker.drop()
    broker.properties = b"\x21\x00\x01"
    assert broker.connect(1) == [publish(b"a", b"\0", 1, 2, dup=1)]
    for i in (3, 4, 5):
        broker.give(ack(0x40, i - 1))
        assert broker.took() == [publish(b"a", bytes([i - 2]), 1, i, dup=1)]


@pytest.mark.req("W12", "S5")
@pytest.mark.clause("MQTT-3.2.2-11", "MQTT-3.2.2-14", "MQTT-3.2.2-15")
@pytest.mark.parametrize(
    "limits, qos, retain, size, code",
    [
        (b"\x27\x00\x00\x00\x20", 1, False, 100, 0x95),
        (b"\x25\x00", 1, True, 1, 0x9A),
    ],
)
def test_message_over_server_limits_is_not_sent_and_reported(limits, qos, retain, size, code):
    broker = connected(properties=limits)
    handle = broker.session.publish(b"a", b"x" * size, qos, retain)
    good = broker.session.publish(b"a", b"good", 1)
    assert broker.took() == [publish(b"a", b"good", 1, good)]
    broker.process()
    assert broker.handled[-1] == (REFUSED, handle)
    assert broker.session.code == code and not broker.session.delivered(handle)


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-4.4.0-2")
@pytest.mark.parametrize("qos, answer, code", [(1, 0x40, 0x87), (2, 0x50, 0x97), (1, 0x40, 0x10)])
def test_reason_code_of_an_acknowledgement_reaches_the_caller(qos, answer, code):
    broker = connected()
    handle = broker.session.publish(b"a", b"x", qos)
    broker.took()
    broker.give(ack(answer, 2, code))
    assert broker.handled[-1] == (REFUSED if code >= 0x80 else 4, handle)
    assert broker.session.code == code
    assert broker.took() == []
    assert broker.session.store.waiting == 0


@pytest.mark.req("W12", "Q2")
def test_pubcomp_with_packet_id_not_found_means_delivered():
    broker = connected()
    handle = broker.session.publish(b"a", b"x", 2)
    broker.took()
    broker.give(ack(0x50, 2))
    broker.took()
    broker.drop()  # PUBCOMP is lost: the server has accepted the message, and forgotten its packet id (MQTT 5, 3.7.2.1)
    assert broker.connect(1) == [ack(0x62, 2)]
    broker.give(ack(0x70, 2, 0x92))
    assert broker.handled[-1] == (DELIVERED, handle)
    assert broker.session.delivered(handle)


@pytest.mark.req("W12", "Q2", "Q4")
def test_unknown_packet_ids_are_answered_with_reason_0x92():
    broker = connected()
    broker.give(ack(0x50, 77), ack(0x62, 78))
    assert broker.took() == [ack(0x62, 77, 0x92), ack(0x70, 78, 0x92)]


@pytest.mark.req("W11", "W12")
def test_refused_subscription_has_the_reason_code():
    broker = connected()
    entry = requests_of(broker.session).want(b"x", 1)
    (request,) = broker.took()
    assert request == packet(0x82, request[2:4], b"\0", text(b"x"), b"\1")
    broker.give(packet(0x90, number(id_of(request)), b"\0", b"\x87"))
    assert entry.state == DECLINED and entry.code == 0x87


@pytest.mark.req("W12")
def test_topic_aliases_of_the_server_are_resolved():
    broker = connected(alias_maximum=258)
    alias = b"\x23\x01\x02"
    broker.give(publish(b"long/topic", b"1", properties=alias))
    broker.give(publish(b"", b"2", properties=alias), publish(b"other", b"3"))
    broker.give(publish(b"", b"4", 2, 9, properties=alias))
    broker.give(ack(0x62, 9))
    assert [(m[0], m[1]) for m in broker.messages] == [
        ("long/topic", b"1"),
        ("long/topic", b"2"),
        ("other", b"3"),
        ("long/topic", b"4"),
    ]
    with pytest.raises(MalformedPacket) as wrong:
        broker.give(publish(b"a", b"x", properties=b"\x23\x01\x03"))
    assert wrong.value.reason == 0x94


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.3.2-7")
def test_server_topic_aliases_end_with_the_connection():
    broker = connected(alias_maximum=5)
    broker.give(publish(b"a", b"1", properties=b"\x23\x00\x02"))
    broker.drop()
    broker.connect(1)
    with pytest.raises(MalformedPacket):
        broker.give(publish(b"", b"2", properties=b"\x23\x00\x02"))


@pytest.mark.req("W12", "Q0")
@pytest.mark.clause("MQTT-3.2.2-17")
def test_topic_aliases_are_sent_up_to_the_server_maximum():
    broker = connected(properties=b"\x22\x00\x01")
    for topic in (bytearray(b"a"), bytearray(b"a"), b"a", b"b"):
        assert broker.session.put_unstored(topic, b"x")
    assert broker.took() == [
        publish(b"a", b"x", properties=b"\x23\x00\x01"),
        publish(b"", b"x", properties=b"\x23\x00\x01"),
        publish(b"", b"x", properties=b"\x23\x00\x01"),
        publish(b"b", b"x"),
    ]


@pytest.mark.req("W12", "W9")
@pytest.mark.clause("MQTT-3.3.2-8")
def test_topic_alias_is_used_only_after_its_topic_was_sent():
    broker = connected(properties=b"\x22\x00\x05", buffer_bytes=64, out_bytes=64, packet_bytes=64)
    session = broker.session
    for _ in range(2):  # an invalid topic gets no alias, so the second call is refused as well
        with pytest.raises(InvalidTopic):
            session.put_unstored(b"a/#", b"x")
    assert session.put_unstored(b"a", b"x" * 50)
    assert not session.put_unstored(b"b", b"y" * 50)  # the output has no room
    assert broker.took() == [publish(b"a", b"x" * 50, properties=b"\x23\x00\x01")]
    assert session.put_unstored(b"b", b"y")
    assert broker.took() == [publish(b"b", b"y", properties=b"\x23\x00\x02")]


@pytest.mark.req("W12", "R3")
@pytest.mark.clause("MQTT-3.2.2-11")
def test_server_with_maximum_qos_1_gets_qos_2_messages_at_qos_1():
    broker = Peer5(CutStore(), properties=b"\x24\x01")
    stored = broker.session.publish(b"a", b"stored", 2)
    broker.connect()
    live = broker.session.publish(b"a", b"live", 2, True)
    broker.took()
    broker.give(ack(0x40, stored), ack(0x40, live))
    assert broker.took() == [] and broker.session.delivered(stored) and broker.session.delivered(live)
    broker.session.publish(b"a", b"open", 2)
    assert broker.took() == [publish(b"a", b"open", 1, 4)]
    broker.drop()
    assert broker.connect(1) == [publish(b"a", b"open", 1, 4, dup=1)]
    broker.drop()
    broker.properties = b""  # as with another broker, or a newer version of it
    assert broker.connect(1) == [publish(b"a", b"open", 2, 4, dup=1)]


@pytest.mark.req("W12", "R3")
@pytest.mark.clause("MQTT-3.2.2-11")
def test_maximum_qos_0_refuses_qos_1_and_2_messages():
    broker = connected(properties=b"\x24\x00")
    handles = [broker.session.publish(b"a", b"x", qos) for qos in (1, 2)]
    assert broker.took() == []
    broker.process()
    assert broker.handled[-2:] == [(REFUSED, handle) for handle in handles]
    assert broker.session.code == 0x9B and broker.session.store.waiting == 0


@pytest.mark.req("W12", "Q0")
@pytest.mark.clause("MQTT-3.2.2-14", "MQTT-3.2.2-15")
def test_qos_0_message_over_server_limits_is_not_sent():
    broker = Peer5(properties=b"\x25\x00\x27\x00\x00\x00\x20")  # no retained messages; packets of at most 32 bytes
    broker.connect()
    assert broker.session.put_unstored(b"a", b"x", True)
    assert broker.session.put_unstored(b"a", b"x" * 27)
    assert broker.session.put_unstored(b"a", b"x" * 2000)
    assert broker.took() == []
    assert broker.session.put_unstored(b"a", b"x" * 26)
    (sent,) = broker.took()
    assert len(sent) == 32


@pytest.mark.req("W12")
@pytest.mark.clause("5:MQTT-3.2.2-15")
@pytest.mark.parametrize("topic", [b"a", b"a/b", b"a/long/topic"])
def test_qos_0_message_with_an_alias_is_not_longer_than_the_server_accepts(topic):
    for limit in (20, 130, 200):
        for size in range(limit - 30, limit):
            broker = connected(properties=b"\x27" + bytes((0, 0, 0, limit)) + b"\x22\0\5")
            whole = len(publish(topic, b"x" * max(size, 0)))
            for _ in range(2):
                assert broker.session.put_unstored(topic, b"x" * max(size, 0))
            sent = broker.took()
            assert len(sent) == (2 if whole <= limit else 0) and all([len(one) <= limit for one in sent])  # noqa: C419


@pytest.mark.req("W12", "Q4")
def test_message_with_alias_of_a_long_topic_is_held_completely():
    broker = connected(alias_maximum=1, buffer_bytes=128, packet_bytes=128)
    topic, payload = b"t" * 100, b"p" * 100
    broker.give(publish(topic, b"", properties=b"\x23\x00\x01"))
    broker.give(publish(b"", payload, 2, 7, properties=b"\x23\x00\x01"))
    assert broker.took() == [ack(0x50, 7)]
    broker.give(ack(0x62, 7))
    assert broker.messages[-1][:2] == (topic.decode(), payload)


@pytest.mark.req("W12")
def test_properties_are_sent_and_received_with_a_message():
    broker = connected()
    block = b"\x26" + text(b"k") + text(b"v")
    broker.session.publish(b"a", b"x", 1, False, block)
    assert broker.took() == [publish(b"a", b"x", 1, 2, properties=block)]
    seen = []
    broker.on_message = lambda message: seen.append(message.properties)
    broker.give(publish(b"a", b"y", 0, properties=block), publish(b"a", b"z", 2, 7, properties=block))
    broker.give(ack(0x62, 7))
    assert seen == [{USER_PROPERTY: [("k", "v")]}] * 2


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-4.13.2-1")
def test_server_disconnect_raises_its_reason_code():
    broker = connected()
    with pytest.raises(ConnectionLost) as caught:
        broker.give(b"\xe0\x01\x8e")
    assert caught.value.code == 0x8E


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-4.12.0-6", "MQTT-4.12.0-7")
def test_auth_packet_ends_the_connection_with_protocol_error():
    broker = connected()
    with pytest.raises(ProtocolError) as caught:
        broker.give(b"\xf0\x00")
    broker.connection.put_error_disconnect(caught.value)
    assert split(broker.offered()) == [packet(0xE0, b"\x82")]


@pytest.mark.req("W12", "W13")
@pytest.mark.clause("MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "wrong, code",
    [(b"\x00\x00", 0x81), (b"\x20\x03\x00\x00\x00", 0x82), (b"\x30\xff\x7f", 0x95)],
)
def test_protocol_violation_is_answered_by_disconnect_with_reason_code(wrong, code):
    broker = connected()
    try:
        broker.give(wrong)
        pytest.fail("the packet was accepted")
    except (MalformedPacket, ProtocolError, Exception) as error:
        broker.connection.put_error_disconnect(error)
    assert split(broker.offered()) == [packet(0xE0, bytes([code]))]


def refused_by(broker, *packets):
    """Send packets of which one ends the connection; return what the client sends then."""
    with pytest.raises(MalformedPacket) as caught:
        broker.give(*packets)
    broker.took()
    broker.connection.put_error_disconnect(caught.value)
    return split(broker.offered())


@pytest.mark.req("W12", "W13", "R4")
@pytest.mark.parametrize(
    "topic, properties, code",
    [
        (b"a", b"\x01\x02", 0x82),  # mosquitto passes on a Payload Format Indicator of 2
        (b"a", b"\x08" + text(b"a/#"), 0x82),  # and a Response Topic with a wildcard
        (b"a", b"\x23\x00\x05", 0x94),
        (b"", b"", 0x82),
        (b"a/#", b"", 0x81),
    ],
)
def test_message_that_no_conforming_server_sends_is_acknowledged_before_the_connection_ends(topic, properties, code):
    for qos in (1, 2):
        broker = connected()
        wrong = publish(topic, b"x", qos, 7, properties=properties)
        good = publish(b"a", b"x", 0)
        assert refused_by(broker, good, wrong, good) == [ack(0x30 + 0x10 * qos, 7, 0x80), packet(0xE0, bytes([code]))]
        assert len(broker.messages) == 1


@pytest.mark.req("W12", "W13", "R4")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_message_that_no_conforming_server_sends_does_not_end_each_connection(qos):
    broker = connected()
    for filter_, options in ((b"in/#", 0x19), (b"in/+", 2), (b"out", 1)):
        requests_of(broker.session).want(filter_, options)
    broker.give(suback5(id_of(broker.took()[0]), 1, 2, 1))
    for retain in (0, 1):
        refused_by(broker, publish(b"in/a", b"x", qos, 7, retain=retain, properties=b"\x01\x02"))
        broker.fail()
        (asked,) = broker.connect()
        filters = (
            ((b"in/#", 0x29), (b"in/+", 0x22), (b"out", 1)) if retain else ((b"in/#", 0x19), (b"in/+", 2), (b"out", 1))
        )
        assert asked == subscribe5(id_of(asked), b"", *filters)
        broker.give(suback5(id_of(asked), 1, 2, 1))
    requests_of(broker.session).want(b"in/+", 2)  # the program asks anew
    (asked,) = broker.took()
    assert asked == subscribe5(id_of(asked), b"", (b"in/+", 2))


@pytest.mark.req("W12", "W13")
def test_good_retained_message_behind_a_protocol_error_is_asked_for_again():
    broker = connected()
    requests_of(broker.session).want(b"a", 1)
    broker.give(suback5(id_of(broker.took()[0]), 1))
    good = publish(b"a", b"x", 0, retain=1)
    with pytest.raises(ProtocolError) as caught:
        broker.give(connack() + good + good)
    broker.connection.put_error_disconnect(caught.value)
    broker.fail()
    (asked,) = broker.connect()
    assert asked == subscribe5(id_of(asked), b"", (b"a", 1))


@pytest.mark.req("W12", "R4")
@pytest.mark.parametrize(
    "last, code", [(connack(), 0x82), (b"\x36", 0x81), (b"\x36\x80", 0x81), (b"\x36\xff\xff", 0x81)]
)
def test_wrong_packet_in_the_last_bytes_of_the_buffer_ends_the_connection_by_name(last, code):
    broker = connected()
    with pytest.raises((MalformedPacket, ProtocolError)) as caught:
        broker.give(publish(b"a", bytes(1024 - 7 - len(last))) + last)  # the buffer has 1024 bytes
    broker.connection.put_error_disconnect(caught.value)
    assert split(broker.offered()) == [packet(0xE0, bytes([code]))]


@pytest.mark.req("W13", "R4")
def test_length_of_five_bytes_acknowledges_no_message():
    broker = connected()
    octets = b"\x32\xff\xff\xff\xff\x00\x01a\x00\x07x"  # without a valid length, nothing says where the packet id is
    assert refused_by(broker, octets) == [packet(0xE0, b"\x81")]


@pytest.mark.req("W12")
def test_local_error_ends_the_connection_without_disconnect_packet():
    class Failed(ValueError):
        reason = "a text, as ssl's errors and Unicode's have"

    for error in (Failed(), OSError(104), InvalidTopic(b"#")):
        broker = Peer5()
        broker.connect()
        broker.connection.put_error_disconnect(error)
        assert broker.took() == []


@pytest.mark.req("W12", "Q4")
@pytest.mark.clause("MQTT-3.3.4-9")
def test_message_over_our_receive_maximum_causes_a_reconnect():
    broker = Peer5(RamStore(hold_limit=2))
    broker.connect()
    assert b"\x21\x00\x02" in broker.connect_packet
    broker.give(publish(b"a", b"1", 2, 1), publish(b"a", b"2", 2, 2), publish(b"a", b"3", 2, 3))
    assert broker.took() == [ack(0x50, 1), ack(0x50, 2)]
    broker.give(ack(0x62, 1), ack(0x62, 2))
    assert broker.took() == [ack(0x70, 1), ack(0x70, 2), b"\xe0\x00"]


@pytest.mark.req("Q5")
@pytest.mark.clause("MQTT-4.4.0-1")
def test_level_5_does_not_retransmit_on_open_connection():
    broker = connected()
    broker.session.publish(b"a", b"x", 1)
    broker.took()
    for t in range(0, 25000, 500):
        broker.now = 1000 + t
        broker.connection.check(broker.now)
    assert broker.took() == []


def with_an_empty_store():
    """Return a broker whose client has published one message, to a store that was never connected."""
    broker = Peer5()
    broker.session = Session(CutStore(), 5, 4)
    broker.connection = type(broker.connection)(broker.session, b"me", five=Level5())
    broker.session.publish(b"a", b"x", 2)
    return broker


@pytest.mark.req("W8", "Q8")
def test_empty_store_needs_one_connection_and_no_clean_start():
    broker = with_an_empty_store()
    # mosquitto 2.0 does not save a session that a clean start began.
    assert broker.connect(0) == [publish(b"a", b"x", 2, 1)]
    assert broker.connect_packet[9] & 2 == 0
    broker.drop()
    assert broker.connect(1) == [publish(b"a", b"x", 2, 1, dup=1)]
    assert broker.connect_packet[9] & 2 == 0


@pytest.mark.req("W8", "Q8")
@pytest.mark.clause("5:MQTT-3.1.2-4")
def test_empty_store_discards_an_old_session_at_the_broker_by_a_clean_start():
    broker = with_an_empty_store()
    assert broker.connect(1) == [b"\xe0\x00"]
    broker.drop()
    assert broker.connect(0) == [publish(b"a", b"x", 2, 1)]
    assert broker.connect_packet[9] & 2 == 2
    broker.drop()
    assert broker.connect(1) == [publish(b"a", b"x", 2, 1, dup=1)]
    assert broker.connect_packet[9] & 2 == 0


def identified(number_):
    return pack(8, {SUBSCRIPTION_IDENTIFIER: number_})


def subscribe5(packet_id, properties, *filters):
    octets = b"".join([text(filter_) + bytes([qos]) for filter_, qos in filters])
    return packet(0x82, number(packet_id), length(len(properties)), properties, octets)


def suback5(packet_id, *codes):
    return packet(0x90, number(packet_id), b"\x00", bytes(codes))


@pytest.mark.req("W12")
def test_each_subscription_identifier_has_its_own_packet_and_is_restored():
    broker = connected()
    session = broker.session
    one = requests_of(session).want(b"a", 1, None, identified(7))
    other = requests_of(session).want(b"b", 0, None, identified(300))
    both = requests_of(session).want(b"c", 0, None, identified(7))
    plain = requests_of(session).want(b"d", 2)
    for present in (0, 0):
        for expected in (
            (b"\x0b\x07", (b"a", 1), (b"c", 0)),
            (b"\x0b\xac\x02", (b"b", 0)),
            (b"", (b"d", 2)),
        ):
            (asked,) = broker.took()
            assert asked == subscribe5(id_of(asked), *expected)
            broker.give(suback5(id_of(asked), *[qos for _, qos in expected[1:]]))
        assert broker.took() == []
        assert [entry.code for entry in (one, other, both, plain)] == [1, 0, 0, 2]
        broker.drop()
        broker.start()
        broker.give(connack(present))


@pytest.mark.req("W12")
def test_message_has_the_identifiers_of_matching_subscriptions():
    broker = connected()
    seen = []
    broker.on_message = lambda message: seen.append(message.properties)
    broker.give(publish(b"a", b"x", 0, properties=b"\x0b\x07\x0b\xac\x02"))
    assert seen == [{SUBSCRIPTION_IDENTIFIER: [7, 300]}]


@pytest.mark.req("W12", "W11")
def test_subscription_identifier_without_server_support_is_declined():
    broker = Peer5(properties=b"\x29\x00")  # Subscription Identifiers Available: 0
    broker.connect()
    refused = requests_of(broker.session).want(b"a", 1, None, identified(7))
    plain = requests_of(broker.session).want(b"b", 1)
    (asked,) = broker.took()
    assert asked == subscribe5(id_of(asked), b"", (b"b", 1))
    broker.give(suback5(id_of(asked), 1))
    assert refused.state == DECLINED and refused.code == 0xA1
    assert plain.code == 1 and broker.took() == []


@pytest.mark.req("W12", "W11")
@pytest.mark.parametrize(
    "available,code,filters",
    [
        (b"\x28\x00", 0xA2, [b"a/#", b"+/b", b"$share/g/a/+"]),  # Wildcard Subscription Available: 0
        (b"\x2a\x00", 0x9E, [b"$share/g/a"]),  # Shared Subscription Available: 0
    ],
)
def test_subscription_that_the_server_does_not_support_is_declined_and_not_sent(available, code, filters):
    broker = Peer5(properties=available)
    broker.connect()
    refused = [requests_of(broker.session).want(one, 1) for one in filters]
    plain = requests_of(broker.session).want(b"b", 1)
    (asked,) = broker.took()  # else the server would end every connection (5, sections 3.2.2.3.11 and 3.2.2.3.13)
    assert asked == subscribe5(id_of(asked), b"", (b"b", 1))
    broker.give(suback5(id_of(asked), 1))
    assert [one.code for one in refused] == [code] * len(filters) and plain.code == 1
    unwant(broker.session, filters[0])  # such as one that an earlier server granted
    (asked,) = broker.took()
    assert asked[0] == 0xA2 and filters[0] in asked
    broker.drop()
    broker.properties = b""
    asked = b"".join(broker.connect(1))  # this server supports them
    assert all(one in asked for one in filters[1:])


@pytest.mark.req("W12", "W11")
def test_unanswered_subscription_that_the_next_server_does_not_support_does_not_stop_the_others():
    broker = Peer5()
    broker.connect()
    refused = requests_of(broker.session).want(b"a/#", 1)
    broker.took()
    broker.fail()
    broker.properties = b"\x28\x00"  # Wildcard Subscription Available: 0
    plain = requests_of(broker.session).want(b"b", 1)
    (asked,) = broker.connect(1)
    assert asked == subscribe5(id_of(asked), b"", (b"b", 1))
    broker.give(suback5(id_of(asked), 1))
    assert refused.code == 0xA2 and plain.code == 1


@pytest.mark.req("W12", "W13")
def test_client_with_chunks_sends_no_maximum_packet_size():
    session = Session(RamStore(), 5, 4)
    session.note.begin(b"me", b"")
    broker = Peer(session, b"me", buffer_bytes=64, five=Level5(alias_maximum=1), chunks=True)
    broker.connection.start(0)
    (first,) = broker.took()
    assert b"\x27\x00\x00\x00\x40" not in first
    broker.give(connack())
    seen = []
    broker.on_message = lambda message: seen.append((message.topic, message.payload, message.properties))
    broker.give(publish(b"a", b"", properties=b"\x23\x00\x01"))
    broker.give(publish(b"", bytes(100), 1, 5, properties=b"\x0b\x07\x23\x00\x01"))
    assert {topic for topic, _, _ in seen} == {"a"}
    assert b"".join([part for _, part, _ in seen]) == bytes(100)
    for _, _, properties in seen[1:]:
        assert properties[SUBSCRIPTION_IDENTIFIER] == [7]
    assert broker.took() == [ack(0x40, 5)]


@pytest.mark.req("W12", "Q6")
@pytest.mark.clause("MQTT-3.3.4-8", "MQTT-4.9.0-3", "MQTT-4.9.0-2")
def test_receive_maximum_delays_only_publish_above_qos_0():
    broker = connected(properties=b"\x21\x00\x01")
    broker.session.publish(b"a", b"1", 2)
    assert len(broker.took()) == 1
    broker.session.publish(b"a", b"2", 1)
    assert broker.took() == []
    broker.session.put_unstored(b"a", b"0")
    requests_of(broker.session).want(b"s", 1)
    broker.give(publish(b"b", b"3", 1, 9), ack(0x50, 2))
    assert [one[0] for one in broker.took()] == [0x30, 0x40, 0x62, 0x82]


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.2.2-18")
def test_no_topic_alias_is_sent_without_server_support():
    broker = connected()
    for _ in range(2):
        assert broker.session.put_unstored(b"a", b"x")
    assert broker.took() == [publish(b"a", b"x")] * 2


@pytest.mark.req("Q8")
@pytest.mark.clause("MQTT-3.1.3-2", "5:MQTT-3.1.2-23")
@pytest.mark.parametrize("level", [4, 5])
def test_next_connection_uses_same_client_id_and_resumes_flows(level):
    broker = Peer5(expiry_s=60) if level == 5 else peer()
    broker.connect()
    first = broker.connect_packet
    broker.session.publish(b"a", b"x", 2)
    (sent,) = broker.took()
    broker.drop()
    assert broker.connect(1) == [bytes([sent[0] | 8]) + sent[1:]]
    assert text(b"me") in first and text(b"me") in broker.connect_packet


@pytest.mark.req("Q8", "W13")
@pytest.mark.clause("5:MQTT-3.2.2-4")
@pytest.mark.parametrize("level", [4, 5])
def test_session_present_after_a_clean_start_ends_the_connection(level):
    if level == 5:
        broker = Peer5()
        broker.connection.clean = True
    else:
        broker = peer(clean=True)
    broker.start()
    with pytest.raises(ProtocolError):
        broker.give(connack(1) if level == 5 else packet(0x20, b"\x01\x00"))


@pytest.mark.req("Q8")
@pytest.mark.clause("5:MQTT-3.2.2-5")
def test_flows_start_again_if_broker_lost_the_session():
    broker = connected()
    seen = broker.session.publish(b"a", b"seen", 2)
    open_ = broker.session.publish(b"a", b"open", 2)
    broker.took()
    broker.give(ack(0x50, seen), publish(b"b", b"held", 2, 9))
    broker.took()
    broker.drop()
    # Both messages are sent as new ones, in order. The held message is handed over, because its PUBREL can't come any more.
    assert broker.connect(0) == [publish(b"a", b"seen", 2, seen), publish(b"a", b"open", 2, open_)]
    assert broker.handled[-1] == (IN_DOUBT, seen)
    assert [message[:2] for message in broker.messages] == [("b", b"held")]
    broker.give(ack(0x62, 9))
    assert broker.took() == [ack(0x70, 9, 0x92)]


def expires_in(seconds):
    return pack(3, {MESSAGE_EXPIRY_INTERVAL: seconds})


@pytest.mark.req("Q2")
@pytest.mark.clause("MQTT-4.3.3-7")
def test_sent_qos_2_message_does_not_expire():
    broker = connected(CutStore())
    for payload in (b"seen", b"open"):
        broker.session.publish(b"a", payload, 2, False, expires_in(1))
    broker.took()
    broker.give(ack(0x50, 2))
    broker.took()
    broker.drop()
    broker.now += 10000
    again = Peer5(broker.session.store.cut())
    assert again.connect(1) == [ack(0x62, 2), publish(b"a", b"open", 2, 3, dup=1, properties=expires_in(1))]


@pytest.mark.req("Q4")
@pytest.mark.clause("MQTT-4.3.3-13")
def test_held_message_past_its_expiry_completes_its_flow():
    broker = connected()
    broker.give(publish(b"a", b"x", 2, 9, properties=expires_in(1)))
    assert broker.took() == [ack(0x50, 9)]
    broker.now += 10000
    broker.give(ack(0x62, 9))
    assert broker.took() == [ack(0x70, 9)]
    assert [message[:2] for message in broker.messages] == [("a", b"x")]


# --- duplicates of a held message ---


def alias(topic, n):
    """Return a QoS 0 PUBLISH that sets an alias for a topic."""
    return publish(topic, b"-", properties=b"\x23" + number(n))


@pytest.mark.req("Q4", "W12")
def test_held_message_repeated_with_other_properties_is_a_duplicate():
    broker = connected(alias_maximum=5)
    long = b"x" * 200
    broker.give(publish(b"t" * 100, long, 2, 9, properties=expires_in(300) + b"\x03" + text(b"y" * 120)))
    assert broker.took() == [ack(0x50, 9)]
    for again in (expires_in(299), b"", expires_in(1) + b"\x03" + text(b"y" * 200)):
        broker.drop()
        broker.connect(1)
        broker.give(publish(b"t" * 100, long, 2, 9, dup=1, properties=again))
        assert broker.took() == [ack(0x50, 9)]
    broker.drop()
    broker.connect(1)
    broker.give(alias(b"t" * 100, 2), publish(b"", long, 2, 9, dup=1, properties=b"\x23\x00\x02" + expires_in(1)))
    assert broker.took() == [ack(0x50, 9)]
    broker.give(ack(0x62, 9))
    assert [message[1] for message in broker.messages] == [b"-", long]


@pytest.mark.req("Q4", "W12")
@pytest.mark.parametrize(
    ("topic", "payload"),
    [(b"a", b"other"), (b"b", b"once!"), (b"ao", b"nce!"), (b"a", b"once!!"), (b"a", b"")],
)
def test_new_message_with_packet_id_of_held_one_is_no_duplicate(topic, payload):
    broker = connected()
    broker.give(publish(b"a", b"once!", 2, 9, properties=expires_in(300)))
    broker.drop()
    broker.connect(1)
    broker.give(publish(topic, payload, 2, 9, properties=expires_in(300)))
    broker.give(ack(0x62, 9))
    assert [(message[0], message[1]) for message in broker.messages] == [
        ("a", b"once!"),
        (str(topic, "utf-8"), payload),
    ]


@pytest.mark.req("Q4", "W12")
@pytest.mark.parametrize(("first", "then"), [(4, 5), (5, 4), (5, 5), (4, 4)])
def test_held_message_repeated_at_any_level_is_a_duplicate(first, then):
    store = CutStore()
    lives = []
    for level in (first, then):
        if level == 5:
            life = Peer5(store)
            again = publish(b"topic", b"once", 2, 9, dup=len(lives), properties=expires_in(300 - len(lives)))
        else:
            life = peer(store)
            again = publish4(b"topic", b"once", 2, 9, len(lives))
        life.connect(1)
        life.give(again)
        assert life.took() == [ack(0x50, 9)]
        store = store.cut()
        lives.append(life)
    life.give(ack(0x62, 9))
    assert [message[:2] for message in life.messages] == [("topic", b"once")] and not lives[0].messages


# --- the server's limits, reasons and properties ---


@pytest.mark.req("W11", "W12")
def test_subscribe_over_maximum_packet_size_is_declined_and_others_split():
    broker = connected(properties=b"\x27\x00\x00\x00\x28")  # Maximum Packet Size: 40
    long = requests_of(broker.session).want(b"x" * 40, 1)
    short = [requests_of(broker.session).want(b"%d" % i * 12, 1) for i in range(3)]
    asked = []
    for _ in range(6):
        for request in broker.took():
            assert request[0] == 0x82 and len(request) <= 40
            count = sum(request.count(b"%d" % i * 12) for i in range(3))
            asked.append(count)
            broker.give(packet(0x90, number(id_of(request)), b"\0", b"\1" * count))
    assert asked == [1, 1, 1] or sum(asked) == 3
    with pytest.raises(Refused) as raised:
        long.granted()
    assert raised.value.code == 0x95
    assert [entry.granted() for entry in short] == [1, 1, 1]


@pytest.mark.req("W12", "R3")
def test_unsubscribe_over_maximum_packet_size_is_refused_and_others_split():
    broker = connected(properties=b"\x27\x00\x00\x00\x28")  # Maximum Packet Size: 40
    session = broker.session
    short = [unwant(session, b"%d" % i * 12) for i in range(3)]
    long = unwant(session, b"x" * 40)
    asked = 0
    for _ in range(6):
        for request in broker.took():
            assert request[0] == 0xA2 and len(request) <= 40
            count = sum(request.count(b"%d" % i * 12) for i in range(3))
            asked += count
            broker.give(packet(0xB0, number(id_of(request)), b"\0", b"\0" * count))
    assert asked == 3
    with pytest.raises(Refused) as raised:
        long.granted()
    assert raised.value.code == 0x95
    assert [entry.granted() for entry in short] == [0, 0, 0]
    assert session.subscriptions == [] and broker.took() == []
    broker.now += 3600000
    session.overdue_ms(broker.now)
    assert broker.took() == []  # it is not requested later either


@pytest.mark.req("W12")
@pytest.mark.clause("5:MQTT-3.1.2-21", "MQTT-3.2.2-21", "MQTT-4.13.2-1")
def test_properties_of_connack_are_used_and_reason_strings_reach_the_program():
    text_ = b"\x1f" + text(b"no such topic")
    broker = connected(properties=b"\x12" + text(b"given") + b"\x13\x00\x0a")
    assert broker.connection.five.granted == {0x12: "given", 0x13: 10} and broker.connection.keep_alive_ms == 10_000
    broker.session.publish(b"a", b"x", 1)
    broker.took()
    broker.give(packet(0x40, number(2), b"\x90", length(len(text_)), text_))
    assert broker.handled[-1] == (REFUSED, 2) and broker.connection.five.answer == {0x1F: "no such topic"}
    with pytest.raises(ConnectionLost):
        broker.give(packet(0xE0, b"\x8b", length(len(text_)), text_))
    assert broker.connection.five.answer == {0x1F: "no such topic"}
    broker.drop()
    broker.connection.five.answer = {}
    broker.start()
    with pytest.raises(ConnectRefused) as refused:
        broker.give(packet(0x20, b"\x00\x87", length(len(text_)), text_))
    assert refused.value.code == 0x87 and "not authorized" in str(refused.value)
    assert broker.connection.five.answer == {0x1F: "no such topic"}


@pytest.mark.req("W12")
def test_disconnect_carries_given_reason_code_and_session_expiry():
    broker = connected()
    five = broker.connection.five
    broker.connection.disconnect(4, five.disconnect_properties(4, 60))
    assert broker.offered() == packet(0xE0, b"\x04\x05\x11\x00\x00\x00\x3c")


@pytest.mark.req("W12", "W9")
def test_empty_topic_at_qos_0_is_refused():
    broker = connected(properties=b"\x22\x00\x05")
    for properties in (None, pack(3, {USER_PROPERTY: ("a", "b")})):
        with pytest.raises(InvalidTopic):
            broker.session.put_unstored(b"", b"x", False, properties)
    assert broker.took() == []


@pytest.mark.req("W8", "W12", "R4")
@pytest.mark.parametrize("own", [b"", b"mine"])
def test_assigned_client_id_that_connect_can_not_hold_is_not_kept(own):
    broker = Peer5(out_bytes=64, properties=b"\x12" + text(b"x" * 40))
    broker.connection.client_id = own
    broker.session.publish(b"a", b"x", 1)
    for _ in range(2):
        (sent,) = broker.connect()
        assert sent == publish(b"a", b"x", 1, 2)
        broker.drop()
    assert broker.connect_packet.endswith(text(own))


@pytest.mark.req("W8", "W12")
def test_assigned_client_id_is_noted_and_used_on_reconnect():
    broker = Peer5(CutStore(), properties=b"\x12" + text(b"given"))
    broker.connection.client_id = b""
    broker.connect()
    assert broker.session.note.is_of(b"given", b"") and not broker.session.note.is_of(b"", b"")
    broker.drop()
    broker.properties = b""
    broker.connect(1)
    assert broker.connect_packet[9] & 2 == 0 and text(b"given") in broker.connect_packet
