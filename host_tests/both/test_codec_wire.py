"""Requirements W1 to W11 on the wire, with the examples of IBM's MQTT documents. For level 5 (W12) see test_codec_level5."""

import pytest

from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.encode import (
    put_ack,
    put_connect,
    put_disconnect,
    put_length,
    put_pingreq,
    put_publish,
    put_publish_head,
)
from flashmqtt.codec.packets import (
    CONNACK,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    connect_error,
)
from flashmqtt.codec.subscribe import put_subscribe, put_unsubscribe
from flashmqtt.errors import (
    BufferTooSmall,
    ConnectRefused,
    InvalidTopic,
    MalformedPacket,
    UsageError,
)

BUFFER = bytearray(1024)


def encoded(put, *arguments, **named):
    end = put(BUFFER, 5, *arguments, **named)
    return bytes(BUFFER[5:end])


def hexed(text):
    return bytes(int(pair, 16) for pair in text.split())


def decoded(packet, level=4, size=1024):
    decoder = Decoder(size, level)
    decoder.feed(packet)
    assert decoder.next()
    assert decoder.room() is not None and decoder.next() == 0
    return decoder


def refused(packet, level=4, reason=0x81, size=1024):
    """Assert that the packet is refused, and that further calls raise the same error even if more bytes arrive."""
    decoder = Decoder(size, level)
    decoder.feed(packet)
    for _ in range(3):
        with pytest.raises(MalformedPacket) as wrong:
            decoder.next()
        assert wrong.value.reason == reason
        decoder.feed(b"\xd0\x00")


@pytest.mark.req("W1")
def test_packet_id_is_big_endian_both_ways():
    assert encoded(put_ack, PUBACK, 0x1234) == hexed("40 02 12 34")
    assert decoded(hexed("40 02 12 34")).packet_id == 0x1234


@pytest.mark.req("W2")
@pytest.mark.parametrize("kind", range(16))
def test_type_is_in_the_upper_nibble(kind):
    from_server = {
        2: "20 02 00 00",
        3: "30 04 00 01 61 62",
        4: "40 02 00 01",
        5: "50 02 00 01",
        6: "62 02 00 01",
        7: "70 02 00 01",
        9: "90 03 00 01 00",
        11: "B0 02 00 01",
        13: "D0 00",
    }
    if kind in from_server:
        assert decoded(hexed(from_server[kind])).packet_type == kind
    else:  # a reserved type, or one that a server never sends
        refused(bytes([kind << 4]))


@pytest.mark.req("W2")
def test_publish_flags_are_in_their_bits():
    for dup, qos, retain in ((False, 0, False), (False, 0, True), (True, 1, False), (False, 1, True), (True, 2, True)):
        packet = encoded(put_publish, b"t", b"x", qos, retain, dup, 1 if qos else 0)
        assert packet[0] == 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
        got = decoded(packet)
        assert (got.dup, got.qos, got.retain) == (dup, qos, retain)


@pytest.mark.req("W3")
@pytest.mark.clause("MQTT-3.3.1-4", "MQTT-2.2.2-2", "MQTT-3.6.1-1", "MQTT-2.2.2-1", "MQTT-2.1.3-1")
@pytest.mark.clause("MQTT-3.14.1-1", "MQTT-3.15.1-1")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_flags_that_a_type_does_not_allow_are_malformed(level):
    for kind in range(1, 16):
        for flags in range(16):
            head = kind << 4 | flags
            if kind == PUBLISH:
                allowed = flags & 6 != 6 and flags & 14 != 8
            elif kind == PUBREL:
                allowed = flags == 2 or (flags == 10 and level == 3)
            elif kind in (CONNACK, PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK, PINGRESP):
                allowed = not flags
            else:
                allowed = kind > 13 and level == 5 and not flags
            if allowed:
                decoder = Decoder(16, level)
                decoder.feed(bytes([head]))
                assert decoder.next() == 0
            else:
                refused(bytes([head]), level)  # at once, without waiting for the length


@pytest.mark.req("W3")
def test_level_3_repeats_pubrel_subscribe_unsubscribe_with_dup():
    assert encoded(put_ack, PUBREL, 1, 3, dup=True) == hexed("6A 02 00 01")
    assert encoded(put_subscribe, 1, [(b"a", 1)], 3, True) == hexed("8A 06 00 01 00 01 61 01")
    assert encoded(put_unsubscribe, 1, [b"a"], 3, True) == hexed("AA 05 00 01 00 01 61")
    assert decoded(hexed("6A 02 00 01"), 3).packet_type == PUBREL
    refused(hexed("6A 02 00 01"), 4)


