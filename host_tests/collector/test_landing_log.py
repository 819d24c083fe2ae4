"""The landing log: every truncation, every flipped byte, every failing write."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import pytest

from tools.landing.log import (
    LANDED,
    NO_ROOM,
    DiskFull,
    Header,
    LandingDamaged,
    LandingForeign,
    LandingLog,
    LandingStalled,
    read_log,
)

pytestmark = pytest.mark.req("P1")


def new_log(tmp_path, entries=()):
    header = Header("c", 1, 0x12345678, 0, 0)
    return LandingLog.create(tmp_path, header, list(entries))


def write_blocks(log, blocks):
    """Append lists of bodies, one sync each; return the file's length after each sync."""
    ends = [log.end]
    for bodies in blocks:
        for body in bodies:
            log.append(LANDED, 4, 1, 77, body)
        log.sync()
        ends.append(log.end)
    return ends


def bodies_of(contents):
    return [contents.data[entry.start : entry.end] for entry in contents.entries]


BLOCKS = [[b"one"], [b"two", b"three" * 7], [b""], [b"4" * 40, b"5", b"six"]]
FLAT = [[body for block in BLOCKS[:n] for body in block] for n in range(len(BLOCKS) + 1)]


def test_synced_entries_are_read_back(tmp_path):
    log = new_log(tmp_path)
    write_blocks(log, BLOCKS)
    log.append(LANDED, 4, 1, 77, b"never synced")
    log.close()
    contents = read_log(log.path)
    assert bodies_of(contents) == FLAT[-1]
    assert contents.rows == len(FLAT[-1])
    assert contents.torn_bytes == 0
    assert {(entry.kind, entry.level, entry.time_us) for entry in contents.entries} == {(LANDED, 4, 77)}


def test_log_cut_at_any_byte_keeps_whole_blocks_and_can_continue(tmp_path):
    log = new_log(tmp_path)
    ends = write_blocks(log, BLOCKS)
    log.close()
    whole = log.path.read_bytes()
    for cut in range(ends[0], len(whole) + 1):
        log.path.write_bytes(whole[:cut])
        contents = read_log(log.path)
        kept = bodies_of(contents)
        assert kept == FLAT[max(n for n, end in enumerate(ends) if end <= cut)]
        assert contents.torn_bytes == cut - contents.end
        again = LandingLog(log.path, contents.header, contents.end)
        again.append(LANDED, 4, 1, 78, b"goes on")
        again.sync()
        again.close()
        contents = read_log(log.path)
        assert bodies_of(contents) == [*kept, b"goes on"]
        assert contents.torn_bytes == 0


def test_truncated_header_is_reported(tmp_path):
    log = new_log(tmp_path)
    log.close()
    whole = log.path.read_bytes()
    for cut in range(len(whole)):
        log.path.write_bytes(whole[:cut])
        with pytest.raises((LandingForeign, LandingDamaged)):
            read_log(log.path)


def test_flipped_byte_is_damage_or_torn_tail_and_never_a_row(tmp_path):
    log = new_log(tmp_path)
    ends = write_blocks(log, BLOCKS)
    log.close()
    whole = log.path.read_bytes()
    for at in range(ends[0], len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 0x41
        log.path.write_bytes(broken)
        block = max(n for n, end in enumerate(ends) if end <= at)
        if block == len(BLOCKS) - 1:
            assert bodies_of(read_log(log.path)) in (FLAT[-2], FLAT[-1])
            continue
        try:
            contents = read_log(log.path)
        except LandingDamaged as damage:
            assert f"bytes {ends[block]} to {ends[block + 1]}" in str(damage)
            contents = read_log(log.path, salvage=True)
            assert contents.damage == [(ends[block], ends[block + 1])]
            assert bodies_of(contents) == [body for n, bodies in enumerate(BLOCKS) if n != block for body in bodies]
        else:
            assert bodies_of(contents) == FLAT[-1], "only the zeros between blocks are free"


def test_block_of_another_file_is_ignored(tmp_path):
    log = new_log(tmp_path)
    ends = write_blocks(log, BLOCKS)
    log.close()
    blocks = log.path.read_bytes()[ends[0] :]
    other = LandingLog.create(tmp_path, Header("c", 2, 0x12345679, 0, 0), [])
    other.close()
    assert other.end == ends[0]
    with other.path.open("ab") as file:
        file.write(blocks)
    contents = read_log(other.path)
    assert contents.entries == []
    assert contents.torn_bytes == len(blocks)


@pytest.mark.parametrize("content", [b"", b"PAR1" * 20, b"\0" * 4096, b"flashmqtt log 9\n" + b"\0" * 64])
def test_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "0000000001.log"
    path.write_bytes(content)
    with pytest.raises(LandingForeign):
        read_log(path)


def test_log_of_version_1_is_refused(tmp_path):
    log = new_log(tmp_path)
    log.close()
    whole = log.path.read_bytes()
    assert whole.startswith(b"flashmqtt log 2\n")
    log.path.write_bytes(whole.replace(b"log 2", b"log 1", 1))
    with pytest.raises(
        LandingForeign, match="is not a landing log of version 2: let the program that wrote it seal it"
    ):
        read_log(log.path)


def test_unsynced_header_leaves_no_log_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(DiskFull):
        new_log(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("P1")
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_deleted_log_ends_the_writing_because_no_later_start_would_find_it(tmp_path, how):
    log = new_log(tmp_path)
    write_blocks(log, [[b"before"]])
    content = log.path.read_bytes()
    log.path.unlink()
    if how == "replaced":
        log.path.write_bytes(content)
    log.append(LANDED, 4, 1, 77, b"later")
    with pytest.raises(LandingDamaged, match=r"0000000001\.log was deleted"):
        log.sync()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
@pytest.mark.parametrize("written", [0, 1, 16, 40, 60])
@pytest.mark.parametrize("failing", ["pwrite", "fdatasync"])
def test_failed_write_keeps_all_entries_for_the_retry(tmp_path, monkeypatch, code, written, failing):
    log = new_log(tmp_path)
    write_blocks(log, [[b"before"]])
    real_write = os.pwrite

    def fail_write(handle, data, position):
        if position > log.end or not written:
            raise OSError(code, os.strerror(code))
        return real_write(handle, data[:written], position)

    def fail_sync(handle):
        raise OSError(code, os.strerror(code))

    log.append(LANDED, 4, 1, 77, b"kept" * 20)
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail_write if failing == "pwrite" else fail_sync)
        for _ in range(3):
            with pytest.raises(DiskFull if code in NO_ROOM else LandingStalled) as stall:
                log.sync()
            assert str(log.path) in str(stall.value)
    log.append(LANDED, 4, 1, 77, b"later")
    log.sync()
    log.close()
    contents = read_log(log.path)
    assert bodies_of(contents) == [b"before", b"kept" * 20, b"later"]
    assert contents.torn_bytes == 0
    assert contents.path.stat().st_size == contents.end
