"""The landing log: received messages in a file of CRC-guarded blocks, each durable before its messages are acknowledged.

One block is one group commit: everything that arrived since the previous block, under one CRC, written by one
`pwrite` and one `fdatasync`. A torn block therefore contains nothing that was acknowledged, and is dropped whole. A block
is written only when all blocks before it are durable. A bad block at the end is therefore the torn tail of a crash, which
is normal. A bad block with a good block behind it had been acknowledged, and is reported as damage.

The file, little-endian, blocks and header aligned to 8 bytes:

    file header   magic 16, u32 length, u32 CRC of the JSON, JSON (padded with spaces)
    block         u32 length of the entries, u32 CRC, u64 its own position, entries, zeros
                  (the CRC covers the entries and the other 12 header bytes, and is seeded with the file's salt)
    entry         u8 kind, u8 protocol level, u16 count or packet id, u32 length of the body,
                  u64 arrival (µs since 1970, UTC), body

| kind | body | meaning |
|---|---|---|
| 1 LANDED | `count` whole PUBLISH packets | each is a row of the segment |
| 2 HELD | one whole PUBLISH packet (the session uses its DUP bit) | QoS 2: stored under its packet id, not yet a row |
| 3 RELEASED | empty | the held message with this packet id is a row of the segment now |
| 4 | empty | older collectors wrote it; it says nothing |
| 5 SESSION | empty | the broker began a new session here: earlier packet ids are void |
| 6 RECENT | for each message u16 packet id, 8 bytes digest | the last QoS 1 messages before this log (`recent.py`) |

A LANDED packet of QoS 0 with DUP marks a copy of a QoS 1 message that landed already. No broker may send such a packet.

At most one message is held under a packet id: between two HELD entries with one id is its RELEASED entry.

This is version 2; any other is refused.
This module knows no MQTT (packets are opaque bytes here), no network and no Parquet.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.command import Failure, explained
from tools.landing.durable import replacing

MAGIC = b"flashmqtt log 2\n"
SUFFIX = ".log"
TEMPORARY = ".tmp"

LANDED, HELD, RELEASED, SESSION, RECENT = 1, 2, 3, 5, 6

HEADER_FRAME = struct.Struct("<16sII")
BLOCK = struct.Struct("<IIQ")
BLOCK_CRC_PART = struct.Struct("<IQ")
ENTRY = struct.Struct("<BBHIQ")
MOST_IN_ENTRY = 0xFFFF
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LandingError(Failure):
    """The landing directory can't be used; the text says why and what to do."""


class LandingStalled(LandingError):
    """The log can't be written now. Nothing is lost and nothing is acknowledged; the caller may retry."""


class DiskFull(LandingStalled):
    """The disk has no room for the messages that arrived."""


class LandingDamaged(LandingError):
    """The log lost durable bytes. The disk or another program caused it, not a crash."""


class LandingForeign(LandingError):
    """The directory holds a log of another collector, or of a format that this program does not know."""


def stalled(path: Path | str, error: OSError) -> LandingStalled:
    """Return the LandingStalled or DiskFull for a failed write."""
    if error.errno in NO_ROOM:
        return DiskFull(f"no room for {explained(error, path)}")
    return LandingStalled(f"can't write {explained(error, path)}")


def _aligned(position: int) -> int:
    return (position + 7) & ~7


@dataclass(frozen=True)
class Header:
    """A log's header."""

    collector: str
    number: int  # its segment carries the same number
    salt: int  # seed of every CRC, so that a block of another file never validates
    rows_before: int  # rows in all logs before this one
    mounts_before: int = 0  # not used; older collectors need it
    previous_end: int = 0  # the previous log's length when this one was made

    def encode(self) -> bytes:
        """Return the file header."""
        body = json.dumps(self.__dict__, sort_keys=True).encode()
        body += b" " * (_aligned(len(body)) - len(body))
        return HEADER_FRAME.pack(MAGIC, len(body), zlib.crc32(body)) + body

    @classmethod
    def decode(cls, path: Path, data: bytes | memoryview) -> tuple[Header, int]:
        """Return the header and where the blocks begin.

        Raises:
            LandingForeign: not a landing log, or one of another version.
            LandingDamaged: the header is broken. A log gets its name only when its header is durable.
        """
        if len(data) < HEADER_FRAME.size or bytes(data[: len(MAGIC)]) != MAGIC:
            raise LandingForeign(
                f"{path} is not a landing log of version 2: let the program that wrote it seal it (start it once with --drain 1),"
                " or move it away"
            )
        _, length, crc = HEADER_FRAME.unpack_from(data)
        body = bytes(data[HEADER_FRAME.size : HEADER_FRAME.size + length])
        if len(body) != length or zlib.crc32(body) != crc:
            raise LandingDamaged(f"{path}: the header is broken")
        fields: dict[str, Any] = json.loads(body)
        return cls(**fields), HEADER_FRAME.size + length


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a block; the body is `data[start:end]` of the log's bytes."""

    kind: int
    level: int
    number: int  # LANDED: how many packets; HELD, RELEASED: the packet id
    time_us: int
    start: int
    end: int