@pytest.mark.req("W3")
@pytest.mark.clause("MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1")
def test_pubrel_subscribe_unsubscribe_carry_0010():
    for level in (3, 4, 5):
        assert encoded(put_ack, PUBREL, 1, level)[0] == 0x62
        assert encoded(put_subscribe, 1, [(b"a", 1)], level)[0] == 0x82
        assert encoded(put_unsubscribe, 1, [b"a"], level)[0] == 0xA2


LENGTHS = [
    (0, "00"),
    (64, "40"),
    (127, "7F"),
    (128, "80 01"),
    (321, "C1 02"),
    (16383, "FF 7F"),
    (16384, "80 80 01"),
    (2097151, "FF FF 7F"),
    (2097152, "80 80 80 01"),
    (268435455, "FF FF FF 7F"),
]


@pytest.mark.req("W4", "W5")
@pytest.mark.clause("MQTT-1.5.5-1")
@pytest.mark.parametrize("n, text", LENGTHS)
def test_remaining_length_of_every_range_end(n, text):
    assert encoded(put_length, n) == hexed(text)
    if n < 4:
        return
    # The encoder writes the same length in a whole header, and the decoder reads the same payload length from it.
    head = encoded(put_publish_head, b"t", n - 3)
    assert head == b"\x30" + hexed(text) + b"\x00\x01t"
    if n < 1000:
        assert decoded(head + bytes(n - 3)).payload_total == n - 3
    else:
        refused(head, reason=0x95)
    streaming = Decoder(64, 4, True)
    packet = head + bytes(min(n - 3, 64 - len(head)))
    streaming.feed(packet)
    assert streaming.next() == PUBLISH
    assert streaming.payload_total == n - 3


@pytest.mark.req("W4")
def test_packet_over_the_length_limit_is_refused():
    with pytest.raises(UsageError):
        put_publish_head(BUFFER, 0, b"t", 268435455 - 2)
    assert put_publish_head(BUFFER, 0, b"t", 268435455 - 3) == 8


@pytest.mark.req("W4", "W13")
def test_fifth_length_byte_is_malformed():
    for level in (3, 4, 5):
        refused(hexed("30 80 80 80 80"), level)
        refused(hexed("30 FF FF FF FF"), level)
        refused(hexed("D0 80 80 80 80 00"), level)
        for n in range(1, 5):  # up to four bytes the length may continue
            decoder = Decoder(64, level)
            decoder.feed(hexed("30 80 80 80 80")[:n])
            assert decoder.next() == 0


@pytest.mark.req("W4")
@pytest.mark.clause("MQTT-1.5.5-1")
def test_overlong_remaining_length_is_malformed_only_at_level_5():
    for text in ("D0 80 00", "D0 80 80 00", "D0 80 80 80 00"):
        assert decoded(hexed(text), 4).packet_type == PINGRESP
        refused(hexed(text), 5)


@pytest.mark.req("W5")
def test_remaining_length_321_is_encoded_as_c1_02():
    """The text of IBM's documents encodes 321 as 130 and 65 (82 41); their own algorithm and table give C1 02."""
    assert encoded(put_length, 321) == hexed("C1 02")
    prose = hexed("30 82 41")
    assert prose[1] & 127 | prose[2] << 7 == 8322
    decoder = Decoder(9000)
    decoder.feed(prose + b"\x00\x01t" + bytes(8319))
    assert decoder.next() == PUBLISH and decoder.payload_total == 8319
    decoder = Decoder(9000)
    decoder.feed(prose + b"\x00\x01t" + bytes(318))
    assert decoder.next() == 0


@pytest.mark.req("W6")
def test_length_counts_variable_header_and_payload_only():
    packet = encoded(put_publish, b"abc", b"12345", 1, packet_id=9)
    assert packet[1] == len(packet) - 2 == 2 + 3 + 2 + 5


@pytest.mark.req("W6")
def test_packet_cut_at_every_byte_is_read_after_the_rest():
    packet = encoded(put_publish, b"a/b", bytes(200), 1, packet_id=9)
    for cut in range(len(packet)):
        decoder = Decoder(256)
        if cut:
            decoder.feed(packet[:cut])
        assert decoder.next() == 0
        decoder.feed(packet[cut:])
        assert decoder.next() == PUBLISH
        assert bytes(decoder.payload) == bytes(200) and decoder.topic == b"a/b"
        assert decoder.next() == 0


