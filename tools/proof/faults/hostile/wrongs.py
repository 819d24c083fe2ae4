"""Every wrong thing that the hostile broker does, and how a client may react to it.

A wrong thing is a script: a list of steps. A step is bytes to send, or one of

    ("close", "fin" or "rst")     end the connection
    ("silence",)                  answer nothing any more on this connection
    ("drip", bytes, seconds)      send these bytes again and again, one byte at a time, with these pauses; answer nothing else

The outcome is one of the words in OUTCOMES. A payload says what may happen to its message: "bad" must never reach the
application, "odd" may.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tools.proof import packets as p

MOMENTS = (
    *("connect", "connack", "subscribe", "suback", "publish1", "puback", "publish2"),
    *("pubrec", "pubrel", "pubcomp", "out1", "out2", "out3", "idle"),
)
# An error's class, and the reason code that level 5's DISCONNECT must have.
_MALFORMED = frozenset({"MalformedPacket:81", "MalformedPacket:82", "MalformedPacket:94", "MalformedPacket:95"})
_REFUSED = frozenset({"ConnectRefused"})
# OSError has subclasses on CPython.
_LOST = frozenset({"ConnectionLost", "OSError", "ConnectionResetError", "BrokenPipeError"})
# Word -> the errors that may end the first connection; "": it does not end.
OUTCOMES = {
    "malformed": _MALFORMED,
    "violation": frozenset({"ProtocolError:82", "MalformedPacket:82"}),
    "flow": frozenset({"", "ProtocolError:82"}),  # depends on the state of the flow
    "tolerated": frozenset({""}),
    "refused": _REFUSED,
    "lost": _LOST,
    "deadline": frozenset({"DeadlineExpired"}),
    "partial": _LOST | {"DeadlineExpired"},
}

Step = bytes | tuple
UNKNOWN = 9999
Y_ID = 2  # the broker's own QoS 2 message


@dataclass
class Scene:
    """The values that a script uses: the level, and the packet ids of the client's messages in flight."""

    level: int
    id1: int = 1
    id2: int = 2
    request: int = 1  # the id of the last SUBSCRIBE
    topic: str = "faults"


@dataclass(frozen=True)
class Wrong:
    """One wrong thing.

    Attributes:
        steps: what it does; some depend on the scene.
        outcome: a word of OUTCOMES.
        levels: at which it is wrong.
        moments: when it may be done.
        instead: whether it replaces the right answer.
        early: the outcome before CONNACK, where a well-formed packet is a violation.
    """

    name: str
    steps: tuple[Step | Callable[[Scene], Step], ...]
    outcome: str
    levels: str = "345"
    moments: tuple[str, ...] = MOMENTS
    instead: bool = False
    early: str = ""

    def script(self, scene: Scene) -> list[Step]:
        """Return its steps."""
        return [step(scene) if callable(step) else step for step in self.steps]

    def allowed(self, moment: str) -> frozenset[str]:
        """Return the errors that may end the first connection."""
        if moment == "connect" and not self.instead:
            early = self.early or ("violation" if self.outcome in ("flow", "tolerated") else self.outcome)
            return OUTCOMES[early]
        return OUTCOMES[self.outcome]


def _bad(scene: Scene, payload: str | bytes = "bad", qos: int = 1, packet_id: int = 77, **rest) -> bytes:
    return p.publish(rest.pop("topic", f"{scene.topic}/in"), payload, qos, packet_id, scene.level, **rest)


def _flood(count: int, scene: Scene, **rest) -> bytes:
    return b"".join(_bad(scene, packet_id=1000 + n, **rest) for n in range(count))


def _ack1(kind: int, scene: Scene) -> bytes:
    return p.ack(kind, scene.id1)


def _ack2(kind: int, scene: Scene, times: int = 1) -> bytes:
    return p.ack(kind, scene.id2) * times


def _refusal(code: int, scene: Scene) -> bytes:
    return p.connack(scene.level, 0, code)


def _suback(*codes_and_scene: Any) -> bytes:
    *codes, scene = codes_and_scene
    return p.suback(scene.request, codes, scene.level)


