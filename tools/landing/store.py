"""The landing directory of one collector: its logs, its held QoS 2 messages, and what is still to be sealed.

The session takes it for its Store. What differs from a board's journal: nothing is queued (a collector publishes
nothing), and `hold`, `mark` and `release` are durable after `sync()`, not on return, so that one sync serves a whole
read batch. A held message becomes a row by being released: the RELEASED entry *is* the handing over (Q4), so a crash
can't come between the two.

Each log becomes the segment of the same number, once. When a log is closed, the next one is made first, and begins
with the messages that are still held: so each log can be sealed, and each directory recovered, from one file alone.

    0000000007.log    closed: to be sealed, then removed
    0000000008.log    open
    lock              held by the running collector and its sealer

It knows no network and no Parquet.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from tools.landing.log import (
    DROPPED,
    HELD,
    LANDED,
    MARKED,
    MOST_IN_ENTRY,
    MOUNTED,
    RELEASED,
    TEMPORARY,
    Contents,
    DiskFull,
    Header,
    LandingError,
    LandingForeign,
    LandingLog,
    log_numbers,
    log_path,
    packed,
    read_log,
    stalled,
    sync_directory,
)


class LandingInUse(LandingError):
    """Another collector works in this directory."""


class SlotsFull(LandingError):
    """More QoS 2 messages are in flight than the collector has slots (its receive maximum)."""


@dataclass(slots=True)
class Held:
    """A QoS 2 message that is ours but not yet a row."""

    packet: bytes
    level: int
    time_us: int
    ordinal: int  # in the order of arrival
    mark: int = 0
    old: bool = False


def held_after(contents: Contents) -> dict[int, Held]:
    """Return the messages that are held at the end of a log."""
    held: dict[int, Held] = {}
    for entry in contents.entries:
        if entry.kind == HELD:
            packet = contents.data[entry.start : entry.end]
            held[entry.slot] = Held(packet, entry.level, entry.time_us, 0, old=True)
        elif entry.kind == MARKED and entry.slot in held:
            held[entry.slot].mark = contents.data[entry.start]
        elif entry.kind in (RELEASED, DROPPED):
            held.pop(entry.slot, None)
    for ordinal, message in enumerate(held.values(), 1):
        message.ordinal = ordinal
    return held


class LandingStore:
    """A mounted landing directory."""

    fresh = False  # a collector never asks the broker to forget what it keeps for us
    waiting = 0  # nothing is ever queued here
    dropped = 0
    next_seq = 1

    def __init__(
        self,
        directory: Path,
        collector: str,
        slots: int = 65535,
        first_number: int = 1,
        rows_before: int = 0,
        reserve_bytes: int = 0,
        salvage: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        """Mount the directory, making it if it is not there.

        `first_number` and `rows_before` count only where there is no log at all (the segments may have been kept,
        the logs not). `reserve_bytes` of the disk are left free: closing a log and sealing it need room, and give
        back much more.

        Raises:
            LandingInUse: another collector works here (for longer than `wait_s`).
            LandingForeign, LandingDamaged: see there.
            LandingStalled, DiskFull: it can't be written.
        """
        self.directory = directory
        self.collector = collector
        self.slots = slots
        self._reserve_bytes = reserve_bytes
        self.level = 4  # of the session that hands over messages now
        self.time_us = time.time_ns() // 1000  # arrival of what is being handed over now
        self.torn_bytes = 0
        self._run: list[bytes | bytearray] = []  # rows that arrived together, not yet an entry
        self._run_time = self._run_level = self._run_bytes = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for made in (directory, directory.parent):
                sync_directory(made.parent)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise stalled(directory, error) from error
        try:
            self._take_lock(wait_s)
            self._mount(first_number, rows_before, salvage)
        except BaseException:
            os.close(self._lock)
            raise

    def _take_lock(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() >= deadline:
                    raise LandingInUse(
                        f"{self.directory} is in use by another collector; stop that one, or name another directory"
                    ) from None
                time.sleep(0.05)
            else:
                return

    def _mount(self, first_number: int, rows_before: int, salvage: bool) -> None:
        for leftover in self.directory.glob("*" + TEMPORARY):
            leftover.unlink()
        numbers = log_numbers(self.directory)
        if len(numbers) > 1 and self._never_took_over(numbers[-1]):
            log_path(self.directory, numbers.pop()).unlink()
            sync_directory(self.directory)
        self.closed = numbers[:-1]
        self._held: dict[int, Held] = {}  # in the order of arrival
        if numbers:
            contents = read_log(log_path(self.directory, numbers[-1]), salvage)
            header = contents.header
            if header.collector != self.collector:
                raise LandingForeign(
                    f"{self.directory} belongs to the collector '{header.collector}', not '{self.collector}'; "
                    "name another directory, or that client id"
                )
            self._held = held_after(contents)
            self.rows = contents.rows
            self.torn_bytes = contents.torn_bytes
            mounts = sum(entry.kind == MOUNTED for entry in contents.entries)
            self.boot = header.mounts_before + mounts + 1
            self._log = LandingLog(contents.path, header, contents.end)
            damaged = bool(contents.damage)
        else:
            damaged = False
            self.rows = 0
            self.boot = 1
            header = Header(self.collector, first_number, secrets.randbits(32), rows_before, 0)
            self._log = LandingLog.create(self.directory, header, [])
        self.first_row_at = time.monotonic()
        self._ordinal = len(self._held)
        used = max(self._held, default=-1) + 1
        self._free = [slot for slot in range(used) if slot not in self._held][::-1]
        self._unused = used
        # Also makes durable what the last collector wrote and could not sync any more: it is answered as stored now.
        self._log.append(MOUNTED, 0, 0, self.time_us)
        self._log.sync()
        self._log.blocks = 0
        if damaged:  # its segment gets what is readable
            self.rows = max(self.rows, 1)
            self.rotate()

    def _never_took_over(self, number: int) -> bool:
        """Tell whether a log was made but the one before it was gone on with.

        So it is where making its name durable failed, the file was removed again, and the power failed before that
        was durable. What it says of held messages is out of date then, and nothing was ever written to it.
        """
        before = log_path(self.directory, number - 1)
        if not before.exists():
            return False
        path = log_path(self.directory, number)
        header, _ = Header.decode(path, path.read_bytes())
        return before.stat().st_size > header.previous_end

    # --- what the session asks of a Store -----------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """How many rows ever landed here."""
        return self._log.header.rows_before + self.rows

    def hold(self, buf: bytes | bytearray | memoryview, length: int) -> int:
        """Keep an inbound QoS 2 message; durable after `sync()`.

        Raises:
            SlotsFull: the broker has more in flight than it was told to.
        """
        if self._free:
            slot = self._free.pop()
        elif self._unused < min(self.slots, MOST_IN_ENTRY):
            slot = self._unused
            self._unused += 1
        else:
            raise SlotsFull(f"more than {self.slots} QoS 2 messages are in flight")
        packet = bytes(buf[:length])
        self._ordinal += 1
        self._held[slot] = Held(packet, self.level, self.time_us, self._ordinal)
        self._append(HELD, self.level, slot, self.time_us, packet)
        return slot

    def mark(self, slot: int, value: int) -> None:
        """Note a state byte with a held message; durable after `sync()`."""
        self._held[slot].mark = value
        self._append(MARKED, self.level, slot, self.time_us, bytes((value,)))

    def release(self, slot: int) -> None:
        """Hand a held message over: it is a row now; durable after `sync()`."""
        del self._held[slot]
        self._append(RELEASED, self.level, slot, self.time_us)
        self._free.append(slot)
        if not self.rows:
            self.first_row_at = time.monotonic()
        self.rows += 1

    def sync(self) -> None:
        """Make everything so far durable.

        Raises:
            LandingStalled, DiskFull: not now; nothing is forgotten, call again.
        """
        if self._run:
            self._end_run()
        if self._reserve_bytes and self._log.pending_bytes:
            disk = os.fstatvfs(self._lock)
            if disk.f_bavail * disk.f_frsize < self._reserve_bytes + self._log.pending_bytes:
                raise DiskFull(
                    f"less than {self._reserve_bytes >> 20} MB are free for {self.directory}; "
                    "nothing more is acknowledged until there are"
                )
        self._log.sync()

    flush = sync

    def idle(self) -> None:
        """Do nothing: sealing is the collector's."""

    def take(self) -> int:
        """Nothing is queued."""
        return -1

    def append(self, buf: bytes | bytearray | memoryview, length: int) -> int:
        """Refuse: a collector publishes nothing."""
        raise LandingError("a landing store keeps what arrives; it queues nothing to send")

    def is_open(self, slot: int) -> bool:
        """Tell whether a slot holds a message."""
        return slot in self._held

    is_held = is_open

    def old(self, slot: int) -> bool:
        """Tell whether a held message is from before this mount."""
        return self._held[slot].old

    def seq_of(self, slot: int) -> int:
        """Return the place of a held message in the order of arrival, since the mount."""
        return self._held[slot].ordinal

    def length_of(self, slot: int) -> int:
        """Return the length of a held message."""
        return len(self._held[slot].packet)

    def mark_of(self, slot: int) -> int:
        """Return the state byte of a held message."""
        return self._held[slot].mark

    def read(self, slot: int, offset: int, buf: bytearray | memoryview, at: int, n: int) -> None:
        """Copy a part of a held message."""
        buf[at : at + n] = self._held[slot].packet[offset : offset + n]

    # --- what the collector asks --------------------------------------------------------------------------------

    def land(self, head: bytes, body: bytes | bytearray) -> None:
        """Take a PUBLISH packet (QoS 0 or 1) in two pieces as a row; durable after `sync()`.

        Packets that arrived together share one entry. The pieces must not change any more.
        """
        if self._run and (
            self._run_time != self.time_us or self._run_level != self.level or len(self._run) >= 2 * MOST_IN_ENTRY
        ):
            self._end_run()
        self._run_time, self._run_level = self.time_us, self.level
        self._run.append(head)
        self._run.append(body)
        self._run_bytes += len(head) + len(body)
        if not self.rows:
            self.first_row_at = time.monotonic()
        self.rows += 1

    def land_run(self, packets: bytes, count: int) -> None:
        """Take several whole PUBLISH packets (QoS 0 or 1) as rows, at most MOST_IN_ENTRY; durable after `sync()`."""
        self._append(LANDED, self.level, count, self.time_us, packets)
        if not self.rows:
            self.first_row_at = time.monotonic()
        self.rows += count

    def _end_run(self) -> None:
        packets = b"".join(self._run)
        self._log.append(LANDED, self._run_level, len(self._run) // 2, self._run_time, packets)
        self._run.clear()
        self._run_bytes = 0

    def _append(self, kind: int, level: int, slot: int, time_us: int, body: bytes = b"") -> None:
        if self._run:
            self._end_run()
        self._log.append(kind, level, slot, time_us, body)

    @property
    def held(self) -> int:
        """How many QoS 2 messages wait for their PUBREL."""
        return len(self._held)

    @property
    def pending_bytes(self) -> int:
        """What is not yet durable."""
        return self._log.pending_bytes + self._run_bytes

    @property
    def log_bytes(self) -> int:
        """How long the open log is."""
        return self._log.end

    @property
    def number(self) -> int:
        """The number of the open log, and of the segment that it will be."""
        return self._log.header.number

    def rotate(self) -> bool:
        """Close the log and open the next, which begins with what is held; False if there was no row to close.

        Raises:
            LandingStalled, DiskFull: the log in use stays in use.
        """
        if not self.rows:
            return False
        if self._run:
            self._end_run()
        self._log.sync()  # into the reserve, if need be
        old = self._log.header
        header = Header(self.collector, old.number + 1, secrets.randbits(32), self.stored, self.boot, self._log.end)
        entries = []
        for slot, held in self._held.items():
            entries.append(packed(HELD, held.level, slot, held.time_us, held.packet))
            if held.mark:
                entries.append(packed(MARKED, held.level, slot, held.time_us, bytes((held.mark,))))
        log = LandingLog.create(self.directory, header, entries)
        self._log.close()
        self._log = log
        self.closed.append(old.number)
        self.rows = 0
        return True

    @property
    def lock_handle(self) -> int:
        """The open lock file: whoever has inherited it holds the directory too."""
        return self._lock

    def log_path(self, number: int) -> Path:
        """Return the name of a log."""
        return log_path(self.directory, number)

    def sealed(self, number: int) -> None:
        """Remove a closed log whose segment is durable."""
        log_path(self.directory, number).unlink(missing_ok=True)
        sync_directory(self.directory)
        self.closed.remove(number)

    def close(self) -> None:
        """Let go of the directory; what was not synced is forgotten."""
        self._log.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
