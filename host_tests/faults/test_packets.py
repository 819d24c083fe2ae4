"""The tests' own codec agrees with examples of the MQTT standard, and reads what it writes."""

import pytest

from tools.proof import packets as p


def test_codec_agrees_with_examples_of_the_standard():
    assert p.length(321) == b"\xc1\x02"
    assert p.publish("a/b", "", 1, 10) == bytes.fromhex("32 07 00 03 61 2F 62 00 0A")
    assert p.length(268_435_455) == b"\xff\xff\xff\x7f"


@pytest.mark.parametrize("level", [3, 4, 5])
def test_written_packets_are_read_back_whole_and_byte_by_byte(level):
    written = [
        p.connect("device", level, False, 7),
        p.connack(level, 0 if level == 3 else 1),
        p.publish("a/b", b"x" * 200, 2, 9, level, dup=True, retain=True),
        p.publish("t", b"", level=level),
        *(p.ack(kind, 77) for kind in (p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP)),
        p.subscribe(5, [("a/#", 2), ("b/+", 0)], level),
        p.suback(5, (2, 128), level),
        p.PING,
        p.PONG,
        p.disconnect(level),
    ]
    stream = b"".join(written)
    whole = p.Reader(level).feed(stream)
    reader = p.Reader(level)
    single = [packet for at in range(len(stream)) for packet in reader.feed(stream[at : at + 1])]
    assert [vars(packet) for packet in whole] == [vars(packet) for packet in single]
    assert [packet.kind for packet in whole] == [1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14]
    assert (whole[0].client_id, whole[0].keep_alive_s, whole[0].clean) == ("device", 7, False)
    assert (whole[2].topic, whole[2].packet_id, len(whole[2].payload), whole[2].qos) == ("a/b", 9, 200, 2)
    assert (whole[2].dup, whole[2].retain) == (True, True)
    assert whole[8].filters == [("a/#", 2), ("b/+", 0)]
    assert whole[9].codes == b"\x02\x80"


@pytest.mark.parametrize(
    "stream",
    [
        b"\x36\x05\x00\x01a\x00\x01",
        b"\x38\x03\x00\x01a",
        b"\x30\x03\x00\x01+",
        b"\x32\x05\x00\x01a\x00\x00",
        b"\x40\x03\x00\x01\x00",
        b"\x80\x05\x00\x01\x00\x01a",
        b"\x30\xff\xff\xff\xff\x01",
        b"\xc0\x80\x00",
        b"\x00\x00",
        b"\x82\x02\x00\x01",
        b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00",
        b"\x30\x02\x00\x05",
    ],
)
def test_packet_that_violates_the_standard_is_refused(stream):
    with pytest.raises(p.Wrong):
        p.Reader().feed(stream)
