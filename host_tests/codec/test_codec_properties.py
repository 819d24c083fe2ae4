"""For all inputs: written packets are read back, also when they arrive in pieces, and an independent codec agrees.

`make fuzz` runs these with many more examples (FLASHMQTT_EXAMPLES).
"""

import os

import pytest
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from flashmqtt.codec import properties
from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.encode import put_ack, put_connect, put_publish
from flashmqtt.codec.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from flashmqtt.codec.subscribe import put_subscribe, put_unsubscribe
from flashmqtt.codec.topics import check_filter, check_topic, matches
from flashmqtt.errors import InvalidTopic
from tools.proof.packets import Reader

EXAMPLES = settings(max_examples=int(os.environ.get("FLASHMQTT_EXAMPLES", "200")), deadline=None)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x00+#"), min_size=1, max_size=20).map(str.encode)
unshared = names.filter(lambda name: not name.startswith(b"$share/"))  # hypothesis finds that text in the sources
levels = st.sampled_from([3, 4, 5])
ids = st.integers(1, 65535)
parts = st.lists(st.integers(1, 50), min_size=1, max_size=5)


def in_pieces(decoder, packet, sizes):
    """Let the decoder receive a packet in pieces of these sizes, repeatedly; yield after each how much is left."""
    at = i = 0
    while at < len(packet):
        room = decoder.room()
        n = min(sizes[i % len(sizes)], len(room), len(packet) - at)
        i += 1
        room[:n] = packet[at : at + n]
        decoder.received(n)
        at += n
        yield len(packet) - at


@pytest.mark.req("W6", "W7", "W8", "W9")
@EXAMPLES
@given(names, st.binary(max_size=300), st.integers(0, 2), st.booleans(), st.booleans(), ids, levels, parts)
def test_publish_is_read_back(topic, payload, qos, retain, dup, packet_id, level, sizes):
    buf = bytearray(500)
    dup, packet_id = (dup, packet_id) if qos else (False, 0)
    packet = buf[: put_publish(buf, 0, topic, payload, qos, retain, dup, packet_id, level)]
    decoder = Decoder(len(packet), level)
    for left in in_pieces(decoder, packet, sizes):
        assert decoder.next() == (0 if left else PUBLISH)
    assert (decoder.topic, bytes(decoder.payload), decoder.qos) == (topic, payload, qos)
    assert (decoder.retain, decoder.dup, decoder.packet_id) == (retain, dup, packet_id)
    if level != 5:  # amqtt speaks 3.1.1
        other = PublishPacket.build(topic.decode(), payload, packet_id or None, dup, qos, retain)
        assert other.to_bytes() == packet


@pytest.mark.req("W13")
@EXAMPLES
@given(names, st.binary(max_size=2000), st.integers(60, 200), levels, parts)
def test_publish_of_any_length_streams_through_any_buffer(topic, payload, size, level, sizes):
    buf = bytearray(2200)
    packet = buf[
        : put_publish(buf, 0, topic[:40].decode(errors="ignore").encode() or b"t", payload, 1, packet_id=9, level=level)
    ]
    decoder = Decoder(size, level, True)
    got = bytearray()
    for _ in in_pieces(decoder, packet, sizes):
        while decoder.next():
            assert decoder.payload_offset == len(got) and decoder.payload_total == len(payload)
            got += decoder.payload
            assert decoder.more == (len(got) < len(payload))
    assert got == payload


@pytest.mark.req("W8")
@EXAMPLES
@given(st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]), ids, levels)
def test_acknowledgement_is_read_back(kind, packet_id, level):
    buf = bytearray(8)
    decoder = Decoder(8, level)
    decoder.feed(buf[: put_ack(buf, 0, kind, packet_id, level)])
    assert (decoder.next(), decoder.packet_id, decoder.code) == (kind, packet_id, 0)


@pytest.mark.req("W11")
@EXAMPLES
@given(st.lists(st.tuples(unshared, st.integers(0, 2)), min_size=1, max_size=5), ids, levels)
@example([(b"$share", 0)], 1, 5)
def test_subscribe_is_read_back(filters, packet_id, level):
    buf = bytearray(1000)
    packet = buf[: put_subscribe(buf, 0, packet_id, filters, level)]
    texts = [(filter_.decode(), options) for filter_, options in filters]
    (read,) = Reader(level).feed(packet)
    assert (read.kind, read.filters, read.packet_id) == (8, texts, packet_id)
    end = put_unsubscribe(buf, 0, packet_id, [filter_ for filter_, _ in filters], level)
    (read,) = Reader(level).feed(buf[:end])
    assert (read.kind, read.filters) == (10, [(filter_, 0) for filter_, _ in texts])
    if level != 5:
        other = SubscribePacket.build([(filter_.decode(), qos) for filter_, qos in filters], packet_id)
        assert other.to_bytes() == packet


