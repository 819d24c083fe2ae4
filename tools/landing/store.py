"""The landing directory of one collector: its logs, its held QoS 2 messages, and what is still to be sealed.

It is the store of a session that only receives. It differs from a board's journal in two ways. It stores no outgoing
messages, because a collector publishes nothing. `hold` and `discard` are durable after `sync()`, so that one sync serves a
whole group. A held message becomes a row when it is discarded: one RELEASED entry both delivers and discards it (Q4), so a
crash can't come between the two.

Each log becomes the segment of the same number, once. Before a log is closed, the next log is made, which begins with all
messages that are still held. So one file is enough to seal a log, and one file is enough to recover a directory.

    0000000007.log    closed: will be sealed, then removed
    0000000008.log    open
    lock              locked by the running collector and its sealer

This module knows no network and no Parquet.
"""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flashmqtt.errors import StoreFull, UsageError
from tools.landing.durable import sync_directory
from tools.landing.lock import LANDING_LOCK, LandingInUse, take_lock
from tools.landing.log import (
    HELD,
    LANDED,
    RECENT,
    RELEASED,
    SESSION,
    TEMPORARY,
    Contents,
    DiskFull,
    Header,
    LandingDamaged,
    LandingForeign,
    LandingLog,
    log_numbers,
    log_path,
    packed,
    read_log,
    stalled,
)
from tools.landing.recent import Recent
from tools.landing.segments import find_segments

MOST_HELD = 65_535  # the number of packet ids


@dataclass(frozen=True, slots=True)
class Held:
    """A QoS 2 message that is stored but not yet a row."""

    packet: bytes
    level: int
    time_us: int


