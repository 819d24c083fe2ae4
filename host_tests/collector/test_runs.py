"""Runs compared with one message at a time: the same rows, answers and errors for any stream."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flashmqtt import errors
from flashmqtt.connection import OUTPUT
from tools.collector.collector import Collector, Settings
from tools.collector.health import Health
from tools.collector.runs import PUBREC_WINDOW, RunDecoder
from tools.landing.log import HELD, LANDED, read_log
from tools.landing.seal import rows_of
from tools.proof.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, ack, packet, word
from wire import take

pytestmark = pytest.mark.req("P1", "Q3", "Q4")

CONNACK = {4: b"\x20\x02\x01\x00", 5: b"\x20\x03\x01\x00\x00"}
TOPICS = (b"a", b"flashmqtt/a/readings", "flashmqtt/ü/readings".encode(), b"x" * 120)
WRONG_TOPICS = (b"", b"a/+", b"#", b"a\0b", b"\xff", b"\xed\xa0\x80")


def put_publish(
    level, topic, payload, qos, packet_id, dup, retain, properties=b"\0", wasteful=False, topic_length=None
):
    """Return a PUBLISH; `properties` begin with their length, which may be wrong, like `topic_length` and `wasteful`."""
    body = word(len(topic) if topic_length is None else topic_length) + topic + (word(packet_id) if qos else b"")
    body += (properties if level == 5 else b"") + payload
    made = packet(0x30 | dup << 3 | qos << 1 | retain, body)
    if wasteful:  # the length takes one byte more than it needs
        end = len(made) - len(body)
        made = made[: end - 1] + bytes((made[end - 1] | 128, 0)) + body
    return made


def wrong_packets(level, payload=b"x"):
    """Return packets that the decoder refuses, most of them very similar to valid ones."""
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
        return ack(PUBREL, draw(ids))
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
    """Feed a collector without a network; return its rows, held messages, answers, error and number of landed entries."""
    chosen = Settings("", 1, "c", directory, level=level, packet_bytes=4096, in_flight=100, commit_count=commit_count)
    collector = Collector(chosen, Health("c", quiet=True))
    if not runs:
        collector.decoder.take_run = lambda most: (b"", [])
    connection = collector.connection
    collector.store.time_us = 1
    answers = bytearray()

    connection.start(1)
    take(connection, 1)
    ended = ""
    try:
        for chunk in (CONNACK[level], *chunks):
            connection.decoder.feed(chunk)
            while collector._process() == OUTPUT:
                answers += take(connection, 1)
    except errors.FlashMqttError as error:
        ended = f"{type(error).__name__} {error}"
    answers += take(connection, 1)
    collector.store.close()
    contents = read_log(collector.store.log_path(1))
    held = [contents.data[entry.start : entry.end] for entry in contents.entries if entry.kind == HELD]
    rows = rows_of(contents).drop_columns(["arrival"]).to_pylist()
    return rows, held, bytes(answers), ended, sum(entry.kind == LANDED for entry in contents.entries)


PUBLISHED, AGAIN = (put_publish(4, b"a", b"x", 1, 1, dup, False) for dup in (False, True))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@example((4, [PUBLISHED * 2 + AGAIN]))
@example((4, [PUBLISHED + AGAIN]))
@given(streams())
def test_runs_give_the_same_as_single_messages(stream):
    level, chunks = stream
    with tempfile.TemporaryDirectory() as name:
        *plain, _ = drive(Path(name) / "plain", level, chunks, runs=False)
        *quick, _ = drive(Path(name) / "quick", level, chunks, runs=True)
    assert quick == plain


@pytest.mark.parametrize(("length", "remembered"), [(255, True), (256, False)])
def test_only_short_topics_are_remembered(length, remembered):
    """100,000 topics of 65,535 bytes would take 6.5 GB."""
    packet = put_publish(4, b"x" * length, b"1", 1, 1, False, False)
    decoder = RunDecoder(1 << 18, 4)
    decoder.know(length.to_bytes(2) + b"x" * length)
    decoder.room()[: len(packet)] = packet
    decoder.received(len(packet))
    decoder.look()
    assert decoder.take_run(9) == ((packet, [b"\0\1"]) if remembered else (b"", []))


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("which", range(len(wrong_packets(4))))
def test_wrong_packet_in_a_run_ends_as_without_runs(tmp_path, level, which):
    usual = [put_publish(level, b"a", b"%d" % n, 1, n + 1, False, False) for n in range(4)]
    chunks = [usual[0], b"".join((usual[1], usual[2], wrong_packets(level)[which], usual[3], usual[3]))]
    *plain, _ = drive(tmp_path / "plain", level, chunks, runs=False)
    *quick, _ = drive(tmp_path / "quick", level, chunks, runs=True)
    assert quick == plain


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("payload", [b"", b"x" * 100, b"x" * 200])
def test_run_longer_than_the_output_buffer_is_acknowledged_in_order(tmp_path, level, payload):
    count = 3000
    stream = b"".join(put_publish(level, b"a", b"%d:" % n + payload, 1, n + 1, 0, 0) for n in range(count))
    chunks = [stream[at : at + 100_000] for at in range(0, len(stream), 100_000)]
    rows, _, answers, ended, entries = drive(tmp_path, level, chunks, runs=True, commit_count=1)
    assert ended == ""
    assert [row["payload"].partition(b":")[0] for row in rows] == [b"%d" % n for n in range(count)]
    assert answers.endswith(acks(PUBACK, 1, count))
    assert entries < 20, "it was taken in runs"


class Wire:
    """A collector without a network: `exchange` takes a broker's packets and returns the answers."""

    def __init__(self, directory, level=4, **more):
        self.collector = Collector(Settings("", 1, "c", directory, level=level, **more), Health("c", quiet=True))
        self.store = self.collector.store
        self.level = level

    def connect(self):
        self.collector.connection.start(1)
        take(self.collector.connection, 1)
        self.exchange(CONNACK[self.level])

    def exchange(self, *packets):
        connection = self.collector.connection
        connection.decoder.feed(b"".join(packets))
        answers = b""
        while self.collector._process() == OUTPUT:
            answers += take(connection, 1)
        return answers + take(connection, 1)

    def payloads(self):
        """End, and return the payloads of the rows."""
        self.store.close()
        return rows_of(read_log(self.store.log_path(1)))["payload"].to_pylist()


