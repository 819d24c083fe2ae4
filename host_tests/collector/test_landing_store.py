"""The landing directory: held messages, rotation, sealing, and a crash at every step between them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tools.landing import log, segments
from tools.landing.log import DiskFull, LandingDamaged, LandingError, LandingForeign, LandingStalled
from tools.landing.seal import seal
from tools.landing.store import LandingInUse, LandingStore, SlotsFull

pytestmark = pytest.mark.req("P1")


def publish(topic, payload, qos=1, packet_id=7, dup=False, retain=False, properties=None):
    """Return a PUBLISH packet; an encoder of the tests' own (a shared one would hide shared mistakes)."""
    body = len(topic).to_bytes(2, "big") + topic
    if qos:
        body += packet_id.to_bytes(2, "big")
    if properties is not None:
        body += bytes((len(properties),)) + properties
    body += payload
    length, rest = b"", len(body)
    while True:
        byte, rest = rest & 127, rest >> 7
        length += bytes((byte | 128 if rest else byte,))
        if not rest:
            break
    return bytes((0x30 | dup << 3 | qos << 1 | retain,)) + length + body


def land(store, *packets):
    for packet in packets:
        store.land(packet[:2], packet[2:])


class Landing:
    """A store and its segments in one directory."""

    def __init__(self, directory, **more):
        self.directory = directory
        self.store = LandingStore(directory / "c.logs", "c", **more)

    def seal(self):
        for number in list(self.store.closed):
            seal(self.store.log_path(number), self.directory)
            self.store.sealed(number)

    def rows(self):
        return rows_in(self.directory)


def rows_in(directory):
    """Return all sealed rows, in the order of their ordinals, and check the numbering on the way."""
    found = segments.find_segments(directory)
    assert [segment.number for segment in found] == list(range(1, len(found) + 1))
    rows = []
    for segment in found:
        part = pq.read_table(segment.path).to_pylist()
        assert {row["segment"] for row in part} <= {segment.number}
        rows += sorted(part, key=lambda row: row["row"])
    assert [row["row"] for row in rows] == list(range(1, len(rows) + 1))
    return rows


def payloads(rows):
    return [row["payload"] for row in rows]


def test_rows_carry_what_arrived(tmp_path):
    landing = Landing(tmp_path)
    store = landing.store
    store.time_us = 1_700_000_000_000_001
    packets = [
        publish(b"flashmqtt/a/readings", b"x" * 130, 1, 1, dup=True),
        publish("flashmqtt/ü/readings".encode(), b"", 0, retain=True),
        publish(b"t", b"y" * 20000, 1, 3),
    ]
    land(store, *packets)
    store.level = 5
    land(store, publish(b"t5", b"z", 1, 4, properties=b"\x01\x01"))
    land(store, publish(b"t5", b"", 1, 5, properties=b""))
    store.sync()
    assert store.rotate()
    landing.seal()
    columns = ("topic", "qos", "dup", "retain", "properties", "payload")
    rows = landing.rows()
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("flashmqtt/a/readings", 1, True, False, None, b"x" * 130),
        ("flashmqtt/ü/readings", 0, False, True, None, b""),
        ("t", 1, False, False, None, b"y" * 20000),
        ("t5", 1, False, False, b"\x01\x01", b"z"),
        ("t5", 1, False, False, b"", b""),
    ]
    assert {row["collector"] for row in rows} == {"c"}
    assert {row["arrival"].timestamp() for row in rows} == {1_700_000_000.000001}


@pytest.mark.req("Q4")
def test_held_message_is_a_row_only_when_it_is_released(tmp_path):
    landing = Landing(tmp_path)
    store = landing.store
    packet = publish(b"t", b"qos 2", 2, 9)
    slot = store.hold(bytearray(packet + b"more"), len(packet))
    land(store, publish(b"t", b"qos 1"))
    store.sync()
    assert store.rotate()
    landing.seal()
    assert payloads(landing.rows()) == [b"qos 1"]
    copy = bytearray(len(packet))
    store.read(slot, 0, copy, 0, store.length_of(slot))
    assert copy == packet
    store.release(slot)
    assert not store.is_open(slot)
    store.sync()
    assert store.rotate()
    landing.seal()
    rows = landing.rows()
    assert payloads(rows) == [b"qos 1", b"qos 2"]
    assert rows[1]["qos"] == 2


