"""MQTT packets for tests, in both directions and at all three levels: correct packets, and wrong ones on request.

It is the only codec of tests and proofs. It is separate from the product's on purpose, and written from the standards alone: a
mistake in a shared codec would hide itself. Writers return bytes and check nothing, so that tests can send wrong flags, wrong
lengths and an id of 0. It runs on MicroPython, too.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = 8, 9, 10, 11, 12, 13, 14, 15
_NAMES = "RESERVED CONNECT CONNACK PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE SUBACK UNSUBSCRIBE UNSUBACK "
_NAMES += "PINGREQ PINGRESP DISCONNECT AUTH"
NAMES = _NAMES.split()


def length(n: int) -> bytes:
    """Return a Remaining Length."""
    out = bytearray()
    while True:
        n, low = n >> 7, n & 0x7F
        out.append(low | (0x80 if n else 0))
        if not n:
            return bytes(out)


def word(n: int) -> bytes:
    """Return a 16-bit integer."""
    return n.to_bytes(2, "big")


def text(content: str | bytes) -> bytes:
    """Return a string with its length."""
    octets = content.encode() if isinstance(content, str) else content
    return word(len(octets)) + octets


def packet(head: int, *parts: bytes) -> bytes:
    """Return a packet with this first byte."""
    body = b"".join(parts)
    return bytes((head,)) + length(len(body)) + body


def _variable(octets: bytes | bytearray, at: int) -> "tuple[int, int]":
    """Return the Variable Byte Integer at a position, and the position behind it: 0 if it is incomplete."""
    n = shift = 0
    while at < len(octets):
        byte = octets[at]
        n |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return n, at
    return 0, 0


def packet_end(octets: bytes | bytearray, start: int = 0) -> int:
    """Return the end of the packet that begins at `start`, or 0 if it is incomplete.

    All bytes belong to a packet whose length takes more than four.
    """
    n, used = _variable(octets[start + 1 : start + 5], 0)
    if not used and len(octets) >= start + 5:
        return len(octets)
    end = start + 1 + used + n
    return end if used and end <= len(octets) else 0


def _properties(level: int, content: bytes = b"") -> bytes:
    return length(len(content)) + content if level == 5 else b""


def connect(
    client_id: str,
    level: int = 4,
    clean: bool = True,
    keep_alive_s: int = 0,
    properties: bytes = b"",
    user: str = "",
    password: str = "",
) -> bytes:
    """Return a CONNECT without a will; with user and password if there is a user."""
    name = "MQIsdp" if level == 3 else "MQTT"
    head = text(name) + bytes((level, (2 if clean else 0) | (0xC0 if user else 0))) + word(keep_alive_s)
    login = text(user) + text(password) if user else b""
    return packet(0x10, head + _properties(level, properties) + text(client_id) + login)


def connack(level: int = 4, session_present: int = 0, code: int = 0, properties: bytes = b"") -> bytes:
    """Return a CONNACK."""
    return packet(0x20, bytes((session_present, code)) + _properties(level, properties))


def publish(
    topic: str | bytes,
    payload: str | bytes,
    qos: int = 0,
    packet_id: int = 0,
    level: int = 4,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    """Return a PUBLISH."""
    body = text(topic) + (word(packet_id) if qos else b"") + _properties(level, properties)
    body += payload.encode() if isinstance(payload, str) else payload
    return packet(0x30 | dup << 3 | qos << 1 | retain, body)


def ack(kind: int, packet_id: int, code: int | None = None) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP; with a code if one is given (level 5)."""
    return packet(kind << 4 | (2 if kind == PUBREL else 0), word(packet_id) + (b"" if code is None else bytes((code,))))


def subscribe(packet_id: int, filters: "Iterable[tuple[str, int]]", level: int = 4) -> bytes:
    """Return a SUBSCRIBE."""
    body = word(packet_id) + _properties(level) + b"".join(text(name) + bytes((options,)) for name, options in filters)
    return packet(0x82, body)


def unsubscribe(packet_id: int, filters: "Iterable[str]", level: int = 4) -> bytes:
    """Return an UNSUBSCRIBE."""
    return packet(0xA2, word(packet_id) + _properties(level) + b"".join(map(text, filters)))


def suback(packet_id: int, codes: "Iterable[int]", level: int = 4) -> bytes:
    """Return a SUBACK."""
    return packet(0x90, word(packet_id) + _properties(level) + bytes(codes))


def unsuback(packet_id: int, codes: "Iterable[int]" = (), level: int = 4) -> bytes:
    """Return an UNSUBACK; only level 5 has codes."""
    return packet(0xB0, word(packet_id) + _properties(level) + bytes(codes))


PING = packet(0xC0)
PONG = packet(0xD0)


def disconnect(level: int = 4, code: int | None = None) -> bytes:
    """Return a DISCONNECT; with a code if one is given (level 5)."""
    return packet(0xE0, b"" if code is None else bytes((code,)))


class Wrong(Exception):
    """The bytes break the standard; the text says which rule."""