@pytest.mark.req("W7")
@pytest.mark.clause("MQTT-3.3.2-1")
def test_publish_of_the_documents_example():
    example = hexed("32 07 00 03 61 2F 62 00 0A")
    assert encoded(put_publish, b"a/b", b"", 1, packet_id=10) == example
    got = decoded(example)
    assert (got.qos, got.dup, got.retain, got.packet_id) == (1, False, False, 10)
    assert got.topic == b"a/b" and bytes(got.payload) == b"" and got.payload_total == 0 and not got.more


@pytest.mark.req("W7")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_empty_payload_is_legal_at_every_qos(level):
    for qos in (0, 1, 2):
        got = decoded(encoded(put_publish, b"t", b"", qos, packet_id=7 if qos else 0, level=level), level)
        assert got.payload_start == got.payload_end and got.qos == qos


@pytest.mark.req("W7", "W8")
def test_packet_id_of_the_previous_packet_is_cleared():
    decoder = Decoder(64)
    decoder.feed(hexed("32 07 00 03 61 2F 62 00 0A 30 05 00 03 61 2F 62"))
    assert decoder.next() == PUBLISH and decoder.packet_id == 10
    assert decoder.next() == PUBLISH and decoder.packet_id == 0


FIELDS = ("packet_type", "packet_id", "qos", "dup", "retain", "topic", "more")


def fields(decoder):
    """Return what the decoder says of its packet."""
    if decoder.packet_type != PUBLISH:
        return decoder.packet_type, decoder.packet_type == PUBACK and decoder.packet_id
    return [getattr(decoder, name) for name in FIELDS], bytes(decoder.payload), decoder.payload_total


def alike():
    """Return packets that differ in one thing each: flags, length, topic, packet id or payload."""
    packets = [hexed("40 02 00 07"), hexed("D0 00"), encoded(put_publish, b"t" * 60, b"1", 1, packet_id=7)]
    for topic in (b"a/b", b"a/c", b"a/b/c"):
        for payload in (b"1234", b"4321", b"12345", bytes(200)):
            packets += [encoded(put_publish, topic, payload, qos, packet_id=7 if qos else 0) for qos in (0, 1, 2)]
    packets += [bytes((packets[4][0] | flag,)) + packets[4][1:] for flag in (1, 8)]
    packets.append(encoded(put_publish, b"a/b", b"1234", 1, packet_id=8))
    return packets


@pytest.mark.req("W7")
@pytest.mark.parametrize("level", [3, 4])
def test_publish_is_read_alike_after_every_other_packet_at_every_position(level):
    packets = alike()
    alone = [fields(decoded(packet, level)) for packet in packets]
    for first, before in enumerate(packets):
        decoder = Decoder(1024, level)
        for second, packet in enumerate(packets):
            # The two behind each other, then each in a buffer of its own: at another position, and at the same one.
            decoder.feed(before + packet)
            for index in (first, second):
                assert decoder.next() == packets[index][0] >> 4
                assert fields(decoder) == alone[index]
            assert decoder.next() == 0
            for index in (second, first):
                decoder.feed(packets[index])
                assert decoder.next() == packets[index][0] >> 4
                assert fields(decoder) == alone[index]
                assert decoder.next() == 0


class InterruptedDecoder(Decoder):
    """A decoder that Ctrl-C interrupts once, before it sets the payload's span."""

    interrupts = False

    def _place(self, start, end):
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        super()._place(start, end)


@pytest.mark.req("W13")
def test_publish_is_read_whole_after_an_interrupt():
    first, second = (encoded(put_publish, b"a/b", payload, 1, packet_id=7) for payload in (b"abcd", b"efgh"))
    decoder = InterruptedDecoder(64)
    decoder.feed(first + second)
    assert decoder.next() == PUBLISH
    decoder.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        decoder.next()
    assert decoder.next() == PUBLISH
    assert fields(decoder) == fields(decoded(second))


class InterruptedSocket:
    """A socket with one packet, which Ctrl-C interrupts when nothing is left."""

    def __init__(self, packet):
        self.packet = packet

    def readinto(self, room):
        packet = self.packet
        if not packet:
            raise KeyboardInterrupt
        self.packet = b""
        room[: len(packet)] = packet
        return len(packet)