def _wrongs() -> list[Wrong]:
    rows: list[Wrong] = []

    def add(name: str, outcome: str, *steps: Step | Callable[[Scene], Step], **rest) -> None:
        rows.append(Wrong(name, steps, outcome, **rest))

    after_sub = MOMENTS[3:]
    # Acknowledgements: of nothing, of the wrong flow, twice, and misshapen.
    for kind in (p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP):
        name, head = p.NAMES[kind], kind << 4 | (2 if kind == p.PUBREL else 0)
        add(f"{name} of an unknown id", "tolerated", p.ack(kind, UNKNOWN))
        add(f"{name} of an unknown id, a hundred times", "tolerated", p.ack(kind, UNKNOWN) * 100)
        add(f"{name} with id 0", "malformed", p.ack(kind, 0))
        add(f"{name} without an id", "malformed", p.packet(head))
        add(f"{name} with half an id", "malformed", p.packet(head, b"\x00"))
        add(f"{name} with flags of 1", "malformed", p.packet(kind << 4 | 1, b"\x00\x09"))
        add(f"{name} that is too long", "malformed", p.packet(head, b"\0\x09\0\0\0\0"))
        if kind != p.PUBREL:
            add(f"{name} for the QoS 1 message", "flow", partial(_ack1, kind))
            add(f"{name} for the QoS 2 message", "flow", partial(_ack2, kind))
            add(f"{name} for the QoS 2 message, twice", "flow", partial(_ack2, kind, times=2))
    add("PUBREC with a code of failure for an unknown id", "tolerated", p.ack(p.PUBREC, UNKNOWN, 0x80), levels="5")
    add("PUBACK with a reserved code", "malformed", p.ack(p.PUBACK, UNKNOWN, 0x7E), levels="5")
    # Answers to requests.
    add("SUBACK of an unknown id", "tolerated", lambda s: p.suback(UNKNOWN, [0], s.level))
    add("SUBACK with id 0", "malformed", lambda s: p.suback(0, [0], s.level))
    add("SUBACK with a reserved code", "malformed", partial(_suback, 3), levels="45")
    add("SUBACK without codes", "malformed", _suback)
    suback: dict[str, Any] = {"moments": ("subscribe",), "instead": True}
    add("SUBACK with too many codes", "violation", partial(_suback, 0, 1, 2), **suback)
    add("SUBACK that grants less than is then sent", "tolerated", partial(_suback, 0), **suback)
    add("SUBACK that refuses what is then sent", "tolerated", partial(_suback, 0x80), **suback)
    add("SUBACK that comes twice", "tolerated", partial(_suback, 2), moments=("suback",))
    add("UNSUBACK of nothing", "tolerated", lambda s: p.unsuback(UNKNOWN, [0] if s.level == 5 else [], s.level))
    add("PINGRESP that nobody asked for", "tolerated", p.PONG)
    add("PINGRESP with a body", "malformed", p.packet(0xD0, b"\0"))
    # Packets that no server sends, and types that do not exist.
    add("a second CONNACK", "violation", lambda s: p.connack(s.level), moments=MOMENTS[1:])
    add("CONNECT", "malformed", lambda s: p.connect("hostile", s.level))
    add("SUBSCRIBE", "malformed", lambda s: p.subscribe(9, [("a", 0)], s.level))
    add("UNSUBSCRIBE", "malformed", lambda s: p.unsubscribe(9, ["a"], s.level))
    add("PINGREQ", "malformed", p.PING)
    add("DISCONNECT", "malformed", p.disconnect(), levels="34")
    add("type 0", "malformed", p.packet(0x00))
    add("type 15", "malformed", p.packet(0xF0), levels="34")
    add("HTTP", "malformed", b"HTTP/1.1 400 Bad Request\r\n\r\n")
    add("a TLS alert", "malformed", b"\x15\x03\x03\x00\x02\x02\x28")
    add("zeros", "malformed", bytes(300))
    add("ones", "malformed", b"\xff" * 300)
    # Lengths.
    add("a fifth length byte", "malformed", b"\x30\xff\xff\xff\xff\x01")
    # At level 5 the client announces its maximum packet size; at 3 and 4 it skips a long message, and waits for its end.
    endless = b"\x30\xff\xff\xff\x7f\x00\x01abad"
    add("a length of 268,435,455, over what was announced", "malformed", endless, levels="5")
    add("a length of 268,435,455", "partial", endless, ("silence",), levels="34")
    add("a message longer than was announced", "malformed", lambda s: _bad(s, b"bad" * 3000), levels="5")
    add("a message longer than the buffer", "tolerated", lambda s: _bad(s, b"bad" * 3000), levels="34")
    add("an acknowledgement longer than the buffer", "malformed", p.packet(0x40, bytes(5000)))
    add("half a message, then the end", "lost", lambda s: _bad(s, b"bad" * 50)[:80], ("close", "fin"))
    add("half a message, then a reset", "lost", lambda s: _bad(s, b"bad" * 50)[:80], ("close", "rst"))
    add("half a message, then silence", "partial", lambda s: _bad(s, b"bad" * 50)[:80], ("silence",))
    add("one byte, then silence", "partial", b"\x30", ("silence",))
    add("a packet that never ends", "partial", b"\x30\xc8\x06", ("drip", b"\0\x01a" + b"x" * 900, 0.05))
    # PUBLISH.
    add("PUBLISH with QoS 3", "malformed", lambda s: p.packet(0x36, p.text("a") + b"\0\x09bad"))
    add("PUBLISH with QoS 0 and DUP", "malformed", lambda s: _bad(s, qos=0, dup=True), levels="45")
    add("PUBLISH with id 0", "malformed", lambda s: _bad(s, packet_id=0))
    add("PUBLISH with an empty topic", "malformed", lambda s: _bad(s, topic=""))
    add("PUBLISH to a wildcard", "malformed", lambda s: _bad(s, topic="a/#"))
    add("PUBLISH to a topic with U+0000", "malformed", lambda s: _bad(s, topic=b"a\0b"))
    add("PUBLISH to a topic that is not UTF-8", "malformed", lambda s: _bad(s, topic=b"a\xffb"))
    add("PUBLISH to a topic with a surrogate", "malformed", lambda s: _bad(s, topic=b"a\xed\xa0\x80"))
    add("PUBLISH with a topic longer than itself", "malformed", p.packet(0x32, b"\x40\x00abad"))
    add("PUBLISH of nothing", "malformed", p.packet(0x30))
    add("PUBLISH that ends inside its id", "malformed", p.packet(0x32, p.text("abad") + b"\0"))
    add("PUBLISH to a topic nobody subscribed", "tolerated", lambda s: _bad(s, "odd", topic="elsewhere"))
    add("PUBLISH with an empty payload", "tolerated", lambda s: _bad(s, b""), moments=after_sub)
    held: dict[str, Any] = {"moments": ("out2",)}
    # Another message with that id means that the broker lost the session: the held message is handed over, this one is held.
    add("PUBLISH anew with the id of a held message", "tolerated", lambda s: _bad(s, "odd", 2, Y_ID), **held)
    add("PUBLISH at QoS 1 with the id of a held message", "flow", lambda s: _bad(s, "odd", 1, Y_ID), **held)
    retained = partial(_flood, 500, payload="odd", qos=0, retain=True)
    add("a flood of retained messages", "tolerated", retained, moments=after_sub)
    add("a flood at QoS 1", "tolerated", partial(_flood, 300, payload="odd"), moments=after_sub)
    # Messages that find no room are not answered, and the rest of the flood ends like any silence.
    flood = partial(_flood, 300, qos=2)
    add("a flood at QoS 2 without a PUBREL", "deadline", flood, ("silence",), moments=("idle",))
    # The connection.
    add("the end", "lost", ("close", "fin"))
    add("a reset", "lost", ("close", "rst"))
    add("silence", "deadline", ("silence",))
    first: dict[str, Any] = {"moments": ("connect",), "instead": True}
    for code in range(1, 6):
        add(f"CONNACK with code {code}", "refused", partial(_refusal, code), levels="34", **first)
    for code in (0x84, 0x85, 0x86, 0x87, 0x88, 0x8A, 0x9F):
        add(f"CONNACK with code {code:#x}", "refused", partial(_refusal, code), levels="5", **first)
    add("CONNACK with a reserved code", "malformed", lambda s: p.connack(s.level, 0, 99), levels="34", **first)
    add("CONNACK with reserved flags", "malformed", lambda s: p.connack(s.level, 2), levels="45", **first)
    add("CONNACK refused with a session", "malformed", lambda s: p.connack(s.level, 1, 5), levels="4", **first)
    add("CONNACK of one byte", "malformed", p.packet(0x20, b"\0"), **first)
    add("CONNACK of nothing", "malformed", p.packet(0x20), **first)
    add("CONNACK of five bytes", "malformed", p.packet(0x20, bytes(5)), levels="34", **first)
    add("CONNACK with half its properties", "malformed", p.packet(0x20, b"\0\0\x05\x11"), levels="5", **first)
    zero, twice = p.connack(5, properties=b"\x21\0\0"), p.connack(5, properties=b"\x21\0\x05" * 2)
    add("CONNACK with a receive maximum of 0", "malformed", zero, levels="5", **first)
    add("CONNACK with a property twice", "malformed", twice, levels="5", **first)
    # Level 5 alone.
    add("DISCONNECT with a reason", "lost", p.disconnect(5, 0x8B), levels="5", early="violation")
    add("AUTH", "violation", p.packet(0xF0, b"\x18\x00"), levels="5")
    add("a property that does not exist", "malformed", lambda s: _bad(s, properties=b"\x7f\x00"), levels="5")
    add("a property of another packet", "malformed", lambda s: _bad(s, properties=b"\x21\x00\x05"), levels="5")
    add("a property twice", "malformed", lambda s: _bad(s, properties=b"\x01\x00\x01\x00"), levels="5")
    add("properties longer than the packet", "malformed", p.packet(0x30, p.text("a") + b"\x7fbad"), levels="5")
    add("a topic alias never agreed", "malformed", lambda s: _bad(s, topic="", properties=b"\x23\x00\x63"), levels="5")
    add("a topic alias of 0", "malformed", lambda s: _bad(s, properties=b"\x23\x00\x00"), levels="5")
    add("a subscription id of 0", "malformed", lambda s: _bad(s, properties=b"\x0b\x00"), levels="5")
    return rows


WRONGS = _wrongs()
