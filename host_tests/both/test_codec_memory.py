"""Steady state allocates nothing; long messages stream through a small buffer, both ways; nothing is written outside it."""

import sys

import pytest

from flashmqtt.codec.aliases import InboundAliases, OutboundAliases
from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.encode import put_ack, put_pingreq, put_publish, put_publish_head
from flashmqtt.codec.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from flashmqtt.codec.topics import covers, matches
from flashmqtt.errors import BufferTooSmall, MalformedPacket
from heap import heap_lock, heap_unlock

ON_MICROPYTHON = sys.implementation.name == "micropython"

TOPIC = b"flashmqtt/board/readings"
PAYLOAD = bytes(range(64))
ALIAS = b"\x23\x00\x05"


def _encode_steady(buf, view, topic, payload, level):
    """Encode under the heap lock, where an allocation raises MemoryError."""
    heap_lock()
    try:
        for packet_id in (1, 65535):
            pos = put_publish(buf, 0, topic, payload, 0, False, False, 0, level)
            pos = put_publish(buf, pos, topic, view, 1, True, False, packet_id, level)
            pos = put_publish(buf, pos, topic, payload, 2, False, True, packet_id, level)
            pos = put_publish_head(buf, pos, topic, 200000000, 1, False, False, packet_id, level)
            if level == 5:
                pos = put_publish(buf, pos, topic, payload, 1, False, False, packet_id, 5, ALIAS)
                pos = put_publish(buf, pos, b"", payload, 1, False, False, packet_id, 5, ALIAS)
            pos = put_ack(buf, pos, PUBACK, packet_id, level)
            pos = put_ack(buf, pos, PUBREC, packet_id, level)
            pos = put_ack(buf, pos, PUBREL, packet_id, level)
            pos = put_ack(buf, pos, PUBCOMP, packet_id, level)
            pos = put_pingreq(buf, pos)
    finally:
        heap_unlock()
    return pos


@pytest.mark.req("W7", "W8", "W12")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_encoding_messages_and_acknowledgements_allocates_nothing(level):
    assert _encode_steady(bytearray(2048), memoryview(PAYLOAD), TOPIC, PAYLOAD, level) > 300


def _decode_steady(decoder, stream, n, cut, views):
    """Receive n bytes of the stream in pieces of `cut` bytes, under the heap lock; return packets plus bytes in messages.

    views: also read the payloads; a payload at another place of the buffer than the previous one needs a new view.
    """
    count = at = 0
    heap_lock()
    try:
        while at < n:
            room = decoder.room()
            size = len(room)
            take = 0
            while take < cut and take < size and at < n:
                room[take] = stream[at]
                take += 1
                at += 1
            decoder.received(take)
            while decoder.next():
                count += 1
                if decoder.packet_type == PUBLISH:
                    count += decoder.payload_end - decoder.payload_start
                    count += len(decoder.topic)
                    if views:
                        count += len(decoder.payload)
    finally:
        heap_unlock()
    return count


@pytest.mark.req("W6", "W13")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_decoding_messages_and_acknowledgements_allocates_nothing(level):
    buf = bytearray(2048)
    pos = 0
    for qos, packet_id in ((0, 0), (1, 7), (2, 8)):
        pos = put_publish(buf, pos, TOPIC, PAYLOAD, qos, False, False, packet_id, level)
        for kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            pos = put_ack(buf, pos, kind, 65535, level)
        buf[pos : pos + 2] = b"\xd0\x00"
        pos += 2
    buf[pos : pos + 5] = b"\x90\x03\x00\x07\x01" if level != 5 else b"\x90\x04\x00\x07\x00"
    pos += 5
    if level == 5:
        buf[pos] = 1
        pos += 1
        pos = put_publish(buf, pos, TOPIC, PAYLOAD, 1, False, False, 9, 5, ALIAS)
        pos = put_publish(buf, pos, b"", PAYLOAD, 1, False, False, 9, 5, ALIAS)
    decoder = Decoder(1000, level)
    decoder.aliases = InboundAliases(8)
    # The first round imports the modules of level 5, and makes the topic and the views of the payloads.
    assert _round(decoder, buf, pos) == (21 if level == 5 else 19)
    if ON_MICROPYTHON:
        # Whole packets lie at the same places again, so their views exist. Pieces need no new view for the free room either.
        for _ in range(2):
            whole = _decode_steady(decoder, buf, pos, 1000, False)
            assert whole > 200 and _decode_steady(decoder, buf, pos, 37, False) == whole
    single = Decoder(200, level)
    n = put_publish(buf, 0, TOPIC, PAYLOAD, 1, False, False, 7, level)
    assert _round(single, buf, n) == 1
    assert _decode_steady(single, buf, n, 200, True) == 1 + len(TOPIC) + 2 * len(PAYLOAD)