@pytest.mark.req("R4")
def test_packets_before_an_interrupted_read_are_not_read_again():
    decoder = Decoder(64)
    sock = InterruptedSocket(encoded(put_publish, b"a/b", b"1", 0))
    assert decoder.read_from(sock) == 1 and decoder.next() == PUBLISH and decoder.next() == 0
    with pytest.raises(KeyboardInterrupt):
        decoder.read_from(sock)
    assert decoder.next() == 0


@pytest.mark.req("W8", "W13")
def test_known_topic_with_packet_id_0_is_malformed():
    decoder = Decoder(64)
    decoder.feed(hexed("32 07 00 03 61 2F 62 00 0A 32 07 00 03 61 2F 62 00 00"))
    assert decoder.next() == PUBLISH
    for _ in range(2):
        with pytest.raises(MalformedPacket):
            decoder.next()


@pytest.mark.req("W13")
@pytest.mark.parametrize(
    "wrong", ["32 04 00 00 00 0A", "32 07 00 03 61 00 62 00 0A", "32 07 00 03 61 2F 62 00 00", "36 00"]
)
def test_publish_after_a_reset_is_read_like_the_first_one(wrong):
    """A malformed PUBLISH ends the connection; it must not change how the next connection's first PUBLISH is read."""
    good = hexed("32 0A 00 03 61 2F 62 00 0A 31 32 33")
    decoder = Decoder(64)
    decoder.feed(good)
    assert decoder.next() == PUBLISH
    decoder.feed(hexed(wrong))
    with pytest.raises(MalformedPacket):
        decoder.next()
    decoder.reset()
    decoder.feed(good)
    assert decoder.next() == PUBLISH
    assert fields(decoder) == fields(decoded(good))


@pytest.mark.req("W8")
@pytest.mark.clause("MQTT-2.3.1-1", "MQTT-2.3.1-5", "MQTT-3.3.1-2", "MQTT-2.2.1-2", "MQTT-2.2.1-3")
def test_packet_id_is_1_to_65535_and_absent_at_qos_0():
    for packet_id in (1, 255, 256, 65535):
        for qos in (1, 2):
            assert decoded(encoded(put_publish, b"t", b"", qos, packet_id=packet_id)).packet_id == packet_id
        for kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            assert decoded(encoded(put_ack, kind, packet_id)).packet_id == packet_id
    for packet_id in (0, 65536, -1):
        with pytest.raises(UsageError):
            put_publish(BUFFER, 0, b"t", b"", 1, packet_id=packet_id)
        with pytest.raises(UsageError):
            put_ack(BUFFER, 0, PUBACK, packet_id)
        with pytest.raises(UsageError):
            put_subscribe(BUFFER, 0, packet_id, [(b"a", 0)])
        with pytest.raises(UsageError):
            put_unsubscribe(BUFFER, 0, packet_id, [b"a"])
    with pytest.raises(UsageError):
        put_publish(BUFFER, 0, b"t", b"", 0, packet_id=1)
    with pytest.raises(UsageError):
        put_publish(BUFFER, 0, b"t", b"", 0, dup=True)
    for bad in ("32 05 00 01 74 00 00", "40 02 00 00", "62 02 00 00", "90 03 00 00 00", "B0 02 00 00"):
        refused(hexed(bad))
    refused(hexed("38 03 00 01 74"))  # DUP at QoS 0