class LandingStore:
    """A mounted landing directory, with the calls of `Journal` that a receiving session needs."""

    # Attributes of `Journal` that the session reads.
    next_seq = low = boot = 1  # nothing outgoing is ever stored
    dropped = damaged = 0
    note = b"\xff" * 12  # never written: the session is made with remember=False
    on_drop = None  # the session sets it; it is never called

    def __init__(
        self,
        directory: Path,
        collector: str,
        hold_limit: int = MOST_HELD,
        first_number: int = 1,
        rows_before: int = 0,
        reserve_bytes: int = 0,
        salvage: bool = False,
        wait_s: float = 0.0,
        shared: bool = False,
    ) -> None:
        """Mount the directory, a subfolder of the landing folder; make it if it does not exist.

        Args:
            directory: where the logs are.
            collector: the collector's name, which is the segments' name.
            hold_limit: most held messages.
            first_number: the first log's number, if there is no log.
            rows_before: the rows before the first log, if there is no log.
            reserve_bytes: disk space that `sync` leaves free for closing and sealing a log, which then frees more.
            salvage: read the good part of a damaged log.
            wait_s: how long to wait for the locks.
            shared: share the landing folder with other collectors that have `shared`, too.

        Raises:
            LandingInUse: another collector uses this directory or the landing folder.
            LandingForeign: the directory has a log of another collector or version.
            LandingDamaged: the open log lost durable bytes, and `salvage` is false; or it is older than a segment.
            LandingStalled, DiskFull: the directory can't be written.
        """
        self.directory = directory
        self.collector = collector
        self.hold_limit = min(hold_limit, MOST_HELD)
        self._reserve_bytes = reserve_bytes
        self.level = 4  # of the session whose messages are landing
        self.time_us = time.time_ns() // 1000  # arrival of the messages that are landing
        self.torn_bytes = 0
        self.recent = Recent()
        self.locks: list[int] = []  # open files: a child process that inherits them holds the locks, too
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for made in (directory, directory.parent):
                sync_directory(made.parent)
            self._shared = shared
            self._take_locks(wait_s)
            self._mount(first_number, rows_before, salvage)
        except OSError as error:
            self._release_locks()
            raise stalled(error.filename or directory, error) from error
        except BaseException:
            self._release_locks()
            raise

    def _take_locks(self, wait_s: float = 0.0) -> None:
        """Take the locks that are not held, and those whose files were deleted: else another collector could start."""
        landing = self.directory.parent
        locks = (
            (
                landing / LANDING_LOCK,
                self._shared,
                "choose another landing folder (only collectors whose subscriptions are all shared, $share/..., may use the same "
                "folder)",
            ),
            (self.directory / "lock", False, "choose another client id or folder"),
        )
        for n, (path, is_shared, advice) in enumerate(locks):
            deleted = [one for one in self.locks[n : n + 1] if not os.fstat(one).st_nlink]
            if deleted or n == len(self.locks):
                refusal = LandingInUse(f"{path.parent} is in use by another collector; stop that one, or {advice}")
                self.locks[n : n + 1] = [take_lock(path, refusal, wait_s, is_shared)]
            for one in deleted:
                os.close(one)

    def _sync(self) -> None:
        """Make the log durable, if this is still the only collector."""
        try:
            self._take_locks()
        except FileNotFoundError:
            pass  # the folder was deleted, with the log, which reports it
        except OSError as error:
            raise stalled(error.filename or self.directory, error) from error
        self._log.sync()

    def _release_locks(self) -> None:
        while self.locks:
            os.close(self.locks.pop())

    def _mount(self, first_number: int, rows_before: int, salvage: bool) -> None:
        for leftover in self.directory.glob("*" + TEMPORARY):
            leftover.unlink()
        numbers = log_numbers(self.directory)
        if len(numbers) > 1 and self._was_abandoned(numbers[-1]):
            log_path(self.directory, numbers.pop()).unlink()
            sync_directory(self.directory)
        if numbers:
            self._check_segments(numbers[-1])
        else:
            first = Header(self.collector, first_number, secrets.randbits(32), rows_before)
            LandingLog.create(self.directory, first, []).close()
            numbers = [first_number]
        self.closed = numbers[:-1]
        contents = read_log(log_path(self.directory, numbers[-1]), salvage)
        header = contents.header
        if header.collector != self.collector:
            raise LandingForeign(
                f"{self.directory} belongs to the collector '{header.collector}', not '{self.collector}'; "
                "name another directory, or that client id"
            )
        self._held = {  # in the order of arrival
            key: Held(contents.data[one.start : one.end], one.level, one.time_us)
            for key, one in contents.replayed()[1].items()
        }
        self._restore_recent(contents)
        self.rows = contents.rows
        self.torn_bytes = contents.torn_bytes
        self._log = LandingLog(contents.path, header, contents.end)
        self.first_row_at = time.monotonic()
        self._log.sync()
        if contents.damage:  # close it: its segment gets the readable part
            self.rows = max(self.rows, 1)
            self.rotate()

    def _check_segments(self, number: int) -> None:
        """Check that the open log is newer than all segments. If not, its rows would never become a segment.

        Raises:
            LandingDamaged: the logs are older, for example from a backup.
        """
        landing = self.directory.parent
        newest = max((one.number for one in find_segments(landing) if one.collector == self.collector), default=0)
        if newest >= number:
            raise LandingDamaged(
                f"{self.directory}: the open log has number {number}, but segment {newest} exists, so these logs are "
                "older than the segments: restore newer logs; if there are none, move this folder away, and a new log "
                f"follows segment {newest}"
            )

    def _restore_recent(self, contents: Contents) -> None:
        """Restore the last QoS 1 messages from a log."""
        for entry in contents.entries:
            if entry.kind == RECENT:
                self.recent.inherit(contents.data[entry.start : entry.end])
            elif entry.kind == SESSION:
                self.recent.clear()
            elif entry.kind == LANDED:
                self.recent.land(entry.level, contents.data[entry.start : entry.end], entry.number)

    def _was_abandoned(self, number: int) -> bool:
        """Return whether the collector made this log but continued to write the previous one.

        This happens when syncing the new log's name fails, and a power cut then undoes the removal of the file. The log's
        held messages are out of date, and nothing else was ever written to it.
        """
        before = log_path(self.directory, number - 1)
        if not before.exists():
            return False
        path = log_path(self.directory, number)
        header, _ = Header.decode(path, path.read_bytes())
        return before.stat().st_size > header.previous_end

    # --- calls of the session -----------------------------------------------------------------------------------

    def can_hold(self, length: int) -> bool:
        """Return whether another message can be held."""
        return len(self._held) < self.hold_limit

    def hold(self, key: int, buf: bytes | bytearray | memoryview, length: int) -> None:
        """Store an inbound QoS 2 message under its packet id; durable after `sync()`.

        Raises:
            StoreFull: `hold_limit` messages are held already.
            UsageError: not a packet id, or a message is held under it.
        """
        held = self._held
        if len(held) >= self.hold_limit:
            raise StoreFull(f"{self.hold_limit} QoS 2 messages are held, which is the limit: raise --in-flight")
        if key in held or not 0 < key <= MOST_HELD:
            raise UsageError(f"key {key}: it must be from 1 to {MOST_HELD}, and no message may be held under it")
        packet = bytes(memoryview(buf)[:length])
        held[key] = Held(packet, self.level, self.time_us)
        self._log.append(HELD, self.level, key, self.time_us, packet)

    def held(self) -> list[int]:
        """Return the packet ids of the held messages, oldest first."""
        return list(self._held)

    def held_length(self, key: int) -> int:
        """Return the length of a held message in bytes; 0 if there is none with this packet id."""
        held = self._held.get(key)
        return len(held.packet) if held else 0

    def read_held(self, key: int, offset: int, buf: bytearray | memoryview, at: int, n: int) -> None:
        """Copy n bytes of a held message, from `offset`, to buf[at:at+n]."""
        buf[at : at + n] = self._held[key].packet[offset : offset + n]

    def discard(self, key: int) -> None:
        """Release a held message, which makes it a row; durable after `sync()`."""
        del self._held[key]
        self._log.append(RELEASED, self.level, key, self.time_us)
        if not self.rows:
            self.first_row_at = time.monotonic()
        self.rows += 1

    def sync(self) -> None:
        """Make all changes durable.

        Raises:
            LandingStalled, DiskFull: the write failed. The changes are kept in memory; call again.
            LandingInUse: the locks' files were deleted, and another collector has started.
        """
        needed = self._reserve_bytes + self._log.pending_bytes
        if self._reserve_bytes and self._log.pending_bytes and self.free_bytes() < needed:
            raise DiskFull(
                f"less than {self._reserve_bytes >> 20} MB are free for {self.directory}: delete something, or lower --reserve-mb"
            )
        self._sync()

    flush = sync

    def free_bytes(self) -> int:
        """Return the disk's free bytes."""
        disk = os.fstatvfs(self.locks[0])
        return disk.f_bavail * disk.f_frsize

    # --- calls of the collector ---------------------------------------------------------------------------------

    def land(self, packets: bytes, count: int) -> None:
        """Add PUBLISH packets (QoS 0 or 1), at most MOST_IN_ENTRY, as rows; durable after `sync()`."""
        self._log.append(LANDED, self.level, count, self.time_us, packets)
        self.recent.land(self.level, packets, count)
        if not self.rows:
            self.first_row_at = time.monotonic()
        self.rows += count

    def begin_session(self) -> None:
        """Record that the broker began a new session; durable after `sync()`."""
        self._log.append(SESSION, self.level, 0, self.time_us)
        self.recent.clear()

    @property
    def stored(self) -> int:
        """The number of rows in all logs and segments of this collector."""
        return self._log.header.rows_before + self.rows

    @property
    def held_count(self) -> int:
        """The number of QoS 2 messages that wait for their PUBREL."""
        return len(self._held)

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that are not yet durable."""
        return self._log.pending_bytes

    @property
    def log_bytes(self) -> int:
        """The length of the open log."""
        return self._log.end

    @property
    def number(self) -> int:
        """The number of the open log and of its later segment."""
        return self._log.header.number

    def rotate(self) -> bool:
        """Close the open log and open the next, which begins with the held messages; return False if the log has no row.

        Raises:
            LandingStalled, DiskFull: the open log stays open.
        """
        if not self.rows:
            return False
        self._sync()  # not `self.sync`: this may use the reserve
        old = self._log.header
        header = Header(self.collector, old.number + 1, secrets.randbits(32), self.stored, previous_end=self._log.end)
        log = LandingLog.create(self.directory, header, self._first_entries(self._held))
        self._log.close()
        self._log = log
        self.closed.append(old.number)
        self.rows = 0
        return True

    def _first_entries(self, held: dict[int, Held]) -> list[bytes]:
        """Return what a log begins with: the last QoS 1 messages, and the held messages."""
        recent = self.recent.encode()
        entries = [packed(RECENT, self.level, 0, self.time_us, recent)] if recent else []
        return entries + [packed(HELD, one.level, key, one.time_us, one.packet) for key, one in held.items()]

    def packets_held(self) -> list[tuple[bytes, int]]:
        """Return each held message's packet and protocol level."""
        return [(held.packet, held.level) for held in self._held.values()]

    def forget_held(self, rewrite: Callable[[bytes, int], bytes | None]) -> int:
        """Rewrite the open log; return how many held messages it loses.

        A held message's packet is replaced by `rewrite(packet, level)`. If that is None, the message is deleted. The log must
        not have rows: call `rotate` before. The new log has no bytes of released messages either.

        Raises:
            LandingStalled: the log is unchanged.
        """
        rewritten = {key: rewrite(held.packet, held.level) for key, held in self._held.items()}
        kept = {key: replace(self._held[key], packet=packet) for key, packet in rewritten.items() if packet is not None}
        gone = len(self._held) - len(kept)
        header = replace(self._log.header, salt=secrets.randbits(32))
        path = self._log.path
        try:
            end = LandingLog.write(path, header, self._first_entries(kept))
        except OSError as error:
            raise stalled(path, error) from error
        self._log.close()
        self._log, self._held = LandingLog(path, header, end), kept
        return gone

    def log_path(self, number: int) -> Path:
        """Return the name of a log."""
        return log_path(self.directory, number)

    def sealed(self, number: int) -> None:
        """Remove a closed log whose segment is durable."""
        log_path(self.directory, number).unlink(missing_ok=True)
        sync_directory(self.directory)
        self.closed.remove(number)

    def close(self) -> None:
        """Close the log and release the locks; changes that were not synced are dropped."""
        self._log.close()
        self._release_locks()
