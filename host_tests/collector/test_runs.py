"""Runs against the plain way, a message at a time: the same rows, the same answers, the same errors, on any stream."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashmqtt import errors
from flashmqtt.connection import OUTPUT
from tools.collector.collector import Collector, Settings
from tools.collector.health import Health
from tools.collector.runs import PUBREC_WINDOW
from tools.landing.log import HELD, LANDED, read_log
from tools.landing.seal import rows_of

pytestmark = pytest.mark.req("P1", "Q3", "Q4")

CONNACK = {4: b"\x20\x02\x01\x00", 5: b"\x20\x03\x01\x00\x00"}
TOPICS = (b"a", b"flashmqtt/a/readings", "flashmqtt/ü/readings".encode(), b"x" * 120)
WRONG_TOPICS = (b"", b"a/+", b"#", b"a\0b", b"\xff", b"\xed\xa0\x80")


def framed(first, body, wasteful=False):
    length, rest = b"", len(body)
    while True:
        byte, rest = rest & 127, rest >> 7
        last = not rest
        length += bytes((byte if last and not wasteful else byte | 128,))
        if last:
            return bytes((first,)) + length + (b"\0" if wasteful else b"") + body


def put_publish(
    level, topic, payload, qos, packet_id, dup, retain, properties=b"\0", wasteful=False, topic_length=None
):
    body = (len(topic) if topic_length is None else topic_length).to_bytes(2, "big") + topic
    if qos:
        body += packet_id.to_bytes(2, "big")
    if level == 5:
        body += properties
    return framed(0x30 | dup << 3 | qos << 1 | retain, body + payload, wasteful)


def wrong_packets(level, payload=b"x"):
    """Return packets that the decoder refuses, most of them so like the usual ones as can be."""
    return (
        put_publish(level, b"a", payload, 1, 0, False, False),
        put_publish(level, b"a", payload, 3, 1, False, False),
        put_publish(level, b"a", payload, 0, 0, True, False),
        put_publish(level, b"a", b"", 1, 1, False, False, topic_length=200),
        put_publish(level, b"a", b"", 1, 1, False, False, topic_length=4),
        put_publish(level, b"a", payload, 1, 1, False, False, wasteful=True),
        put_publish(level, b"a", payload, 1, 1, False, False, properties=b"\x03\x23\0\1"),
        put_publish(level, b"a", payload, 1, 1, False, False, properties=b"\x7f"),
        *(put_publish(level, topic, payload, 1, 1, False, False) for topic in WRONG_TOPICS),
        b"\x32\x00",
        b"\x32\x03\x00\x01a",
        b"\x32\x04\x00\x01a\x00",
        b"\x32\x05\x00\x01a\x00\x01",  # at level 5 the properties are missing
        b"\x32\xff\xff\xff\xff\x01",
        b"\x00\x00",
        b"\x20\x02\x00\x00",
        b"\x40\x02\x00\x09",
    )


@st.composite
def packets(draw, level):
    ids = st.integers(1, 6)
    payload = draw(st.sampled_from((b"", b"x", b"y" * 50, b"z" * 300)))
    kind = draw(st.sampled_from(("usual",) * 12 + ("other",) * 5 + ("release", "ping", "wrong")))
    retain = draw(st.booleans())
    if kind == "usual":
        return put_publish(level, draw(st.sampled_from(TOPICS)), payload, 1, draw(ids), draw(st.booleans()), retain)
    if kind == "other":
        qos = draw(st.sampled_from((0, 1, 2)))
        properties = draw(st.sampled_from((b"\0", b"\x02\x01\x01", b"\x08\x26\0\x01k\0\x02vv")))
        return put_publish(
            level,
            draw(st.sampled_from(TOPICS)),
            payload,
            qos,
            draw(ids),
            qos > 0 and draw(st.booleans()),
            retain,
            properties,
        )
    if kind == "release":
        return b"\x62\x02" + draw(ids).to_bytes(2, "big")
    if kind == "ping":
        return b"\xd0\x00"
    return draw(st.sampled_from(wrong_packets(level)))


@st.composite
def streams(draw):
    level = draw(st.sampled_from((4, 4, 5)))
    stream = b"".join(draw(st.lists(packets(level), max_size=40)))
    cuts = draw(st.lists(st.integers(0, len(stream)), max_size=6))
    edges = sorted({0, len(stream), *cuts})
    return level, [stream[start:end] for start, end in itertools.pairwise(edges)]


def drive(directory, level, chunks, runs, commit_count=4096):
    """Feed a collector without a network; return its rows, what it holds, what it answers, and how it ended."""
    chosen = Settings("", 1, "c", directory, level=level, packet_bytes=4096, in_flight=100, commit_count=commit_count)
    collector = Collector(chosen, Health("c", quiet=True))
    if not runs:
        collector.decoder.take_run = lambda most: (b"", [])
    connection = collector.connection
    collector.store.time_us = 1
    answers = bytearray()

    def write():
        output = connection.output()
        answers.extend(output)
        connection.sent(len(output), 1)

    connection.start(1)
    write()
    answers.clear()
    ended = ""
    try:
        for chunk in (CONNACK[level], *chunks):
            connection.decoder.feed(chunk)
            while collector._process() == OUTPUT:
                write()
    except errors.FlashMqttError as error:
        ended = f"{type(error).__name__} {error}"
    write()
    collector.store.close()
    contents = read_log(collector.store.log_path(1))
    held = [contents.data[entry.start : entry.end] for entry in contents.entries if entry.kind == HELD]
    rows = rows_of(contents).drop_columns(["arrival"]).to_pylist()
    return rows, held, bytes(answers), ended, sum(entry.kind == LANDED for entry in contents.entries)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams())
def test_runs_and_single_messages_give_the_same(stream):
    level, chunks = stream
    with tempfile.TemporaryDirectory() as name:
        *plain, _ = drive(Path(name) / "plain", level, chunks, runs=False)
        *quick, _ = drive(Path(name) / "quick", level, chunks, runs=True)
    assert quick == plain


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("which", range(len(wrong_packets(4))))
def test_packet_that_is_nearly_a_usual_one_is_judged_by_the_decoder(tmp_path, level, which):
    usual = [put_publish(level, b"a", b"%d" % n, 1, n + 1, False, False) for n in range(4)]
    chunks = [usual[0], b"".join((usual[1], usual[2], wrong_packets(level)[which], usual[3], usual[3]))]
    *plain, _ = drive(tmp_path / "plain", level, chunks, runs=False)
    *quick, _ = drive(tmp_path / "quick", level, chunks, runs=True)
    assert quick == plain


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"x" * 200])
def test_run_longer_than_the_output_is_acknowledged_whole_and_in_order(tmp_path, level, payload):
    count = 3000
    stream = b"".join(put_publish(level, b"a", b"%d:" % n + payload, 1, n + 1, 0, 0) for n in range(count))
    chunks = [stream[at : at + 100_000] for at in range(0, len(stream), 100_000)]
    rows, _, answers, ended, entries = drive(tmp_path, level, chunks, runs=True, commit_count=1)
    assert ended == ""
    assert [row["payload"].partition(b":")[0] for row in rows] == [b"%d" % n for n in range(count)]
    acknowledgements = b"".join(b"\x40\x02" + (n + 1).to_bytes(2, "big") for n in range(count))
    assert answers.endswith(acknowledgements)
    assert entries < 20, "it was taken in runs"


@pytest.mark.clause("MQTT-4.6.0-3")
def test_flood_of_qos_2_is_stored_at_once_and_answered_in_order_a_window_at_a_time(tmp_path):
    count = 3 * PUBREC_WINDOW + 7
    chosen = Settings("", 1, "c", tmp_path, in_flight=count)
    collector = Collector(chosen, Health("c", quiet=True))
    connection = collector.connection

    def write():
        output = bytes(connection.output())
        connection.sent(len(output), 1)
        return output

    def exchange(packets):
        connection.decoder.feed(packets)
        answers = b""
        while collector._process() == OUTPUT:
            answers += write()
        return answers + write()

    def acks(kind, first, last):
        return b"".join(bytes((kind, 2)) + n.to_bytes(2, "big") for n in range(first, min(last, count) + 1))

    connection.start(1)
    write()
    exchange(CONNACK[4])
    flood = b"".join(put_publish(4, b"a", b"%d" % n, 2, n, 0, 0) for n in range(1, count + 1))
    assert exchange(flood) == acks(0x50, 1, PUBREC_WINDOW)
    assert collector.store.held == count
    for first in range(1, count + 1, PUBREC_WINDOW):
        last = first + PUBREC_WINDOW - 1
        following = acks(0x50, last + 1, last + PUBREC_WINDOW)
        assert exchange(acks(0x62, first, last)) == acks(0x70, first, last) + following
    assert (collector.store.held, collector.store.rows) == (0, count)
    collector.store.close()