@pytest.mark.req("W9")
@pytest.mark.clause("MQTT-3.3.2-2", "MQTT-4.7.1-1", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-1.5.3-1", "MQTT-1.5.3-2")
def test_received_topic_with_wildcard_nul_or_bad_utf8_is_malformed():
    for topic in (
        b"",
        b"+",
        b"a/#",
        b"a+b",
        b"a\x00",
        b"\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xff",
    ):
        packet = bytes([0x30, len(topic) + 3, 0, len(topic)]) + topic + b"x"
        for level in (3, 4, 5):
            if level == 5:
                packet = bytes([0x30, len(topic) + 4, 0, len(topic)]) + topic + b"\x00x"
            refused(packet, level, 0x82 if level == 5 and not topic else 0x81)
        with pytest.raises(InvalidTopic):
            put_publish(BUFFER, 0, topic, b"x")


@pytest.mark.req("W9")
@pytest.mark.clause("MQTT-4.7.3-3")
def test_topic_length_counts_bytes_and_ends_at_65535():
    name = "Maß/温度".encode()
    packet = encoded(put_publish, name, b"x")
    assert packet[3] == len(name) == 11
    assert decoded(packet).topic == name
    buf = bytearray(65600)
    longest = b"a" * 65535
    assert put_publish(buf, 0, longest, b"") == 4 + 2 + 65535
    with pytest.raises(InvalidTopic):
        put_publish(buf, 0, longest + b"a", b"")


@pytest.mark.req("W9")
def test_str_payload_is_refused_because_its_length_counts_characters():
    with pytest.raises(UsageError):
        put_publish(BUFFER, 0, b"t", "温度")


@pytest.mark.req("W10")
@pytest.mark.clause("MQTT-3.1.2-1", "MQTT-3.1.2-3", "MQTT-3.1.3-1", "MQTT-3.1.3-3")
def test_connect_of_every_level():
    assert encoded(put_connect, b"dev", 3, True, 60) == hexed(
        "10 11 00 06 4D 51 49 73 64 70 03 02 00 3C 00 03 64 65 76"
    )
    assert encoded(put_connect, b"dev", 4, False, 10) == hexed("10 0F 00 04 4D 51 54 54 04 00 00 0A 00 03 64 65 76")
    assert encoded(put_connect, b"dev", 5, True, 258) == hexed("10 10 00 04 4D 51 54 54 05 02 01 02 00 00 03 64 65 76")


@pytest.mark.req("W10")
@pytest.mark.clause(
    "MQTT-3.1.3-1", "MQTT-3.1.2-9", "MQTT-3.1.2-19", "MQTT-3.1.2-21", "5:MQTT-3.1.2-17", "5:MQTT-3.1.2-19"
)
def test_connect_with_all_fields_is_encoded():
    assert encoded(put_connect, b"d", 4, True, 60, b"u", b"p", b"w", b"gone", 2, True) == hexed(
        "10 1C 00 04 4D 51 54 54 04 F6 00 3C 00 01 64 00 01 77 00 04 67 6F 6E 65 00 01 75 00 01 70"
    )
    assert encoded(
        put_connect, b"d", 5, True, 60, b"u", b"p", b"w", b"gone", 1, False, b"\x21\x00\x05", b"\x01\x01"
    ) == hexed(
        "10 23 00 04 4D 51 54 54 05 CE 00 3C 03 21 00 05 00 01 64 02 01 01 00 01 77 00 04 67 6F 6E 65 00 01 75 00 01 70"
    )


@pytest.mark.req("W10")
@pytest.mark.clause("MQTT-3.1.3-7", "MQTT-3.1.2-22", "MQTT-3.1.2-14", "MQTT-3.1.3-4", "MQTT-3.1.3-10", "MQTT-3.1.3-11")
def test_invalid_connect_is_refused():
    for bad in (b"", b"x" * 24):
        with pytest.raises(UsageError):
            put_connect(BUFFER, 0, bad, 3)
    assert put_connect(BUFFER, 0, b"x" * 23, 3)
    with pytest.raises(UsageError):
        put_connect(BUFFER, 0, b"", 4, False)
    assert put_connect(BUFFER, 0, b"", 4, True)
    assert put_connect(BUFFER, 0, b"", 5, False)
    for level in (3, 4):
        with pytest.raises(UsageError):
            put_connect(BUFFER, 0, b"x", level, password=b"p")
    assert put_connect(BUFFER, 0, b"x", 5, password=b"p")
    for named in (
        {"will_topic": b"w", "will_qos": 3},
        {"keep_alive_s": 65536},
        {"user": b"\xff"},
        {"password": bytes(65536)},
    ):
        with pytest.raises(UsageError):
            put_connect(BUFFER, 0, b"x", 4, **named)
    with pytest.raises(UsageError):
        put_connect(BUFFER, 0, b"x", 6)
    with pytest.raises(UsageError):
        put_connect(BUFFER, 0, b"\xed\xa0\x80", 4)
    for topic in (b"", b"a/#"):
        with pytest.raises(InvalidTopic):
            put_connect(BUFFER, 0, b"x", 4, will_topic=topic)


@pytest.mark.req("W10", "W12")
@pytest.mark.clause("5:MQTT-3.1.2-12", "5:MQTT-3.1.3-11", "MQTT-3.1.3-12", "MQTT-3.1.3-4")
def test_invalid_connect_of_level_5_is_refused():
    for named in ({"will_topic": b"w", "will_qos": 3}, {"user": b"\xff"}, {"keep_alive_s": -1}):
        with pytest.raises(UsageError):
            put_connect(BUFFER, 0, b"x", 5, **named)
    with pytest.raises(UsageError):
        put_connect(BUFFER, 0, b"\xed\xa0\x80", 5)
    for topic in (b"", b"a/#", b"\xff"):
        with pytest.raises(InvalidTopic):
            put_connect(BUFFER, 0, b"x", 5, will_topic=topic)


@pytest.mark.req("W10")
@pytest.mark.clause("MQTT-3.2.2-4")
def test_connack_has_session_present_and_code():
    for level in (4, 3):
        got = decoded(hexed("20 02 01 00"), level)
        assert (got.code, got.session_present) == (0, level == 4)
        for code in range(6):
            assert decoded(bytes([0x20, 2, 0, code]), level).code == code
        refused(hexed("20 02 00 06"), level)
        for bad in ("20 00", "20 01 00", "20 03 00 00 00"):
            refused(hexed(bad), level)
    for bad in ("20 02 02 00", "20 02 80 00", "20 02 01 05"):
        refused(hexed(bad), 4)


@pytest.mark.req("W10")
def test_every_return_code_has_an_error_text():
    meanings = (
        "unacceptable protocol version",
        "client id rejected",
        "server unavailable",
        "bad user name or password",
        "not authorized",
    )
    for level in (3, 4, 5):  # a server without level 5 answers a level 5 CONNECT with code 1
        for i in range(5):
            error = connect_error(i + 1, level)
            assert isinstance(error, ConnectRefused) and error.refusal
            assert str(error) == "%s (level %d, code 0x%02x)" % (meanings[i], level, i + 1)
            assert error.code == i + 1 and error.level == level


@pytest.mark.req("W11")
@pytest.mark.clause("MQTT-3.8.3-1", "MQTT-3.8.3-3", "MQTT-3-8.3-4", "MQTT-3.10.3-1", "MQTT-3.10.3-2")
def test_subscribe_and_unsubscribe_of_several_filters():
    assert encoded(put_subscribe, 10, [(b"a/b", 1), (b"c/+", 2)]) == hexed(
        "82 0E 00 0A 00 03 61 2F 62 01 00 03 63 2F 2B 02"
    )
    assert encoded(put_unsubscribe, 10, [b"a/b", b"c/+"]) == hexed("A2 0C 00 0A 00 03 61 2F 62 00 03 63 2F 2B")
    with pytest.raises(UsageError):
        put_subscribe(BUFFER, 0, 1, [])
    with pytest.raises(UsageError):
        put_unsubscribe(BUFFER, 0, 1, [])
    for options in (3, 4, 8, 128):
        with pytest.raises(UsageError):
            put_subscribe(BUFFER, 0, 1, [(b"a", options)])
    for bad in (b"", b"a#", b"a/#/b", b"a+", b"\xff"):
        with pytest.raises(InvalidTopic):
            put_subscribe(BUFFER, 0, 1, [(b"ok", 0), (bad, 0)])
        with pytest.raises(InvalidTopic):
            put_unsubscribe(BUFFER, 0, 1, [b"ok", bad])


@pytest.mark.req("W11")
@pytest.mark.clause("MQTT-3.9.3-1", "MQTT-3.9.3-2")
def test_suback_gives_a_result_per_filter_and_refusals_reach_the_caller():
    got = decoded(hexed("90 06 00 0A 00 01 02 80"))
    assert got.packet_id == 10
    assert bytes(got.buffer[got.codes_start : got.codes_end]) == b"\x00\x01\x02\x80"
    for bad in ("90 02 00 0A", "90 03 00 0A 03", "90 03 00 0A 81", "90 01 00", "90 00"):
        refused(hexed(bad))


@pytest.mark.req("W11")
def test_unsuback_ping_and_disconnect():
    assert decoded(hexed("B0 02 00 0A")).packet_id == 10
    for bad in ("B0 03 00 0A 00", "B0 01 00", "B0 00", "D0 01 00"):
        refused(hexed(bad))
    assert encoded(put_pingreq) == hexed("C0 00")
    assert decoded(hexed("D0 00")).packet_type == PINGRESP
    assert encoded(put_disconnect) == hexed("E0 00")


@pytest.mark.req("W13")
def test_wrong_length_never_reads_behind_the_packet():
    """No length field may make the decoder deliver bytes of the buffer that are outside the packet."""
    decoder = Decoder(64)
    decoder.feed(b"\x30\x2f\x00\x01tsecret of an earlier packet....")
    assert decoder.next() == 0
    decoder = Decoder(64)
    decoder.feed(hexed("30 05 00 03 61 2F 62") + b"secret")
    assert decoder.next() == PUBLISH and decoder.payload_end == decoder.payload_start
    for bad in (
        "30 02 00 03",
        "30 01 00",
        "30 00",
        "30 04 00 03 61 2F",
        "32 06 00 03 61 2F 62 00",
        "32 05 FF FF 61 62 63",
    ):
        refused(hexed(bad))
    for bad in ("40 00", "40 01 00", "40 03 00 01 00", "62 04 00 01 00 00"):
        refused(hexed(bad))


@pytest.mark.req("W13")
def test_oversized_packet_is_refused_as_soon_as_its_length_is_known():
    refused(hexed("30 80 01"), reason=0x95, size=64)
    refused(hexed("30 FF FF FF 7F"), reason=0x95, size=64)
    refused(hexed("90 80 01"), reason=0x95, size=64)
    assert decoded(encoded(put_publish, b"t", bytes(59)), size=64).payload_total == 59
    refused(encoded(put_publish, b"t", bytes(60))[:50], reason=0x95, size=64)


@pytest.mark.req("W13")
def test_too_small_buffer_raises_and_nothing_outside_is_written():
    puts = [
        (put_publish, (b"a/b", b"payload", 1, False, False, 5)),
        (put_publish, (b"a/b", bytes(120), 1, False, False, 5, 5)),  # its length takes two bytes, as the next one's
        (put_connect, (b"client", 4, True, 60, b"user", bytes(120))),
        (put_connect, (b"client", 4, True, 60, b"user", b"password", b"will", b"payload")),
        (put_ack, (PUBREL, 5)),
        (put_subscribe, (5, [(b"a/b", 1), (b"c", 0)])),
        (put_unsubscribe, (5, [b"a/b", b"c"])),
        (put_pingreq, ()),
        (put_disconnect, ()),
    ]
    for put, arguments in puts:
        need = len(encoded(put, *arguments))
        for size in range(need):
            guarded = memoryview(bytearray(b"\xa5" * (size + 8)))
            with pytest.raises(BufferTooSmall):
                put(guarded[:size], 0, *arguments)
            assert bytes(guarded[size:]) == b"\xa5" * 8
            with pytest.raises(BufferTooSmall):
                put(guarded[: size + 4], 4, *arguments)
        exact = bytearray(need)
        assert put(exact, 0, *arguments) == need


@pytest.mark.req("W13")
@pytest.mark.parametrize(
    ("level", "packet", "text"),
    [
        (4, "D0 01 00", "packet type 13: 3 bytes, not 2"),
        (4, "40 03 00 01 00", "packet type 4: 5 bytes, not 4"),
        (4, "40 01 00", "packet type 4: 3 bytes, not 4"),
        (4, "20 01 00", "packet type 2: 3 bytes, not 4"),
        (4, "30 03 00 40 61", "packet type 3: 5 bytes, not 68"),
        (4, "90 02 00 01", "packet type 9: 4 bytes, not 5"),
        (4, "B0 03 00 01 00", "packet type 11: 5 bytes, not 4"),
        (4, "30 FF FF FF FF 7F", "packet type 3: length 268435455 in 5 bytes"),
        (5, "D0 80 00", "packet type 13: length 0 in 2 bytes"),
        (5, "20 05 00 00 81 00 00", "packet type 2: length 1 in 2 bytes"),
        (5, "20 04 00 00 00 00", "packet type 2: 6 bytes, not 5"),
        (4, "30 05 00 03 61 23 62", "topic b'a#b': UTF-8 without +, #, NUL"),
        (4, "30 02 00 00", "topic b'': UTF-8 without +, #, NUL"),
    ],
)
def test_malformed_packet_is_described_by_its_type_its_value_and_the_limit(level, packet, text):
    decoder = Decoder(64, level)
    # The malformed packet follows another one: the error must count only the bytes of the malformed packet.
    decoder.feed(hexed("D0 00") + hexed(packet))
    assert decoder.next() == PINGRESP
    for _ in range(2):
        with pytest.raises(MalformedPacket) as raised:
            decoder.next()
        assert str(raised.value) == text
