"""Topic names and filters (W9): validity and matching, with the standards' own examples; UTF-8 byte by byte."""

import sys

import pytest

from flashmqtt.codec import utf8
from flashmqtt.codec.topics import check_filter, check_topic, covers, is_shared, matches
from flashmqtt.errors import InvalidTopic
from tools.proof.packets import packet, text, word

ON_MICROPYTHON = sys.implementation.name == "micropython"

# MQTT 3.1.1 and 5, §4.7.1 to 4.7.2: the examples that match or do not match, in the standards' order; then our own.
EXAMPLES = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("#", "sport/tennis", True),
    ("sport/tennis/#", "sport/tennis", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player2", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+", "sport", True),
    ("+/tennis/#", "sport/tennis/x", True),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("/finance", "finance", False),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("#", "$SYS/monitor", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/monitor", True),
    ("$SYS/#", "$SYS/", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("ACCOUNTS", "Accounts", False),
    ("Accounts payable", "Accounts payable", True),
    ("a/b", "a/b", True),
    ("a/b", "a/bc", False),
    ("a/bc", "a/b", False),
    ("a/b", "a", False),
    ("a", "a/b", False),
    ("a//b", "a//b", True),
    ("a/+/b", "a//b", True),
    ("a/+/b", "a/b", False),
    ("+/+/+", "a/b", False),
    ("+/+", "a/b/c", False),
    ("a/+/#", "a/b", True),
    ("a/+/#", "a", False),
    ("a/b/#", "a/bc", False),
    ("a/b/#", "a/b/", True),
    ("/#", "/", True),
    ("/", "/", True),
    ("#", "/", True),
    ("a/+", "a/$SYS", True),
    ("$share/my-group.1/sport/+", "sport/tennis", True),
    ("$share/group/#", "$SYS/a", False),
    ("$share/group/$SYS/#", "$SYS/a", True),
    ("$share/group//a", "/a", True),
    ("$share/group/a", "$share/group/a", False),
    ("$sharing/a", "$sharing/a", True),
    ("maß/+", "maß/温度", True),
]


@pytest.mark.req("W9", "W12")
@pytest.mark.clause("MQTT-4.7.2-1", "MQTT-4.7.3-4", "MQTT-4.8.2-1")
def test_examples_of_the_standard_match_as_specified():
    for filter_, topic, want in EXAMPLES:
        check_filter(filter_.encode())
        check_topic(topic.encode())
        if matches(filter_.encode(), topic.encode()) != want:
            raise AssertionError(filter_ + " and " + topic)
        buf = bytearray(b"#/" + topic.encode() + b"/+")
        assert covers(filter_.encode(), buf, 2, len(buf) - 2) == want


@pytest.mark.req("W9")
@pytest.mark.clause(
    "MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.1-3", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-4.7.3-3", "MQTT-3.8.3-1"
)
def test_valid_filters_are_accepted_and_invalid_ones_refused():
    for good in ("#", "+", "/", "//", "a", "a/#", "a/+/b", "+/+/#", "/+", "+/", " ", "$SYS/#", "a b/ä/+"):
        check_filter(good.encode())
    for bad in (
        "",
        "sport/tennis#",
        "sport/tennis/#/ranking",
        "sport+",
        "#/",
        "##",
        "++",
        "+a",
        "a/+b",
        "#a",
        "a\x00b",
    ):
        with pytest.raises(InvalidTopic):
            check_filter(bad.encode())
    for bad in (b"\xff", b"a/\xc0\x80", b"\xed\xa0\x80/+"):
        with pytest.raises(InvalidTopic):
            check_filter(bad)
    with pytest.raises(InvalidTopic):
        check_filter("a")  # a str's length counts characters, not bytes
    check_filter(b"a" * 65535)
    with pytest.raises(InvalidTopic):
        check_filter(b"a" * 65536)


@pytest.mark.req("W9", "W12")
@pytest.mark.clause("MQTT-4.8.2-1", "MQTT-4.8.2-2")
def test_shared_subscription_needs_a_name_and_a_filter():
    for good in (b"$share/g/a", b"$share/g/#", b"$share/group/a/+/b", b"$share/g//", b"$share/g/+"):
        check_filter(good)
        assert is_shared(good)
    for bad in (
        b"$share/",
        b"$share//a",
        b"$share/g",
        b"$share/g/",
        b"$share/+/a",
        b"$share/a#/a",
        b"$share/g/a#",
        b"$share/#",
    ):
        with pytest.raises(InvalidTopic):
            check_filter(bad)
        assert not matches(bad, b"a") or bad == b"$share/g/a#"
    for plain in (b"$share", b"$shared/a", b"a/$share/b"):
        check_filter(plain)
        assert not is_shared(plain)


@pytest.mark.req("W9")
@pytest.mark.clause("MQTT-4.7.1-1", "MQTT-4.7.0-1", "MQTT-4.7.3-1", "MQTT-3.3.2-2")
def test_topic_name_has_no_wildcards():
    for good in (b"a", b"/", b"a b", b"$SYS/x", "ä/温".encode(), b"\xef\xbb\xbfa"):
        check_topic(good)
    for bad in (b"", b"+", b"#", b"a/+/b", b"a#", b"a\x00", b"\x80", b"a" * 65536):
        with pytest.raises(InvalidTopic):
            check_topic(bad)


TABLE_3_7 = (
    (0xC2, 0xDF, 0x80, 0xBF, 1),
    (0xE0, 0xE0, 0xA0, 0xBF, 2),
    (0xE1, 0xEC, 0x80, 0xBF, 2),
    (0xED, 0xED, 0x80, 0x9F, 2),
    (0xEE, 0xEF, 0x80, 0xBF, 2),
    (0xF0, 0xF0, 0x90, 0xBF, 3),
    (0xF1, 0xF3, 0x80, 0xBF, 3),
    (0xF4, 0xF4, 0x80, 0x8F, 3),
)


def _well_formed(text):
    """Return whether these bytes are UTF-8 without U+0000, by table 3-7 of the Unicode standard."""
    i = 0
    while i < len(text):
        first = text[i]
        if first < 0x80:
            if first == 0:
                return False
            i += 1
            continue
        row = [row for row in TABLE_3_7 if row[0] <= first <= row[1]]
        if not row:
            return False
        _, _, second_low, second_high, n = row[0]
        tail = text[i + 1 : i + 1 + n]
        if len(tail) < n or not second_low <= tail[0] <= second_high:
            return False
        if any(not 0x80 <= c <= 0xBF for c in tail[1:]):
            return False
        i += 1 + n
    return True


EDGES = (
    0x00,
    0x01,
    0x2B,
    0x7F,
    0x80,
    0x8F,
    0x90,
    0x9F,
    0xA0,
    0xBF,
    0xC0,
    0xC2,
    0xDF,
    0xE0,
    0xE1,
    0xED,
    0xEE,
    0xEF,
    0xF0,
    0xF1,
    0xF4,
    0xF5,
    0xFF,
)


@pytest.mark.req("W9", "W13")
@pytest.mark.clause("MQTT-1.5.3-1", "MQTT-1.5.3-2", "MQTT-1.5.3-3", "MQTT-1.5.4-1", "MQTT-1.5.4-2", "MQTT-1.5.4-3")
def test_utf8_validity_follows_the_unicode_table():
    """Every pair of bytes, and triples and some quadruples of bytes at the edges of the table; at both ends of the range."""
    for first in range(256):
        for second in EDGES if ON_MICROPYTHON else range(256):
            _judge(bytes([first, second]))
    for a in EDGES:
        for b in EDGES:
            for c in EDGES:
                _judge(bytes([a, b, c]))
                if a >= 0xF0:
                    for d in (0x7F, 0x80, 0xBF, 0xC0):
                        _judge(bytes([a, b, c, d]))


def _judge(text):
    kind = utf8.text_kind(b"+\xc3" + text + b"\xa9#", 2, 2 + len(text))
    want = -1 if not _well_formed(text) else 1 if b"+" in text or b"#" in text else 0
    if kind != want:
        raise AssertionError("%r: %d" % (text, kind))


@pytest.mark.req("W13")
def test_text_outside_its_buffer_raises():
    for start, end in ((-1, 2), (3, 2), (0, 5), (5, 5)):
        with pytest.raises(IndexError):
            utf8.text_kind(b"abcd", start, end)
    assert utf8.text_kind(b"abcd", 4, 4) == 0


@pytest.mark.req("W9")
def test_native_and_plain_byte_loops_agree():
    from flashmqtt import fast
    from flashmqtt.codec import quick, quick_plain
    from flashmqtt.fast import plain as plain_fast

    for byte in range(256):
        for at in range(4):
            text = bytearray(b"abcd")
            text[at] = byte
            plain = 0 < byte < 128 and byte not in (43, 35)
            for ends in (quick.plain_end(text, 0, 4), quick_plain.plain_end(text, 0, 4)):
                assert (ends == 4) == plain or (ends <= at and quick_plain.plain_end(b"a", 0, 1) == 0)
            for run in (fast.raw_run, plain_fast.raw_run):
                assert run(b"..abcd", bytes(text), 4, 2, 0, 0) == (byte == b"abcd"[at])


@pytest.mark.req("W7", "W9")
def test_native_and_plain_put_message_agree_and_never_overrun():
    from flashmqtt.codec import quick, quick_plain

    for topic in (b"a", b"a/b/c", b"t" * 200):
        for n in (0, 1, 3, 4, 7, 120, 127, 300, 17000):
            payload = bytes(i & 255 for i in range(n))
            for packet_id in (0, 1, 65535):
                head = 0x33 if packet_id else 0x31
                wanted = b"." + packet(head, text(topic), word(packet_id) if packet_id else b"", payload)
                end = len(wanted)
                for put in (quick.put_message, quick_plain.put_message):
                    buf = bytearray(b"." * (end + 5))
                    assert put(buf, 1, topic, payload, head | packet_id << 8) == end
                    assert buf == wanted + b"....."
                    short = bytearray(b"." * (end - 1))
                    assert put(short, 1, topic, payload, head | packet_id << 8) == 0
                    assert short == b"." * (end - 1)