@pytest.mark.req("Q4")
def test_held_and_marked_messages_come_back_after_a_crash_also_through_rotations(tmp_path):
    landing = Landing(tmp_path)
    packets = [publish(b"t", b"%d" % n, 2, n + 1) for n in range(5)]
    for packet in packets:
        landing.store.hold(packet, len(packet))
    landing.store.mark(3, 17)
    landing.store.release(1)
    landing.store.sync()
    for _ in range(3):
        landing.store.close()
        landing = Landing(tmp_path)
        store = landing.store
        assert [slot for slot in range(8) if store.is_open(slot)] == [0, 2, 3, 4]
        assert store.mark_of(3) == 17
        assert store.old(3)
        assert store.length_of(4) == len(packets[4])
        assert store.hold(packets[1], len(packets[1])) == 1, "a free slot is used again"
        assert not store.old(1)
        store.release(1)
        assert store.rotate()
        landing.seal()
    assert payloads(landing.rows()) == [b"1"] * 4
    assert landing.store.boot == 4


def test_what_was_not_synced_is_forgotten(tmp_path):
    landing = Landing(tmp_path)
    land(landing.store, publish(b"t", b"synced"))
    landing.store.sync()
    land(landing.store, publish(b"t", b"not synced"))
    landing.store.close()
    landing = Landing(tmp_path)
    assert landing.store.rows == 1
    landing.store.rotate()
    landing.seal()
    assert payloads(landing.rows()) == [b"synced"]


@pytest.mark.req("Q4")
def test_crash_at_every_byte_of_the_log_keeps_what_was_acknowledged(tmp_path):
    """A run of QoS 1 and 2 traffic, its log cut at every byte: what was synced is there, nothing is there twice."""
    landing = Landing(tmp_path / "run")
    store = landing.store
    land(store, publish(b"t", b"in the first log"))
    first = publish(b"t", b"2a", 2, 1)
    slots = [store.hold(first, len(first))]
    store.rotate()
    after = [(store.log_bytes, {b"in the first log"}, {b"2a"})]

    def step(rows, held):
        store.sync()
        _, rows_before, held_before = after[-1]
        after.append((store.log_bytes, rows_before | rows, (held_before | held) - rows))

    land(store, publish(b"t", b"1a"), publish(b"t", b"1b"))
    step({b"1a", b"1b"}, set())
    second = publish(b"t", b"2b", 2, 2)
    slots.append(store.hold(second, len(second)))
    land(store, publish(b"t", b"1c"))
    step({b"1c"}, {b"2b"})
    store.release(slots[0])
    step({b"2a"}, set())
    store.release(slots[1])
    land(store, publish(b"t", b"1d"))
    step({b"2b", b"1d"}, set())
    landing.seal()
    store.close()

    log = "c.logs/0000000002.log"
    whole = (tmp_path / "run" / log).read_bytes()
    for cut in range(after[0][0], len(whole) + 1):
        copy = tmp_path / "cut"
        shutil.copytree(tmp_path / "run", copy)
        (copy / log).write_bytes(whole[:cut])
        again = Landing(copy)
        _, rows, held = [state for state in after if state[0] <= cut][-1]
        kept = again.store
        assert {kept._held[slot].packet[-2:] for slot in range(4) if kept.is_open(slot)} == held
        for slot in range(4):
            if kept.is_open(slot):
                kept.release(slot)
        kept.rotate()
        again.seal()
        found = payloads(again.rows())
        assert len(found) == len(set(found))
        assert set(found) == rows | held
        kept.close()
        shutil.rmtree(copy)


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("nth", range(1, 40))
def test_crash_at_every_system_call_of_rotation_and_sealing_writes_no_row_twice(tmp_path, monkeypatch, nth):
    landing = Landing(tmp_path)
    held = publish(b"t", b"held", 2, 1)
    slot = landing.store.hold(held, len(held))
    land(landing.store, publish(b"t", b"1"), publish(b"t", b"2"))
    landing.store.sync()
    calls = 0

    def crashing(real):
        def call(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls == nth:
                raise Crash
            result = real(*arguments, **named)
            if calls == nth + 1000:
                raise Crash
            return result

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "fsync", "fdatasync", "pwrite", "replace", "rename", "unlink", "ftruncate"):
            patch.setattr(os, name, crashing(getattr(os, name)))
        try:
            landing.store.rotate()
            landing.seal()
            landing.store.release(slot)
            landing.store.sync()
            landing.store.rotate()
            landing.seal()
        except Crash:
            pass
    assert calls <= max(nth, 38), "more calls than this test knows of: raise its range"
    landing.store.close()
    landing = Landing(tmp_path)
    if landing.store.is_open(slot):
        landing.store.release(slot)
    landing.store.rotate()
    landing.seal()
    found = payloads(landing.rows())
    assert found == [b"1", b"2", b"held"]
    assert not list(tmp_path.glob("c.logs/*.tmp"))