def _round(decoder, stream, n):
    decoder.feed(stream[:n])
    count = 0
    while decoder.next():
        count += 1
        if decoder.packet_type == PUBLISH:
            assert decoder.topic == TOPIC and bytes(decoder.payload) == PAYLOAD
    return count


@pytest.mark.req("W9")
def test_matching_a_topic_allocates_nothing():
    _match_steady(bytearray(b"..a/b/c.."))


def _match_steady(buf):
    heap_lock()
    try:
        assert covers(b"a/+/c", buf, 2, 7) and covers(b"$share/g/a/#", buf, 2, 7) and not covers(b"a/b", buf, 2, 7)
        assert matches(b"+/+/#", b"a/b")
    finally:
        heap_unlock()


def test_repeated_topic_is_the_same_object():
    decoder = Decoder(256)
    buf = bytearray(128)
    seen = []
    for topic in (b"a/b", b"a/b", b"a/c", b"a/c"):
        decoder.feed(buf[: put_publish(buf, 0, topic, b"x")])
        assert decoder.next() == PUBLISH
        seen.append(decoder.topic)
    assert seen == [b"a/b", b"a/b", b"a/c", b"a/c"]
    assert seen[0] is seen[1] and seen[2] is seen[3]


STREAMED = [(41, 1), (41, 7), (64, 64), (100, 3), (100, 1000)]


@pytest.mark.req("W13")
@pytest.mark.parametrize("size, cut", STREAMED)
def test_publish_larger_than_the_buffer_arrives_in_chunks(size, cut):
    payload = bytes(i * 7 & 0xFF for i in range(1000))
    for level in (3, 4, 5):
        for qos in (0, 1, 2):
            packet = bytearray(1100)
            end = put_publish(packet, 0, b"fw/image", payload, qos, False, False, 9 if qos else 0, level)
            end = put_ack(packet, end, PUBACK, 3, level)  # the packet that follows is not lost
            got = bytearray()
            after = []
            decoder = Decoder(size, level, True)
            at = 0
            while at < end:
                room = decoder.room()
                n = min(cut, len(room), end - at)
                room[:n] = packet[at : at + n]
                decoder.received(n)
                at += n
                while decoder.next():
                    if decoder.packet_type != PUBLISH:
                        after.append(decoder.packet_type)
                        continue
                    assert (
                        decoder.topic == b"fw/image" and decoder.qos == qos and decoder.packet_id == (9 if qos else 0)
                    )
                    assert decoder.payload_offset == len(got) and decoder.payload_total == 1000
                    got.extend(decoder.payload)
                    assert decoder.more == (len(got) < 1000)
            assert got == payload and after == [PUBACK]


@pytest.mark.req("W13")
def test_streamed_publish_whose_head_does_not_fit_is_refused():
    packet = bytearray(300)
    end = put_publish(packet, 0, b"t" * 40, bytes(100))
    for size in range(8, 60):
        decoder = Decoder(size, 4, True)
        decoder.feed(packet[:size])
        if size > 2 + 1 + 2 + 40:
            assert decoder.next() == PUBLISH and decoder.more
        else:
            with pytest.raises(MalformedPacket) as wrong:
                decoder.next()
            assert wrong.value.reason == 0x95
    assert end == 145


@pytest.mark.req("W13")
def test_reset_during_a_streamed_publish_discards_the_rest():
    packet = bytearray(300)
    end = put_publish(packet, 0, b"t", bytes(200))
    decoder = Decoder(64, 4, True)
    decoder.feed(packet[:64])
    assert decoder.next() == PUBLISH and decoder.more
    decoder.feed(packet[64:100])
    decoder.reset()
    assert decoder.next() == 0
    decoder.feed(b"\xd0\x00")
    assert decoder.next() == 13
    assert end > 200


@pytest.mark.req("W6", "W7")
def test_publish_head_plus_separate_payload_equals_the_whole_packet():
    small = bytearray(64)
    whole = bytearray(1000)
    payload = bytes(i & 0xFF for i in range(700))
    for level in (3, 4, 5):
        want = bytes(whole[: put_publish(whole, 0, b"fw", payload, 1, False, False, 5, level)])
        end = put_publish_head(small, 0, b"fw", len(payload), 1, False, False, 5, level)
        assert bytes(small[:end]) + payload == want