@pytest.mark.req("W10")
@EXAMPLES
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=5),
    levels,
    st.booleans(),
    st.integers(0, 65535),
    st.none() | texts,
    st.none() | st.binary(max_size=20),
    st.none() | names,
    st.binary(max_size=20),
    st.integers(0, 2),
    st.booleans(),
)
def test_connect_is_read_back(client_id, level, clean, keep_alive_s, user, password, will_topic, payload, qos, retain):
    buf = bytearray(400)
    if user is None and level != 5:
        password = None
    end = put_connect(
        buf, 0, client_id.encode(), level, clean, keep_alive_s, None if user is None else user.encode(), password,
        will_topic, payload, qos, retain,
    )  # fmt: skip
    (read,) = Reader().feed(buf[:end])
    assert (read.kind, read.level, read.clean, read.keep_alive_s) == (1, level, clean, keep_alive_s)
    assert (read.client_id, read.user, read.password) == (client_id, user, password)
    assert read.topic == ("" if will_topic is None else will_topic.decode())
    if will_topic is not None:
        assert (read.payload, read.will_qos, read.will_retain) == (payload, qos, retain)


STRINGS = {0x12: "AssignedClientIdentifier", 0x1A: "ResponseInformation", 0x1C: "ServerReference", 0x1F: "ReasonString"}
NUMBERS = {
    0x11: ("SessionExpiryInterval", st.integers(0, 0xFFFFFFFF)),
    0x13: ("ServerKeepAlive", st.integers(0, 65535)),
    0x21: ("ReceiveMaximum", st.integers(1, 65535)),
    0x22: ("TopicAliasMaximum", st.integers(0, 65535)),
    0x24: ("MaximumQoS", st.integers(0, 1)),
    0x25: ("RetainAvailable", st.integers(0, 1)),
    0x27: ("MaximumPacketSize", st.integers(1, 268435455)),  # paho allows no more; the standard does
    0x28: ("WildcardSubscriptionAvailable", st.integers(0, 1)),
}


@pytest.mark.req("W12")
@EXAMPLES
@given(st.data())
def test_connack_properties_agree_with_paho(data):
    chosen = {}
    theirs = Properties(PacketTypes.CONNACK)
    for identifier, (name, values) in NUMBERS.items():
        if data.draw(st.booleans()):
            chosen[identifier] = data.draw(values)
            setattr(theirs, name, chosen[identifier])
    for identifier, name in STRINGS.items():
        if data.draw(st.booleans()):
            chosen[identifier] = data.draw(texts)
            setattr(theirs, name, chosen[identifier])
    pairs = data.draw(st.lists(st.tuples(texts, texts), max_size=3))
    if pairs:
        chosen[0x26] = pairs
        theirs.UserProperty = pairs
    block = properties.pack(2, chosen)
    assert properties.unpack(block, 0, len(block)) == chosen
    unpacked = Properties(PacketTypes.CONNACK)
    head = bytearray()
    n = len(block)
    while n > 127:
        head.append(n & 127 | 128)
        n >>= 7
    unpacked.unpack(bytes([*head, n]) + block)
    assert unpacked.json() == theirs.json()
    packed = theirs.pack()
    at = 1 + (len(packed) > 128)
    assert properties.unpack(packed, at, len(packed)) == chosen


levels_of = st.lists(st.sampled_from(["", "a", "b", "+", "#", "$x", "ä"]), min_size=1, max_size=4).map("/".join)


def model_matches(filter_: str, topic: str) -> bool:
    """Match level by level, as §4.7 says."""
    wanted, found = filter_.split("/"), topic.split("/")
    if topic[0] == "$" and wanted[0] in "+#" and wanted[0]:
        return False
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i == len(found) or level not in ("+", found[i]):
            return False if i < len(found) else wanted[i:] == ["#"]
    return len(wanted) == len(found)


@pytest.mark.req("W9")
@EXAMPLES
@given(levels_of, levels_of)
def test_topic_matching_agrees_with_a_simple_model(filter_, topic):
    valid = bool(filter_) and "#" not in filter_.split("/")[:-1]
    if not valid:
        with pytest.raises(InvalidTopic):
            check_filter(filter_.encode())
        return
    check_filter(filter_.encode())
    if not topic or "+" in topic or "#" in topic:
        with pytest.raises(InvalidTopic):
            check_topic(topic.encode())
        return
    check_topic(topic.encode())
    assert matches(filter_.encode(), topic.encode()) == model_matches(filter_, topic)