class Packet:
    """One parsed packet."""

    def __init__(self, kind: int, flags: int, body: bytes, level: int):
        self.kind = kind
        self.flags = flags
        self.body = body
        self.level = level
        self.packet_id = self.code = self.keep_alive_s = 0
        self.topic = self.client_id = ""  # of CONNECT: the will's topic and payload
        self.payload = self.properties = self.codes = self.will_properties = b""
        self.session_present = self.clean = self.will_retain = False
        self.will_qos = 0
        self.user: str | None = None
        self.password: bytes | None = None
        self.filters: list[tuple[str, int]] = []

    @property
    def qos(self) -> int:
        """A PUBLISH's QoS."""
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        """Whether DUP is set: PUBLISH, and at level 3 PUBREL, SUBSCRIBE and UNSUBSCRIBE."""
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        """Whether RETAIN is set."""
        return bool(self.flags & 1)

    def __str__(self) -> str:
        number = f" {self.packet_id}" if self.packet_id else ""
        present = " session present" if self.session_present else ""
        return f"{NAMES[self.kind]}{number}{' dup' if self.dup else ''}{present}"


# The properties that a client's packets may have (2.2.2.2), and the sizes of those that are numbers. 0x26 may come again.
_OF_CONNECT, _OF_WILL = b"\x11\x15\x16\x17\x19\x21\x22\x26\x27", b"\x01\x02\x03\x08\x09\x18\x26"
_OF_REQUEST = {SUBSCRIBE: b"\x0b\x26", UNSUBSCRIBE: b"\x26"}
_SIZES = {0x01: 1, 0x17: 1, 0x19: 1, 0x21: 2, 0x22: 2, 0x02: 4, 0x11: 4, 0x18: 4, 0x27: 4}