@dataclass
class Contents:
    """A log that was read: its bytes, its entries, torn and damaged parts."""

    path: Path
    data: bytes
    header: Header
    entries: list[Entry] = field(default_factory=list)
    end: int = 0  # behind the last good block
    torn_bytes: int = 0  # of the tail that a crash left behind `end`
    damage: list[tuple[int, int]] = field(default_factory=list)  # ranges of bytes that had been durable

    def replayed(self) -> tuple[list[Entry], dict[int, Entry]]:
        """Return the entries that are rows, in the order in which they landed or were released; and those still held, by id."""
        rows: list[Entry] = []
        held: dict[int, Entry] = {}
        for entry in self.entries:
            if entry.kind == LANDED:
                rows.append(entry)
            elif entry.kind in (HELD, RELEASED):
                # In a damaged log, HELD may be missing before RELEASED, or RELEASED before the next HELD of the same id.
                if entry.number in held:
                    rows.append(held.pop(entry.number))
                if entry.kind == HELD:
                    held[entry.number] = entry
        return rows, held

    @property
    def rows(self) -> int:
        """The number of rows in this log."""
        return sum(entry.number if entry.kind == LANDED else 1 for entry in self.replayed()[0])


def block_crc(salt: int, length: int, position: int, entries: bytes | memoryview) -> int:
    """Return the CRC of one block."""
    return zlib.crc32(entries, zlib.crc32(BLOCK_CRC_PART.pack(length, position), salt))


def _block_end(data: memoryview, position: int, salt: int) -> int:
    """Return the end of the entries of the block at `position`, or 0 if there is no good block."""
    first = position + BLOCK.size
    if first > len(data):
        return 0
    length, crc, own_position = BLOCK.unpack_from(data, position)
    if own_position != position or not length or first + _aligned(length) > len(data):
        return 0
    if block_crc(salt, length, position, data[first : first + length]) != crc:
        return 0
    return first + length


def _entries(data: memoryview, position: int, end: int) -> Iterator[Entry]:
    while position < end:
        kind, level, number, length, time_us = ENTRY.unpack_from(data, position)
        position += ENTRY.size
        yield Entry(kind, level, number, time_us, position, position + length)
        position += length


def _next_good(data: memoryview, position: int, salt: int) -> int:
    """Return the position of the next good block behind a bad one, or 0."""
    for at in range(_aligned(position + 1), len(data) - BLOCK.size + 1, 8):
        if _block_end(data, at, salt):  # its position field rules out nearly all, without a CRC
            return at
    return 0


def read_log(path: Path, salvage: bool = False) -> Contents:
    """Read a whole log.

    Raises:
        LandingDamaged: durable bytes are broken, and `salvage` is false.
        LandingForeign: not a landing log, or one of another version.
    """
    raw = path.read_bytes()
    data = memoryview(raw)
    header, position = Header.decode(path, data)
    contents = Contents(path, raw, header)
    while position < len(data):
        end = _block_end(data, position, header.salt)
        if end:
            contents.entries.extend(_entries(data, position + BLOCK.size, end))
            position = _aligned(end)
            continue
        good = _next_good(data, position, header.salt)
        if not good:
            break
        if not salvage:
            raise LandingDamaged(
                f"{path}: bytes {position} to {good} were durable and are now broken, by the disk or another program; "
                "start once with --salvage to seal the readable part; the damaged file is kept"
            )
        contents.damage.append((position, good))
        position = good
    contents.end = position
    contents.torn_bytes = len(data) - contents.end
    return contents