def test_log_that_never_took_over_is_not_believed(tmp_path, monkeypatch):
    """The directory's sync fails, the old log goes on, and the power fails before the new one's removal is durable."""
    landing = Landing(tmp_path)
    held = publish(b"t", b"held", 2, 1)
    slot = landing.store.hold(held, len(held))
    land(landing.store, publish(b"t", b"1"))
    landing.store.sync()

    def failing(directory):
        raise OSError(errno.EIO, "Input/output error")

    kept = {}
    real = os.unlink

    def unlink(path, *more, **named):
        if str(path).endswith("2.log"):
            kept[path] = path.read_bytes()
        real(path, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(log, "sync_directory", failing)
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(LandingStalled):
            landing.store.rotate()
    landing.store.release(slot)
    land(landing.store, publish(b"t", b"2"))
    landing.store.sync()
    landing.store.close()
    ((path, content),) = kept.items()
    path.write_bytes(content)
    landing = Landing(tmp_path)
    assert landing.store.held == 0
    assert landing.store.rotate()
    landing.seal()
    assert payloads(landing.rows()) == [b"1", b"held", b"2"]


def test_segment_that_is_there_already_is_left_and_its_log_removed(tmp_path):
    landing = Landing(tmp_path)
    land(landing.store, publish(b"t", b"1"))
    landing.store.rotate()
    first = seal(landing.store.log_path(1), tmp_path)
    inode = os.stat(first["path"]).st_ino
    landing.store.close()
    landing = Landing(tmp_path)
    assert landing.store.closed == [1]
    landing.seal()
    assert os.stat(first["path"]).st_ino == inode
    assert payloads(landing.rows()) == [b"1"]
    assert not landing.store.log_path(1).exists()


def test_segment_numbers_go_on_where_only_the_segments_were_kept(tmp_path):
    landing = Landing(tmp_path, first_number=8, rows_before=70)
    land(landing.store, publish(b"t", b"1"))
    landing.store.rotate()
    landing.seal()
    (row,) = pq.read_table(tmp_path / segments.file_name("c", 8)).to_pylist()
    assert (row["segment"], row["row"]) == (8, 71)


def test_disk_full_while_rotating_keeps_the_log_in_use(tmp_path, monkeypatch):
    landing = Landing(tmp_path)
    land(landing.store, publish(b"t", b"1"))

    def no_room(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(DiskFull):
            landing.store.rotate()
    land(landing.store, publish(b"t", b"2"))
    landing.store.sync()
    assert landing.store.rotate()
    landing.seal()
    assert payloads(landing.rows()) == [b"1", b"2"]


def test_file_system_that_became_read_only_while_rotating_is_named(tmp_path, monkeypatch):
    landing = Landing(tmp_path)
    land(landing.store, publish(b"t", b"1"))

    def refuse(path, *more, **named):
        raise OSError(errno.EROFS, "Read-only file system")  # also to unlink what is not there

    with monkeypatch.context() as patch:
        for name in ("open", "unlink"):
            patch.setattr(Path, name, refuse)
        with pytest.raises(LandingStalled, match="Read-only file system"):
            landing.store.rotate()
    land(landing.store, publish(b"t", b"2"))
    assert landing.store.rotate()
    landing.seal()
    assert payloads(landing.rows()) == [b"1", b"2"]


def test_disk_full_while_sealing_leaves_the_log_for_the_next_try(tmp_path, monkeypatch):
    landing = Landing(tmp_path)
    land(landing.store, publish(b"t", b"1"))
    landing.store.rotate()

    def no_room(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(OSError):
            landing.seal()
    assert landing.rows() == []
    assert landing.store.closed == [1]
    landing.seal()
    assert payloads(landing.rows()) == [b"1"]


def test_reserve_stops_the_log_but_not_its_closing(tmp_path, monkeypatch):
    landing = Landing(tmp_path, reserve_bytes=1 << 20)
    land(landing.store, publish(b"t", b"1"))
    landing.store.sync()
    land(landing.store, publish(b"t", b"2"))
    real = os.fstatvfs
    free = (1 << 20) - 1

    def little(handle):
        disk = list(real(handle))
        disk[1], disk[4] = 1, free
        return os.statvfs_result(disk)

    monkeypatch.setattr(os, "fstatvfs", little)
    with pytest.raises(DiskFull, match="less than 1 MB are free"):
        landing.store.sync()
    assert landing.store.rotate()
    landing.seal()
    assert payloads(landing.rows()) == [b"1", b"2"]
    landing.store.sync()
    land(landing.store, publish(b"t", b"3"))
    with pytest.raises(DiskFull):
        landing.store.sync()
    free <<= 1
    landing.store.sync()


def test_second_collector_is_refused_by_name(tmp_path):
    landing = Landing(tmp_path)
    with pytest.raises(LandingInUse, match="in use"):
        Landing(tmp_path)
    landing.store.close()
    Landing(tmp_path).store.close()


def test_landing_of_another_client_id_is_refused_by_name(tmp_path):
    Landing(tmp_path).store.close()
    with pytest.raises(LandingForeign, match="belongs to the collector 'c'"):
        LandingStore(tmp_path / "c.logs", "d")


def test_directory_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LandingStalled, match="can't write"):
        LandingStore(tmp_path / "file" / "below", "c")


def test_more_in_flight_than_slots_is_refused_by_name(tmp_path):
    store = Landing(tmp_path, slots=3).store
    for _ in range(3):
        store.hold(b"x", 1)
    with pytest.raises(SlotsFull, match="more than 3"):
        store.hold(b"x", 1)


def damage(path, needle):
    content = bytearray(path.read_bytes())
    content[content.index(needle)] ^= 0xFF
    path.write_bytes(content)


def three_rows(tmp_path):
    landing = Landing(tmp_path)
    for payload in (b"first", b"second", b"third"):
        land(landing.store, publish(b"t", payload))
        landing.store.sync()
    return landing


def test_damage_in_the_open_log_stops_the_start_and_is_salvaged_on_request(tmp_path):
    three_rows(tmp_path).store.close()
    damage(tmp_path / "c.logs" / "0000000001.log", b"second")
    with pytest.raises(LandingDamaged, match="--salvage"):
        Landing(tmp_path)
    landing = Landing(tmp_path, salvage=True)
    assert landing.store.closed == [1]
    seal(landing.store.log_path(1), tmp_path, salvage=True)
    landing.store.sealed(1)
    assert payloads(landing.rows()) == [b"first", b"third"]
    assert (tmp_path / "c.logs" / "0000000001.damaged").exists()


@pytest.mark.parametrize("which", [b"second", b"third"])
def test_damage_in_a_closed_log_stops_its_sealing_and_is_salvaged_on_request(tmp_path, which):
    landing = three_rows(tmp_path)
    landing.store.rotate()
    damage(tmp_path / "c.logs" / "0000000001.log", which)
    with pytest.raises(LandingDamaged, match="--salvage"):
        landing.seal()
    seal(landing.store.log_path(1), tmp_path, salvage=True)
    landing.store.sealed(1)
    assert payloads(landing.rows()) == [text for text in (b"first", b"second", b"third") if text < which] + (
        [b"third"] if which == b"second" else []
    )


def test_store_queues_nothing(tmp_path):
    store = Landing(tmp_path).store
    assert store.take() == -1
    assert store.waiting == 0
    with pytest.raises(LandingError):
        store.append(b"x", 1)