class _Body:
    def __init__(self, body: bytes):
        self.body, self.at = body, 0

    def take(self, n: int) -> bytes:
        piece = self.body[self.at : self.at + n]
        if len(piece) != n:
            raise Wrong(f"a packet's body ends {n - len(piece)} bytes early")
        self.at += n
        return piece

    def word(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def octets(self) -> bytes:
        return self.take(self.word())

    def text(self) -> str:
        try:
            return self.octets().decode("utf-8")
        except UnicodeError as error:
            raise Wrong(f"a string is not UTF-8: {error}") from None

    def variable(self) -> int:
        n, at = _variable(self.body, self.at)
        if not at:
            raise Wrong("a packet's body ends inside a length")
        self.at = at
        return n

    def properties(self, level: int, allowed: bytes = b"") -> bytes:
        """Take the properties; check that each one is allowed, and is there once."""
        content = self.take(self.variable()) if level == 5 else b""
        body, found = _Body(content), []
        while allowed and body.left:
            found.append(body.take(1)[0])
            if found[-1] not in allowed or (found[-1] != 0x26 and found[-1] in found[:-1]):
                raise Wrong(f"properties {found}")
            if found[-1] == 0x0B:
                body.variable()
            else:
                body.take(_SIZES.get(found[-1], 0))
                for _ in range({0x26: 2}.get(found[-1], 0 if found[-1] in _SIZES else 1)):
                    body.octets()
        return content

    def rest(self) -> bytes:
        return self.take(len(self.body) - self.at)

    @property
    def left(self) -> int:
        return len(self.body) - self.at


class Reader:
    """Parses a stream of bytes. The level comes from a CONNECT, or is given."""

    def __init__(self, level: int = 4):
        self.level = level
        self._buffer = bytearray()
        self._aliases: dict[int, str] = {}

    @property
    def pending(self) -> int:
        """How many bytes of an incomplete packet are in the buffer."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[Packet]:
        """Return the packets that these bytes complete.

        Raises:
            Wrong: they break the standard.
        """
        return list(self.packets(chunk))

    def packets(self, chunk: bytes) -> "Iterator[Packet]":
        """Yield the packets that these bytes complete, also those before a wrong one."""
        self._buffer += chunk
        while len(self._buffer) > 1:
            n, at = _variable(self._buffer[:5], 1)
            if not at and len(self._buffer) > 4:
                raise Wrong("a Remaining Length of five bytes")
            if at > 2 and not self._buffer[at - 1]:
                raise Wrong("a Remaining Length with more bytes than it needs")
            if not at or at + n > len(self._buffer):
                return
            packet = self._parse(self._buffer[0], bytes(self._buffer[at : at + n]))
            self._buffer = self._buffer[at + n :]
            yield packet

    def _parse(self, head: int, content: bytes) -> Packet:
        kind, flags = head >> 4, head & 15
        result = Packet(kind, flags, content, self.level)
        body = _Body(content)
        _check_flags(kind, flags, self.level)
        if kind == CONNECT:
            self._connect(result, body)
        elif kind == CONNACK:
            result.session_present = bool(body.take(1)[0] & 1)
            result.code = body.take(1)[0]
            result.properties = body.properties(self.level)
        elif kind == PUBLISH:
            result.topic = body.text()
            if set("+#\0") & set(result.topic):
                raise Wrong(f"PUBLISH to topic {result.topic!r}")
            if result.qos:
                result.packet_id = self._id(body)
            elif result.dup:
                raise Wrong("DUP at QoS 0")
            result.properties = body.properties(self.level)
            self._alias(result)
            result.payload = body.rest()
        elif PUBACK <= kind <= PUBCOMP:
            result.packet_id = self._id(body)
        elif kind in (SUBSCRIBE, UNSUBSCRIBE):
            result.packet_id = self._id(body)
            result.properties = body.properties(self.level, _OF_REQUEST[kind])
            while body.left:
                result.filters.append((body.text(), body.take(1)[0] if kind == SUBSCRIBE else 0))
                _check_filter(*result.filters[-1], self.level)
            if not result.filters:
                raise Wrong(f"{NAMES[kind]} without a filter")
        elif kind in (SUBACK, UNSUBACK):
            result.packet_id = self._id(body)
            result.properties = body.properties(self.level)
            result.codes = body.rest()
        if self.level == 5 and (PUBACK <= kind <= PUBCOMP or kind in (DISCONNECT, AUTH)) and body.left:
            result.code = body.take(1)[0]
            result.properties = body.properties(5) if body.left else b""
        if body.left:
            raise Wrong(f"{NAMES[kind]} with {body.left} bytes too many")
        return result

    def _alias(self, result: Packet) -> None:
        """Set the topic from an alias of this connection. It finds the alias only if that is the first property."""
        alias = int.from_bytes(result.properties[1:3], "big") if result.properties[:1] == b"\x23" else 0
        if alias and result.topic:
            self._aliases[alias] = result.topic
        elif alias:
            result.topic = self._aliases.get(alias, "")
        if not result.topic:
            raise Wrong(f"PUBLISH to topic '', alias {alias}")

    def _connect(self, result: Packet, body: _Body) -> None:
        name = body.text()
        self.level = result.level = body.take(1)[0]
        if (name, self.level) not in (("MQIsdp", 3), ("MQTT", 4), ("MQTT", 5)):
            raise Wrong(f"CONNECT with {name!r} and level {self.level}")
        flags = body.take(1)[0]
        result.will_qos = flags >> 3 & 3
        if flags & 1 or result.will_qos == 3 or flags & 0x3C in (0x08, 0x10, 0x20, 0x28, 0x30):
            raise Wrong(f"CONNECT with flags {flags:08b}")
        if flags & 0xC0 == 0x40 and self.level < 5:
            raise Wrong("CONNECT with a password without user")
        result.clean = bool(flags & 2)
        result.will_retain = bool(flags & 32)
        result.keep_alive_s = body.word()
        result.properties = body.properties(self.level, _OF_CONNECT)
        result.client_id = body.text()
        if self.level == 4 and not result.client_id and not result.clean:
            raise Wrong("CONNECT without client id that is not clean")
        if self.level == 3 and not 1 <= len(result.client_id) <= 23:
            raise Wrong(f"a client id of {len(result.client_id)} characters at level 3")
        if flags & 4:
            result.will_properties = body.properties(self.level, _OF_WILL)
            result.topic, result.payload = body.text(), body.octets()
            if not result.topic or set("+#\0") & set(result.topic):
                raise Wrong(f"a will to topic {result.topic!r}")
        if flags & 0x80:
            result.user = body.text()
        if flags & 0x40:
            result.password = body.octets()

    def _id(self, body: _Body) -> int:
        packet_id = body.word()
        if not packet_id:
            raise Wrong("a packet id of 0")
        return packet_id


def _check_filter(name: str, options: int, level: int) -> None:
    """Check a filter (4.7, 4.8.2) and the options of its subscription (3.8.3)."""
    share, levels = "-", name.split("/")
    if level == 5 and name.startswith("$share/"):
        share, levels = levels[1], levels[2:]
    malformed = [one for one in levels if set("+#") & set(one) and one not in ("+", "#")]
    if not share or set("+#") & set(share) or "\0" in name or levels in ([], [""]) or malformed or "#" in levels[:-1]:
        raise Wrong(f"filter {name!r}")
    wrong = options & 0xC0 or options & 0x30 == 0x30 if level == 5 else options > 2
    if wrong or options & 3 == 3 or (options & 4 and share != "-"):
        raise Wrong(f"options {options:08b} of filter {name!r}")


def _check_flags(kind: int, flags: int, level: int) -> None:
    """Check a type's flags by the tables of 2.2.2 (3.1: PUBREL, SUBSCRIBE, UNSUBSCRIBE may have DUP)."""
    if kind == PUBLISH:
        right = flags >> 1 & 3 != 3
    elif kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE):
        right = flags == 2 or (level == 3 and flags == 10)
    else:
        right = flags == 0 and kind != 0
    if not right:
        raise Wrong(f"{NAMES[kind]} with flags {flags:04b}")
