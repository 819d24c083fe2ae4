"""Captured traffic as TCP segments: classic pcap files (tcpdump -w), and the proxy's captures, one JSON object a line.

It reads only what a wire audit needs: Ethernet, Linux cooked, loopback or raw IP; IPv4 and IPv6; TCP, up to 2 GB each way. It
skips everything else, and an incomplete packet at the end of a file.

A JSON capture is what `written` made of the traffic of tools/proof/proxy.py. It has the bytes of both directions in order:
`{"t": microseconds, "c": "connection", "d": "up" or "down", "b": "hex"}`; "up" is from the client to the broker. It also has
bytes that passed, and that a reset then discarded from the receiver's buffers.
"""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tools.command import Failure
from tools.proof.proxy import DOWN, UP, Seen

SYN = 2
ETHERNET = 1
# The bytes before the IP packet, by the type of the link: BSD's loopback, Linux cooked (-i any) old and new, raw IP.
HEADERS = {0: 4, 113: 16, 276: 20, **dict.fromkeys((12, 14, 101, 228, 229), 0)}


class Piece(NamedTuple):
    """A TCP segment's payload, or bytes that a proxy passed on."""

    connection: str
    direction: str
    time_us: int
    position: int  # TCP sequence number; in a JSON capture the offset in the stream
    syn: bool
    content: bytes


@contextlib.contextmanager
def written(path: Path) -> Iterator[Callable[[Seen], None]]:
    """Yield a proxy's `watch` that appends the traffic to a file, which is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    run = time.time_ns()
    # Buffered by lines, so that a killed run leaves complete lines.
    with path.open("a", buffering=1) as file:

        def write(seen: Seen) -> None:
            line = {"t": time.time_ns() // 1000, "c": f"{run:x}.{seen.connection}", "d": seen.direction}
            line["b"] = seen.content[: seen.passed].hex()
            print(json.dumps(line, separators=(",", ":")), file=file)

        yield write


def read(file: BinaryIO, name: str, ports: Iterable[int]) -> Iterator[Piece]:
    """Yield the pieces of a capture file to or from a broker's ports.

    Raises:
        Failure: the file is neither pcap nor JSON lines.
    """
    head = file.read(24)
    magic = head[:4]
    if magic == b"\x0a\x0d\x0d\x0a":
        raise Failure(f"{name} is pcapng: convert it, `editcap -F pcap {name} {name}.pcap`")
    if head[:1] == b"{":
        yield from _read_json(head + file.read())
        return
    kinds = {b"\xd4\xc3\xb2\xa1": ("<", 1), b"\xa1\xb2\xc3\xd4": (">", 1), b"\x4d\x3c\xb2\xa1": ("<", 1000)}
    kinds[b"\xa1\xb2\x3c\x4d"] = (">", 1000)
    if magic not in kinds or len(head) < 24:
        raise Failure(f"{name} is neither a pcap file nor a capture of the proxy")
    order, per_us = kinds[magic]
    link = struct.unpack(order + "I", head[20:24])[0] & 0x0FFFFFFF
    wanted = frozenset(ports)
    while len(header := file.read(16)) == 16:
        seconds, fraction, length, _ = struct.unpack(order + "IIII", header)
        frame = file.read(length)
        if len(frame) < length:
            return
        piece = _piece(link, frame, seconds * 1_000_000 + fraction // per_us, wanted)
        if piece:
            yield piece


def _read_json(text: bytes) -> Iterator[Piece]:
    positions: dict[tuple[str, str], int] = {}
    for line in text.splitlines():
        try:
            said = json.loads(line)
            content = bytes.fromhex(said["b"])
            key = (str(said["c"]), said["d"])
            time_us = int(said["t"])
            if said["d"] not in (UP, DOWN):
                continue
        except (ValueError, KeyError, TypeError, OverflowError):
            continue  # the last line of a capture that was cut off
        at = positions.get(key, 0)
        positions[key] = at + len(content)
        yield Piece(*key, time_us, at, False, content)


def _piece(link: int, frame: bytes, time_us: int, ports: frozenset[int]) -> Piece | None:
    ip = _ip(link, frame)
    if not ip:
        return None
    version = ip[0] >> 4
    if version == 4 and len(ip) >= 20 and ip[9] == 6:
        if struct.unpack(">H", ip[6:8])[0] & 0x1FFF:
            return None  # a later fragment
        begin, end = (ip[0] & 15) * 4, struct.unpack(">H", ip[2:4])[0] or len(ip)
        source, target = (".".join(map(str, ip[at : at + 4])) for at in (12, 16))
    elif version == 6 and len(ip) >= 40 and ip[6] == 6:
        begin, end = 40, 40 + struct.unpack(">H", ip[4:6])[0]
        source, target = (ip[at : at + 16].hex(":", 2) for at in (8, 24))
    else:
        return None
    tcp = ip[begin:end]
    if len(tcp) < 20:
        return None
    source_port, target_port, position = struct.unpack(">HHI", tcp[:8])
    content = tcp[(tcp[12] >> 4) * 4 :]
    syn = bool(tcp[13] & SYN)
    if target_port in ports:
        name, direction = f"{source}:{source_port}>{target}:{target_port}", UP
    elif source_port in ports:
        name, direction = f"{target}:{target_port}>{source}:{source_port}", DOWN
    else:
        return None
    return Piece(name, direction, time_us, position, syn, content) if content or syn else None


def _ip(link: int, frame: bytes) -> bytes:
    if link != ETHERNET:
        return frame[HEADERS[link] :] if link in HEADERS else b""
    at = 14
    while frame[at - 2 : at] in {b"\x81\x00", b"\x88\xa8"}:  # VLAN
        at += 4
    return frame[at:] if frame[at - 2 : at] in {b"\x08\x00", b"\x86\xdd"} else b""


def streams(pieces: list[Piece]) -> list[dict[str, Stream]]:
    """Return the byte streams of one address pair's connections, a dict by direction for each: a SYN begins a new connection."""
    found: list[dict[str, Stream]] = []
    for piece in sorted(pieces, key=lambda one: (one.time_us, not one.syn)):
        if not found or (piece.syn and piece.direction == UP and found[-1].get(UP, Stream()).used(piece)):
            found.append({})
        found[-1].setdefault(piece.direction, Stream()).add(piece)
    return found


class Stream:
    """One direction of a connection: turns segments in any order, with repetitions, into bytes with times."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.parts: list[tuple[int, int, bytes]] = []  # offset, time, content

    def used(self, syn: Piece) -> bool:
        """Return whether a SYN begins another connection, and is no repetition of this connection's SYN."""
        return self.start is not None and (syn.position + 1) & 0xFFFFFFFF != self.start

    def add(self, piece: Piece) -> None:
        """Add a segment."""
        if piece.syn:
            self.start = (piece.position + 1) & 0xFFFFFFFF
            return
        if self.start is None:
            self.start = piece.position
        # Sequence numbers wrap at 2^32. Below 0: from before the capture, or a keep-alive probe.
        offset = ((piece.position - self.start + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        self.parts.append((offset, piece.time_us, piece.content))

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (time, bytes) in stream order; at a gap, where the capture lost packets, end with (time, b"")."""
        reached = 0
        for offset, time_us, content in sorted(self.parts):
            if offset > reached:
                yield time_us, b""
                return
            fresh = content[reached - offset :]
            if fresh:
                reached += len(fresh)
                yield time_us, fresh