def acks(kind, first, last):
    return b"".join(ack(kind, n) for n in range(first, last + 1))


@pytest.mark.clause("MQTT-4.6.0-3")
def test_qos_2_flood_is_stored_and_answered_by_windows_in_order(tmp_path):
    count = 3 * PUBREC_WINDOW + 7
    wire = Wire(tmp_path, in_flight=count)
    wire.connect()
    flood = (put_publish(4, b"a", b"%d" % n, 2, n, 0, 0) for n in range(1, count + 1))
    assert wire.exchange(*flood) == acks(PUBREC, 1, PUBREC_WINDOW)
    assert wire.store.held_count == count
    for first in range(1, count + 1, PUBREC_WINDOW):
        last = min(first + PUBREC_WINDOW - 1, count)
        following = acks(PUBREC, last + 1, min(last + PUBREC_WINDOW, count))
        assert wire.exchange(acks(PUBREL, first, last)) == acks(PUBCOMP, first, last) + following
    assert (wire.store.held_count, wire.store.rows) == (0, count)
    wire.store.close()


@pytest.mark.clause("MQTT-4.6.0-3")
def test_new_message_is_answered_after_waiting_pubrecs(tmp_path):
    wire = Wire(tmp_path)
    wire.connect()
    count = PUBREC_WINDOW + 3
    wire.exchange(*(put_publish(4, b"a", b"", 2, n, 0, 0) for n in range(1, count + 1)))
    answers = wire.exchange(acks(PUBREL, 1, 5), put_publish(4, b"a", b"", 2, count + 1, 0, 0))
    assert answers == acks(PUBCOMP, 1, 5) + acks(PUBREC, PUBREC_WINDOW + 1, count + 1)
    wire.store.close()


def test_messages_and_releases_received_together_share_one_sync(tmp_path, monkeypatch):
    wire = Wire(tmp_path)
    wire.connect()
    syncs, sync = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda handle: syncs.append(sync(handle)))
    wire.exchange(*(put_publish(4, b"a", b"", 2, n, 0, 0) for n in range(1, 101)))
    wire.exchange(*(acks(PUBREL, n, n) + put_publish(4, b"a", b"", 1, n, 0, 0) for n in range(1, 101)))
    assert wire.store.rows == 200
    assert len(syncs) == 2
    wire.store.close()


@pytest.mark.parametrize("lost", [False, True])
def test_held_messages_land_once_when_packet_ids_are_reused(tmp_path, lost):
    """`lost`: the CONNACK without a session never arrived, because the collector was killed."""
    first, second = (
        [put_publish(4, b"a", text + b"%d" % n, 2, n, 0, 0) for n in range(1, 51)] for text in (b"A", b"B")
    )
    wire = Wire(tmp_path)
    wire.connect()
    wire.exchange(*first)
    if lost:
        wire.store.close()
        wire = Wire(tmp_path)
    wire.connect()
    assert wire.exchange(*second).endswith(acks(PUBREC, 1, 50))
    wire.exchange(acks(PUBREL, 1, 50))
    assert wire.store.held_count == 0
    assert wire.payloads() == [b"A%d" % n for n in range(1, 51)] + [b"B%d" % n for n in range(1, 51)]


def test_level_5_resend_with_shorter_expiry_lands_once(tmp_path):
    wire = Wire(tmp_path, level=5)
    for dup, left in ((0, 60), (1, 50)):
        wire.connect()
        expiry = b"\x05\x02" + left.to_bytes(4, "big")
        assert wire.exchange(put_publish(5, b"a", b"once", 2, 7, dup, 0, expiry)).endswith(acks(PUBREC, 7, 7))
    wire.exchange(acks(PUBREL, 7, 7))
    assert wire.payloads() == [b"once"]