def test_feed_refuses_more_bytes_than_fit():
    decoder = Decoder(16)
    with pytest.raises(BufferTooSmall):
        decoder.feed(bytes(17))
    decoder.feed(bytes([0x30, 14]) + bytes(10))
    with pytest.raises(BufferTooSmall):
        decoder.feed(bytes(5))


@pytest.mark.req("W6")
def test_leftover_bytes_leave_room_for_the_rest_of_the_packet():
    """Leftover bytes move to one of eight places; a packet as long as the buffer must still fit."""
    for size in (7, 8, 9, 16, 31, 64, 100):
        buf = bytearray(size)
        for n in range(2, size + 1):
            if n < 5:
                continue
            payload = bytes(n - 5)
            end = put_publish(buf, 0, b"t", payload)
            if end > size:
                continue
            for before in (0, 2, 4):
                for cut in range(1, end):
                    decoder = Decoder(size)
                    first = b"\xd0\x00" * (before // 2) + bytes(buf[:cut])
                    if len(first) > size:
                        continue
                    decoder.feed(first)
                    for _ in range(before // 2):
                        assert decoder.next() == 13
                    at = cut
                    while at < end:
                        assert decoder.next() == 0
                        room = decoder.room()
                        assert len(room) > 0
                        take = min(len(room), end - at)
                        room[:take] = buf[at : at + take]
                        decoder.received(take)
                        at += take
                    assert decoder.next() == PUBLISH and decoder.payload_total == len(payload)


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.3.2-7", "MQTT-3.3.2-9", "MQTT-3.3.2-10", "MQTT-3.3.2-12")
def test_topic_alias_is_set_used_changed_and_bounded():
    decoder = Decoder(256, 5)
    decoder.aliases = InboundAliases(2)
    buf = bytearray(128)

    def receive(topic, alias):
        decoder.feed(buf[: put_publish(buf, 0, topic, b"x", level=5, properties=bytes([0x23, 0, alias]))])
        assert decoder.next() == PUBLISH and decoder.topic_alias == alias
        return decoder.topic

    assert receive(b"a", 1) == b"a"
    assert receive(b"b", 2) == b"b"
    assert receive(b"", 1) == b"a"
    assert receive(b"c", 1) == b"c"
    assert receive(b"", 1) == b"c" and receive(b"", 2) == b"b"
    with pytest.raises(MalformedPacket) as wrong:
        receive(b"d", 3)
    assert wrong.value.reason == 0x94
    decoder.reset()  # aliases end with the network connection
    decoder.aliases = InboundAliases(2)
    with pytest.raises(MalformedPacket) as wrong:
        receive(b"", 1)
    assert wrong.value.reason == 0x82


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.3.2-9", "MQTT-3.3.2-8")
def test_outbound_alias_is_assigned_once_reused_and_bounded():
    aliases = OutboundAliases(2)
    assert aliases.alias(b"a") == aliases.alias(b"a") == -1
    aliases.note(b"a")
    assert aliases.alias(b"a") == 1 and aliases.alias(b"b") == -2
    aliases.note(b"b")
    assert aliases.alias(b"c") == 0 and aliases.alias(b"b") == 2
    assert bytes(aliases.properties(2)) == b"\x23\x00\x02"
    assert OutboundAliases(0).alias(b"a") == 0


@pytest.mark.req("W13")
def test_malformed_packet_is_refused_after_a_call_without_memory():
    """The first malformed packet imports the errors' module, which needs memory."""
    sys.modules.pop("flashmqtt.codec.malformed", None)
    if "_malformed" in Decoder.__dict__:
        del Decoder._malformed
    decoder = Decoder(64)
    decoder.feed(b"\xd0\x00\xd0\x01\x00")
    assert decoder.next() == 13
    _refuse_without_memory(decoder)
    for _ in range(2):
        with pytest.raises(MalformedPacket) as wrong:
            decoder.next()
        assert str(wrong.value) == "packet type 13: 3 bytes, not 2"


def _refuse_without_memory(decoder):
    heap_lock()
    try:
        decoder.next()
    except MemoryError:
        return
    except MalformedPacket:  # CPython has memory
        return
    finally:
        heap_unlock()
    raise AssertionError("not refused")
