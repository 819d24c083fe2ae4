"""What a device may put on the wire, checked against what a proxy saw of it; with the tests' own codec.

Every packet has to be well-formed; beyond that these rules hold over all connections of a session:

    a message keeps its packet id; sent again on a later connection it has DUP, on the first connection nothing has it
    on one connection no message goes out twice (levels 4 and 5), and they go out in the order of their numbers
    after PUBREL no PUBLISH of that message follows; PUBREL only follows a PUBREC that came, but for an id of a session that the
        broker knows and a device without a journal does not: before its first message there, that clears the id
    no more messages are unacknowledged than the window allows
    PUBACK, PUBREC and PUBCOMP answer packets that came, each of them once

The broker is watched too. Mosquitto 2.0 sends a QoS 2 message anew, past its PUBREL, where a connection broke before its
CONNACK: a receiver can't tell that from a new message, so such a repetition is the broker's, and is counted as that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tools.proof import packets as p
from tools.proof.faults.cases import Case
from tools.proof.proxy import UP, Seen


@dataclass
class Wire:
    """What the packets of a case tell.

    Attributes:
        problems: the rules that the device broke, in words.
        repeated: the numbers that the broker repeated against the rules.
        released: the numbers whose PUBREC came: at level 3, nobody can know whether a broker that lost them did so after that.
        forgot: the broker said that it did not know a session that it had known.
        uncertain: the numbers that a device may call in doubt, whatever the broker says later: their PUBREC had come, and then a
            CONNECT stayed without an answer, which may have said that the session was lost.
        unproved: those of them that it must not call delivered, as their PUBREL shows that the PUBREC was read. (At level 5 a
            PUBCOMP proves the delivery all the same.)
    """

    problems: list[str] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    forgot: bool = False
    uncertain: set[int] = field(default_factory=set)
    unproved: set[int] = field(default_factory=set)


@dataclass
class _Ledger:
    """What the device has sent and seen of a session."""

    case: Case
    wire: Wire = field(default_factory=Wire)
    ids: dict[int, int] = field(default_factory=dict)  # number -> packet id
    released: set[int] = field(default_factory=set)  # ids whose PUBREL was sent and whose PUBCOMP has not come
    received: set[int] = field(default_factory=set)  # ids whose PUBREC came
    connection: int = 0
    clean: bool = False  # what the last CONNECT asked for
    unanswered: bool = False  # the last CONNECT had no CONNACK that passed
    ended: set[int] = field(default_factory=set)  # ids whose PUBCOMP passed
    accepted: bool = False  # a CONNACK came
    sent: list[int] = field(default_factory=list)  # numbers, on this connection
    finished: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)  # ids in flight on this connection
    came: Counter = field(default_factory=Counter)  # (kind, id) of what came down on this connection
    answered: Counter = field(default_factory=Counter)
    past_pubrel: set[int] = field(default_factory=set)  # the broker's ids, until a PUBCOMP passed
    joined: bool = False  # a CONNACK passed
    unknown: set[int] = field(default_factory=set)  # ids that the device has not used, and the broker may hold

    def wrong(self, text: str) -> None:
        self.wire.problems.append(f"wire, connection {self.connection}: {text}")

    def begin(self, connection: int) -> None:
        if self.unanswered:
            self.wire.uncertain |= self.numbers(self.received - self.ended)
            self.wire.unproved |= self.numbers(self.released) if self.case.level < 5 else set()
        self.connection = connection
        self.sent, self.open, self.came, self.answered = [], set(), Counter(), Counter()

    def numbers(self, ids: set[int]) -> set[int]:
        return {number for number, packet_id in self.ids.items() if packet_id in ids}

    def up(self, packet: p.Packet, passed: bool) -> None:
        if packet.kind == p.CONNECT:
            self.clean = packet.clean
            self.unanswered = True
        elif packet.kind == p.PUBLISH and packet.qos:
            self.published(packet)
        elif packet.kind == p.PUBREL:
            if packet.packet_id in self.unknown:
                return
            if packet.packet_id not in self.received:
                self.wrong(f"PUBREL {packet.packet_id} without a PUBREC")
            self.released.add(packet.packet_id)
            if packet.packet_id not in self.finished:
                self.open.add(packet.packet_id)
        elif packet.kind in (p.PUBACK, p.PUBREC, p.PUBCOMP):
            cause = (p.PUBREL if packet.kind == p.PUBCOMP else p.PUBLISH, packet.packet_id)
            self.answered[cause] += 1
            if packet.kind == p.PUBCOMP and passed:
                self.past_pubrel.discard(packet.packet_id)
            if self.answered[cause] > self.came[cause]:
                self.wrong(f"{packet} answers nothing that came")
        if len(self.open) > self.case.window:
            self.wrong(f"{len(self.open)} messages in flight")

    def published(self, packet: p.Packet) -> None:
        number, packet_id = int(packet.payload.split(b";")[0]), packet.packet_id
        self.unknown.discard(packet_id)
        known = self.ids.get(number)
        if known is None:
            self.ended.discard(packet_id)  # that PUBCOMP answered a PUBREL that cleared the id
        if known is not None and not packet.dup:
            self.wrong(f"message {number} again without DUP")
        if packet.dup and self.connection == 1:
            self.wrong(f"message {number} with DUP on the first connection")
        if known not in (None, packet_id):
            self.wrong(f"message {number} had id {known}, has {packet_id}")
        if number in self.sent and self.case.level > 3:
            self.wrong(f"message {number} twice")
        if self.sent and number < self.sent[-1] and self.case.level > 3:
            self.wrong(f"message {number} after {self.sent[-1]}")
        if packet_id in self.released:
            self.wrong(f"PUBLISH of message {number} after its PUBREL")
        self.ids[number] = packet_id
        self.sent.append(number)
        self.finished.discard(packet_id)
        self.open.add(packet_id)

    def down(self, packet: p.Packet, passed: bool) -> None:
        self.came[packet.kind, packet.packet_id] += 1
        if packet.kind == p.CONNACK:
            self.unanswered = not passed
            if self.case.level > 3 and not packet.session_present:
                self.wire.forgot |= self.accepted and not self.clean
                self.ids, self.released, self.received = {}, set(), set()  # all is published anew
                self.unknown = set()
            self.accepted = True
            if passed and not self.joined:
                self.joined = True
                if self.case.store == "ram" and not self.clean and (packet.session_present or self.case.level == 3):
                    self.unknown = set(range(1, 65536))
        elif packet.kind == p.PUBREL:
            self.past_pubrel.add(packet.packet_id)
        elif packet.kind == p.PUBLISH and packet.dup and packet.packet_id in self.past_pubrel:
            number = packet.payload.split(b";")[0]
            self.wire.repeated.add(int(number) if number.isdigit() else 0)
        elif packet.kind == p.PUBREC:
            self.received.add(packet.packet_id)
            self.wire.released |= {number for number, packet_id in self.ids.items() if packet_id == packet.packet_id}
        elif packet.kind in (p.PUBACK, p.PUBCOMP):
            if passed:
                self.ended.add(packet.packet_id)
            self.finished.add(packet.packet_id)
            self.open.discard(packet.packet_id)
            self.released.discard(packet.packet_id)


def audit(case: Case, trace: list[Seen]) -> Wire:
    """Return what the packets tell."""
    ledger = _Ledger(case)
    ups, downs = p.Reader(case.level), p.Reader(case.level)
    for seen in trace:
        if seen.connection != ledger.connection:
            ledger.begin(seen.connection)
            ups, downs = p.Reader(case.level), p.Reader(case.level)
        try:
            for packet in (ups if seen.direction == UP else downs).feed(seen.content):
                if seen.direction == UP:
                    ledger.up(packet, seen.whole)
                else:
                    ledger.down(packet, seen.whole)
        except p.Wrong as wrong:
            ledger.wrong(str(wrong))
            break
    return ledger.wire
