"""The landing directory: held messages, rotation, sealing, and a crash at every step between them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from flashmqtt.errors import StoreFull, UsageError
from tools.landing import durable, recent, segments
from tools.landing.lock import LandingInUse
from tools.landing.log import DiskFull, LandingDamaged, LandingForeign, LandingStalled
from tools.landing.recent import Recent, digest
from tools.landing.seal import seal
from tools.landing.store import MOST_HELD, LandingStore
from tools.proof import packets as p

pytestmark = pytest.mark.req("P1")


def publish(topic, payload, qos=1, packet_id=7, dup=False, retain=False, properties=None):
    level = 4 if properties is None else 5
    return p.publish(topic, payload, qos, packet_id, level, retain, dup, properties or b"")


def land(store, *packets):
    for packet in packets:
        store.land(packet, 1)


def read(store, key):
    """Return a held message."""
    copy = bytearray(store.held_length(key))
    store.read_held(key, 0, copy, 0, len(copy))
    return bytes(copy)


class Landing:
    """A store and its segments in one directory."""

    def __init__(self, directory, **more):
        self.directory = directory
        self.store = LandingStore(directory / "c.logs", "c", **more)

    def seal(self):
        for number in list(self.store.closed):
            seal(self.store.log_path(number), self.directory)
            self.store.sealed(number)

    def rotate(self):
        """Begin a new log, and seal the others; return whether a new one was begun."""
        rotated = self.store.rotate()
        self.seal()
        return rotated

    def rows(self):
        return rows_in(self.directory)


@pytest.fixture
def landing(tmp_path):
    return Landing(tmp_path)


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


def test_rows_contain_all_fields_of_the_message(landing):
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
    assert landing.rotate()
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
def test_held_message_lands_only_when_discarded(landing):
    store = landing.store
    packet = publish(b"t", b"qos 2", 2, 9)
    store.hold(9, bytearray(packet + b"more"), len(packet))
    land(store, publish(b"t", b"qos 1"))
    store.sync()
    assert landing.rotate()
    assert payloads(landing.rows()) == [b"qos 1"]
    assert read(store, 9) == packet
    piece = bytearray(b"....")
    store.read_held(9, 3, piece, 1, 2)
    assert piece == b"." + packet[3:5] + b"."
    store.discard(9)
    assert (store.held(), store.held_length(9)) == ([], 0)
    store.sync()
    assert landing.rotate()
    rows = landing.rows()
    assert payloads(rows) == [b"qos 1", b"qos 2"]
    assert rows[1]["qos"] == 2


@pytest.mark.req("Q4")
def test_held_messages_keep_their_order_across_crashes_and_rotations(tmp_path, landing):
    keys = [MOST_HELD, 4, 3, 2, 1]
    packets = {key: publish(b"t", b"%d" % key, 2, key) for key in keys}
    for key in keys:
        landing.store.hold(key, packets[key], len(packets[key]))
    landing.store.discard(4)
    landing.store.sync()
    keys.remove(4)
    for _ in range(3):
        landing.store.close()
        landing = Landing(tmp_path)
        store = landing.store
        assert store.held() == keys
        assert {key: read(store, key) for key in keys} == {key: packets[key] for key in keys}
        store.hold(4, packets[4], len(packets[4]))
        assert store.held() == [*keys, 4]
        store.discard(4)
        assert landing.rotate()
    assert payloads(landing.rows()) == [b"4"] * 4


@pytest.mark.req("Q4")
def test_reused_packet_id_holds_the_new_message_and_both_land(tmp_path, landing):
    for payload in (b"A", b"B", b"C"):
        packet = publish(b"t", payload, 2, 7)
        landing.store.hold(7, packet, len(packet))
        landing.store.sync()
        landing.store.close()
        landing = Landing(tmp_path)
        assert read(landing.store, 7) == packet
        landing.store.discard(7)
    assert landing.store.rows == 3
    landing.rotate()
    assert payloads(landing.rows()) == [b"A", b"B", b"C"]


def test_sealing_process_of_a_killed_collector_ends_silently_with_its_segment(tmp_path, landing):
    land(landing.store, publish(b"t", b"x"))
    landing.store.sync()
    assert landing.store.rotate()
    reading, writing = os.pipe()
    os.close(reading)
    log = landing.store.log_path(landing.store.closed[0])
    command = [sys.executable, "-m", "tools.landing.seal", str(log), str(tmp_path), "0"]
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert [pq.read_metadata(found.path).num_rows for found in segments.find_segments(tmp_path)] == [1]


def test_layout_bit_of_a_held_packet_does_not_set_dup(tmp_path):
    landing = Landing(tmp_path, hold_limit=2)
    packet = publish(b"t", b"level 5", 2, 7, dup=True, retain=True, properties=b"\x01\x01")
    landing.store.level = 5
    landing.store.hold(7, packet, len(packet))
    landing.store.discard(7)
    land(landing.store, publish(b"t", b"again", 1, 8, dup=True, properties=b""))
    landing.rotate()
    assert [(row["dup"], row["retain"]) for row in landing.rows()] == [(False, True), (True, False)]


def test_unsynced_message_is_forgotten(tmp_path, landing):
    land(landing.store, publish(b"t", b"synced"))
    landing.store.sync()
    land(landing.store, publish(b"t", b"not synced"))
    landing.store.close()
    landing = Landing(tmp_path)
    assert landing.store.rows == 1
    landing.rotate()
    assert payloads(landing.rows()) == [b"synced"]


@pytest.mark.req("Q4")
def test_log_cut_at_any_byte_keeps_synced_messages_once(tmp_path):
    """QoS 1 and 2 traffic with its log cut at every byte: synced messages are there, none is duplicated."""
    landing = Landing(tmp_path / "run")
    store = landing.store
    land(store, publish(b"t", b"in the first log"))
    first = publish(b"t", b"2a", 2, 1)
    store.hold(1, first, len(first))
    store.rotate()
    after = [(store.log_bytes, {b"in the first log"}, {b"2a"})]

    def step(rows, held):
        store.sync()
        _, rows_before, held_before = after[-1]
        after.append((store.log_bytes, rows_before | rows, (held_before | held) - rows))

    land(store, publish(b"t", b"1a"), publish(b"t", b"1b"))
    step({b"1a", b"1b"}, set())
    second = publish(b"t", b"2b", 2, 2)
    store.hold(2, second, len(second))
    land(store, publish(b"t", b"1c"))
    step({b"1c"}, {b"2b"})
    store.discard(1)
    step({b"2a"}, set())
    store.discard(2)
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
        assert {read(kept, key)[-2:] for key in kept.held()} == held
        for key in kept.held():
            kept.discard(key)
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
def test_crash_at_any_system_call_of_rotation_duplicates_no_row(tmp_path, landing, monkeypatch, nth):
    held = publish(b"t", b"held", 2, 1)
    landing.store.hold(1, held, len(held))
    land(landing.store, publish(b"t", b"1"), publish(b"t", b"2"))
    landing.store.sync()
    calls, crashed = 0, False

    def crashing(real):
        def call(*arguments, **named):
            nonlocal calls, crashed
            calls += not crashed
            if calls == nth or crashed:  # a process that has ended calls nothing more
                crashed = True
                raise Crash
            result = real(*arguments, **named)
            if calls == nth + 1000:
                crashed = True
                raise Crash
            return result

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "fsync", "fdatasync", "pwrite", "replace", "rename", "unlink", "ftruncate"):
            patch.setattr(os, name, crashing(getattr(os, name)))
        try:
            landing.rotate()
            landing.store.discard(1)
            landing.store.sync()
            landing.rotate()
        except Crash:
            pass
    assert calls <= max(nth, 38), "more calls than this test knows of: raise its range"
    landing.store.close()
    landing = Landing(tmp_path)
    if landing.store.held():
        landing.store.discard(1)
    landing.rotate()
    found = payloads(landing.rows())
    assert found == [b"1", b"2", b"held"]
    assert not list(tmp_path.glob("c.logs/*.tmp"))


def test_log_of_a_failed_rotation_is_ignored(tmp_path, landing, monkeypatch):
    """The directory's sync fails, the old log stays in use, and the power fails before the new log's removal is durable."""
    held = publish(b"t", b"held", 2, 1)
    landing.store.hold(1, held, len(held))
    land(landing.store, publish(b"t", b"1"))
    landing.store.sync()

    kept = {}
    real = os.unlink

    def unlink(path, *more, **named):
        if str(path).endswith("2.log"):
            kept[path] = path.read_bytes()
        real(path, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_directory", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(LandingStalled):
            landing.store.rotate()
    landing.store.discard(1)
    land(landing.store, publish(b"t", b"2"))
    landing.store.sync()
    landing.store.close()
    ((path, content),) = kept.items()
    path.write_bytes(content)
    landing = Landing(tmp_path)
    assert landing.store.held() == []
    assert landing.rotate()
    assert payloads(landing.rows()) == [b"1", b"held", b"2"]


def test_existing_segment_is_kept_and_its_log_removed(tmp_path, landing):
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


def test_logs_older_than_the_segments_are_refused(tmp_path, landing):
    land(landing.store, publish(b"t", b"1"))
    landing.store.sync()
    landing.store.close()
    shutil.copytree(tmp_path / "c.logs", tmp_path / "backup")
    landing = Landing(tmp_path)
    for payload in (b"2", b"3"):
        land(landing.store, publish(b"t", payload))
        landing.rotate()
    landing.store.close()
    shutil.rmtree(tmp_path / "c.logs")
    shutil.copytree(tmp_path / "backup", tmp_path / "c.logs")
    with pytest.raises(LandingDamaged, match=r"has number 1, but segment 2 exists.*restore newer logs"):
        Landing(tmp_path)
    shutil.rmtree(tmp_path / "c.logs")
    assert Landing(tmp_path, first_number=3, rows_before=3).store.stored == 3


def test_log_whose_segment_has_other_rows_is_not_removed(tmp_path, landing):
    land(landing.store, publish(b"t", b"1"))
    landing.store.rotate()
    older = seal(landing.store.log_path(1), tmp_path)["path"]
    land(landing.store, publish(b"t", b"2"), publish(b"t", b"3"))
    landing.store.rotate()
    newer = seal(landing.store.log_path(2), tmp_path)["path"]
    os.replace(newer, older)
    with pytest.raises(LandingDamaged, match=r"has 2 rows, but its log .* has 1"):
        seal(landing.store.log_path(1), tmp_path)
    assert landing.store.log_path(1).exists()


def test_segment_numbers_continue_when_only_segments_are_left(tmp_path):
    landing = Landing(tmp_path, first_number=8, rows_before=70)
    land(landing.store, publish(b"t", b"1"))
    landing.rotate()
    (row,) = pq.read_table(tmp_path / segments.file_name("c", 8)).to_pylist()
    assert (row["segment"], row["row"]) == (8, 71)


def test_full_disk_during_rotation_keeps_the_log_in_use(landing, monkeypatch):
    land(landing.store, publish(b"t", b"1"))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(DiskFull):
            landing.store.rotate()
    land(landing.store, publish(b"t", b"2"))
    landing.store.sync()
    assert landing.rotate()
    assert payloads(landing.rows()) == [b"1", b"2"]


def test_read_only_file_system_during_rotation_is_named(landing, monkeypatch):
    land(landing.store, publish(b"t", b"1"))

    refuse = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))  # also for unlink of a missing file
    with monkeypatch.context() as patch:
        for name in ("open", "unlink"):
            patch.setattr(Path, name, refuse)
        with pytest.raises(LandingStalled, match="Read-only file system"):
            landing.store.rotate()
    land(landing.store, publish(b"t", b"2"))
    assert landing.rotate()
    assert payloads(landing.rows()) == [b"1", b"2"]


def test_full_disk_during_sealing_keeps_the_log_for_retry(landing, monkeypatch):
    land(landing.store, publish(b"t", b"1"))
    landing.store.rotate()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError):
            landing.seal()
    assert landing.rows() == []
    assert landing.store.closed == [1]
    landing.seal()
    assert payloads(landing.rows()) == [b"1"]


def test_reserved_space_stops_appending_but_not_rotation(tmp_path, monkeypatch):
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
    assert landing.rotate()
    assert payloads(landing.rows()) == [b"1", b"2"]
    landing.store.sync()
    land(landing.store, publish(b"t", b"3"))
    with pytest.raises(DiskFull):
        landing.store.sync()
    free <<= 1
    landing.store.sync()


def test_second_collector_is_refused(tmp_path, landing):
    with pytest.raises(LandingInUse, match="in use"):
        Landing(tmp_path)
    landing.store.close()
    Landing(tmp_path).store.close()


def test_collectors_use_one_folder_only_if_all_share_it(tmp_path):
    def store(name, shared):
        return LandingStore(tmp_path / f"{name}.logs", name, shared=shared)

    alone = store("a", False)
    for shared in (False, True):
        with pytest.raises(LandingInUse, match=f"{tmp_path} is in use by another collector; .*share"):
            store("b", shared)
    alone.close()
    first, second = store("a", True), store("b", True)
    with pytest.raises(LandingInUse, match=r"a\.logs is in use"):
        store("a", True)
    first.close()
    with pytest.raises(LandingInUse):
        store("c", False)
    second.close()
    store("c", False).close()


@pytest.mark.parametrize("lock", [".lock", "c.logs/lock"])
def test_lock_that_somebody_deleted_is_taken_again(tmp_path, landing, lock):
    (tmp_path / lock).unlink()
    land(landing.store, publish(b"t", b"1"))
    landing.store.sync()
    with pytest.raises(LandingInUse):
        Landing(tmp_path)
    with pytest.raises(LandingInUse):
        LandingStore(tmp_path / "d.logs", "d")
    landing.rotate()
    assert payloads(landing.rows()) == [b"1"]


@pytest.mark.parametrize("act", ["sync", "rotate"])
@pytest.mark.parametrize("name", ["c", "d"])
def test_collector_writes_no_more_if_its_locks_were_deleted_and_another_one_has_them(tmp_path, landing, name, act):
    land(landing.store, publish(b"t", b"1"))
    landing.store.sync()
    for lock in (".lock", "c.logs/lock"):
        (tmp_path / lock).unlink()
    other = LandingStore(tmp_path / f"{name}.logs", name)
    log = landing.store.log_path(1).read_bytes()
    land(landing.store, publish(b"t", b"2"))
    with pytest.raises(LandingInUse, match="is in use by another collector"):
        getattr(landing.store, act)()
    assert landing.store.log_path(1).read_bytes() == log
    other.close()


@pytest.mark.req("P1")
def test_mount_makes_durable_what_a_killed_collector_has_not_synced(tmp_path, landing, monkeypatch):
    path = landing.store.log_path(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda handle: None)
        land(landing.store, publish(b"t", b"1"))
        landing.store.sync()
        landing.store.close()
    synced, fdatasync = [], os.fdatasync

    def watched(handle):
        fdatasync(handle)
        synced.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fdatasync", watched)
    assert Landing(tmp_path).store.rows == 1
    assert synced == [path.stat().st_ino]


def test_landing_of_another_client_id_is_refused(tmp_path):
    Landing(tmp_path).store.close()
    with pytest.raises(LandingForeign, match="belongs to the collector 'c'"):
        LandingStore(tmp_path / "c.logs", "d")


def test_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LandingStalled, match="can't write"):
        LandingStore(tmp_path / "file" / "below", "c")


def test_unreadable_log_is_named(tmp_path, monkeypatch):
    Landing(tmp_path).store.close()

    def fail(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(LandingStalled, match=r"0000000001\.log: Input/output error"):
            Landing(tmp_path)
    Landing(tmp_path)  # the locks are free


def test_held_messages_beyond_the_limit_are_refused_until_one_is_discarded(tmp_path):
    store = Landing(tmp_path, hold_limit=3).store
    for key in (1, 2, 3):
        assert store.can_hold(1)
        store.hold(key, b"x", 1)
    assert not store.can_hold(1)
    with pytest.raises(StoreFull, match="3 QoS 2 messages are held"):
        store.hold(4, b"x", 1)
    store.discard(2)
    assert store.can_hold(1)
    store.hold(4, b"x", 1)
    assert store.held() == [1, 3, 4]


def test_every_packet_id_can_be_held_at_once(tmp_path):
    store = Landing(tmp_path, hold_limit=70_000).store
    assert store.hold_limit == MOST_HELD
    for key in range(1, MOST_HELD + 1):
        store.hold(key, b"x", 1)
    store.sync()
    store.close()
    assert Landing(tmp_path).store.held() == list(range(1, MOST_HELD + 1))


@pytest.mark.parametrize("key", [0, -1, MOST_HELD + 1, 7])
def test_invalid_or_held_key_is_refused_and_changes_nothing(tmp_path, key):
    store = Landing(tmp_path).store
    store.hold(7, b"x", 1)
    with pytest.raises(UsageError, match=f"key {key}"):
        store.hold(key, b"y", 1)
    assert store.held() == [7]
    assert read(store, 7) == b"x"


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


def test_damage_in_the_open_log_stops_the_start_unless_salvaged(tmp_path):
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
def test_damage_in_a_closed_log_stops_sealing_unless_salvaged(tmp_path, which):
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


@pytest.mark.req("Q4")
def test_message_with_damaged_release_is_salvaged_when_its_packet_id_returns(tmp_path, landing):
    store = landing.store
    first, second = publish(b"t", b"first", 2, 7), publish(b"t", b"second", 2, 7)
    store.hold(7, first, len(first))
    store.sync()
    store.discard(7)
    land(store, publish(b"t", b"beside the release"))
    store.sync()
    store.hold(7, second, len(second))
    store.sync()
    store.close()
    damage(tmp_path / "c.logs" / "0000000001.log", b"beside the release")
    landing = Landing(tmp_path, salvage=True)
    assert read(landing.store, 7) == second
    landing.store.discard(7)
    landing.store.rotate()
    for number in list(landing.store.closed):
        seal(landing.store.log_path(number), tmp_path, salvage=True)
        landing.store.sealed(number)
    assert payloads(landing.rows()) == [b"first", b"second"]


def test_copies_are_still_recognised_after_held_messages_were_forgotten(tmp_path, landing):
    land(landing.store, publish(b"garden/temperature", b"21.5", packet_id=9))
    packet = publish(b"pump/state", b"1", qos=2, packet_id=3)
    landing.store.hold(3, packet, len(packet))
    landing.store.rotate()
    copy = 9, digest(b"garden/temperature", b"21.5")
    assert landing.store.recent.has(*copy)
    assert landing.store.forget_held(lambda data, level: None) == 1
    landing.store.close()
    landing = Landing(tmp_path)
    assert landing.store.held() == []
    assert landing.store.recent.has(*copy)


def test_recent_messages_are_the_last_ones_with_an_id_of_their_own(monkeypatch):
    """Compare with a list; the state is encoded and inherited at any point."""
    monkeypatch.setattr(recent, "MOST", 20)
    random = Random(1)
    found, landed = Recent(), []
    for n in range(3000):
        keys = [random.randrange(30) for _ in range(random.randrange(1, 4))]
        found.land(4, b"".join(publish(b"t", b"%d" % (n % 9), packet_id=key) for key in keys), len(keys))
        landed = [*landed, *((key, b"%d" % (n % 9)) for key in keys)][-20:]
        key, payload = random.randrange(30), b"%d" % random.randrange(9)
        if n % 3 == 0:
            assert found.has(key, digest(b"t", payload)) == (
                [one for one in landed if one[0] == key] == [(key, payload)]
            )
        if n % 7 == 0:
            inherited = Recent()
            inherited.inherit(found.encode())
            found = inherited


def test_recent_message_is_decoded_once_however_many_resent_ones_are_looked_up(monkeypatch):
    decoded = []
    monkeypatch.setattr(recent, "digest", lambda topic, payload: decoded.append(payload) or digest(topic, payload))
    found = Recent()
    for n in range(300):
        found.land(4, publish(b"t", b"%d" % n, packet_id=n + 1), 1)
        assert found.has(n + 1, digest(b"t", b"%d" % n))
    assert len(decoded) == 300


def test_recent_messages_take_no_more_memory_with_each_packet_id_that_was_ever_used(monkeypatch):
    monkeypatch.setattr(recent, "MOST", 100)
    tracemalloc.start()
    try:
        found, used = Recent(), []
        for first in range(1, 6000, 90):
            for n in range(first, first + 90):
                found.land(4, publish(b"t", b"1", packet_id=n), 1)
            found.encode()
            used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert used[-1] < used[len(used) // 2] * 1.1


def test_landing_store_has_nothing_to_send(tmp_path):
    store = Landing(tmp_path).store
    assert (store.next_seq, store.low, store.dropped, store.damaged) == (1, 1, 0, 0)
    assert store.note == b"\xff" * 12