def log_path(directory: Path, number: int) -> Path:
    """Return the path of a log."""
    return directory / f"{number:010d}{SUFFIX}"


def log_numbers(directory: Path) -> list[int]:
    """Return the numbers of the logs in a directory, in ascending order."""
    return sorted(int(path.stem) for path in directory.glob("[0-9]" * 10 + SUFFIX))


def packed(kind: int, level: int, number: int, time_us: int, body: bytes | bytearray | memoryview = b"") -> bytes:
    """Return one entry."""
    return ENTRY.pack(kind, level, number, len(body), time_us) + body


class LandingLog:
    """A log that is being written: `append` collects entries in memory, `sync` makes them durable.

    Commit rule: an entry is valid when its whole block is on disk; `sync` returns only then.
    """

    def __init__(self, path: Path, header: Header, end: int) -> None:
        """Open a log whose good blocks end at `end`; bytes behind `end` are cut off."""
        self.path = path
        self.header = header
        self.end = end
        self._pending: list[bytes | bytearray | memoryview] = []
        self.pending_bytes = 0
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._cut = True  # truncate at `end` before the next write

    @classmethod
    def create(cls, directory: Path, header: Header, entries: list[bytes]) -> LandingLog:
        """Make a log that begins with `entries`. It gets its name when it is complete and durable.

        Raises:
            LandingStalled, DiskFull: no log was made.
        """
        path = log_path(directory, header.number)
        try:
            end = cls.write(path, header, entries)
        except OSError as error:
            with contextlib.suppress(OSError):  # read-only file system; the next mount removes the file
                path.unlink()
            raise stalled(path, error) from error
        log = cls(path, header, end)
        log._cut = False
        return log

    @classmethod
    def write(cls, path: Path, header: Header, entries: list[bytes]) -> int:
        """Write a whole log of one block, replacing an existing one; return its length.

        Raises:
            OSError: it could not be written.
        """
        start = header.encode()
        block = cls._block(header.salt, len(start), entries) if entries else b""
        with replacing(path, temporary=path.with_suffix(TEMPORARY)) as file:
            file.write(start + block)
        return len(start) + len(block)

    @staticmethod
    def _block(salt: int, end: int, pieces: list[Any]) -> bytes:
        entries = b"".join(pieces)
        length = len(entries)
        crc = block_crc(salt, length, end, entries)
        return b"".join((BLOCK.pack(length, crc, end), entries, bytes(_aligned(length) - length)))

    def append(
        self, kind: int, level: int, number: int, time_us: int, body: bytes | bytearray | memoryview = b""
    ) -> None:
        """Append one entry in memory. `body` is not copied: it must not change any more."""
        self._pending.append(ENTRY.pack(kind, level, number, len(body), time_us))
        if body:
            self._pending.append(body)
        self.pending_bytes += ENTRY.size + len(body)

    def sync(self) -> None:
        """Make all appended entries durable; and what an earlier collector wrote to this log, which it may not have synced.

        Raises:
            LandingStalled, DiskFull: the write failed. The entries are kept; call again.
            LandingDamaged: the file was deleted, so nothing that is written to it would be read again.
        """
        if not self._pending and not self._cut:
            return
        block = self._block(self.header.salt, self.end, self._pending) if self._pending else b""
        try:
            if self._cut:
                os.ftruncate(self._handle, self.end)
                self._cut = False
            rest = memoryview(block)
            while rest:
                rest = rest[os.pwrite(self._handle, rest, self.end + len(block) - len(rest)) :]
            os.fdatasync(self._handle)
            is_deleted = not os.fstat(self._handle).st_nlink
        except OSError as error:
            # After a failed fsync the kernel marks the pages clean, so the retry has to write them again.
            self._cut = True
            raise stalled(self.path, error) from error
        if is_deleted:
            raise LandingDamaged(
                f"{self.path} was deleted: the messages in it are lost, unless you restore it before the next start. Newer"
                " ones were not acknowledged, so the broker sends them again"
            )
        self.end += len(block)
        self._pending.clear()
        self.pending_bytes = 0

    def close(self) -> None:
        """Close the file; entries that were not synced are dropped."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
