"""Checks the device's packets, as a proxy saw them, against the rules of the protocol; with the tests' own codec.

Every packet has to be well-formed. Besides, these rules hold over all connections of a session:

    a message keeps its packet id; it has DUP when it is sent again on a later connection, and never on the first
    on one connection no message is sent twice (levels 4 and 5), and messages are sent in the order of their numbers
    no PUBLISH of a message follows its PUBREL; PUBREL only follows a received PUBREC. One exception: a device without a journal
        that resumes a session of the broker sends PUBREL to clear an id before its first message with that id
    no more messages are unacknowledged than the window allows
    PUBACK, PUBREC and PUBCOMP answer received packets, each of them once

A reset discards what the device has not read yet, and a device on a slow machine may give up just before it reads its CONNACK.
So in a case with either, a CONNACK counts as read only if the device sent something after it. If it reported a lost session, the
device may continue the flows or begin them again.

The broker's packets are read, too. After a connection that ended before its CONNACK, mosquitto 2.0 sends a QoS 2 message again
although it has already sent its PUBREL. A receiver can't tell such a repetition from a new message, so it is counted as
the broker's. It is also counted so if a PUBCOMP was passed on: the broker may have closed that connection, because of the next
one, before it read the PUBCOMP.
"""

from collections import Counter
from dataclasses import dataclass, field

from tools.proof import packets as p
from tools.proof.faults.cases import Case, Wire
from tools.proof.proxy import UP, Seen, decoded


@dataclass
class _Ledger:
    """The packets of a session so far."""

    case: Case
    gave_up: bool
    wire: Wire = field(default_factory=Wire)
    ids: dict[int, int] = field(default_factory=dict)  # number -> packet id
    released: set[int] = field(default_factory=set)  # ids with a PUBREL, without a PUBCOMP yet
    received: set[int] = field(default_factory=set)  # ids with a PUBREC
    connection: int = 0
    clean: bool = False  # the flag of the last CONNECT
    unanswered: bool = False  # no CONNACK was passed on for the last CONNECT
    ended: set[int] = field(default_factory=set)  # ids whose PUBCOMP was passed on
    accepted: bool = False  # a CONNACK was sent
    sent: list[int] = field(default_factory=list)  # numbers, on this connection
    finished: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)  # ids in flight on this connection
    came: Counter = field(default_factory=Counter)  # (kind, id) of the broker's packets on this connection
    answered: Counter = field(default_factory=Counter)
    carried: dict[int, bytes] = field(default_factory=dict)  # the broker's ids -> the number of the last message
    past_pubrel: set[int] = field(default_factory=set)  # the broker's ids after PUBREL, until their next message
    joined: bool = False  # the device has read a CONNACK
    unread: bool = False  # the device may not have read the CONNACK that was passed on: it has sent nothing after it
    lost: bool = False  # a CONNACK was passed on that reports a lost session, and the device has sent nothing after it
    lost_unread: set[int] = field(default_factory=set)  # numbers: the device may not know that their session is lost
    unknown: set[int] = field(default_factory=set)  # ids that the device has not used yet, and that the broker may know

    def wrong(self, text: str) -> None:
        self.wire.problems.append(f"wire, connection {self.connection}: {text}")

    def begin(self, connection: int) -> None:
        if self.unanswered or self.unread:
            self.wire.uncertain |= self.numbers(self.received - self.ended)
        if self.unanswered:
            self.wire.unproved |= self.numbers(self.released)
        if self.lost:
            self.lost = False
            if self.unread:
                self.lost_unread = set(self.ids)
            else:
                self.restart_flows()
        self.unread = False
        self.connection = connection
        self.sent, self.open, self.came, self.answered = [], set(), Counter(), Counter()

    def restart_flows(self) -> None:
        """The device knows that the session is lost: it publishes all messages again."""
        self.ids, self.released, self.received = {}, set(), set()
        self.unknown, self.lost_unread = set(), set()

    def numbers(self, ids: set[int]) -> set[int]:
        return {number for number, packet_id in self.ids.items() if packet_id in ids}

    def up(self, packet: p.Packet) -> None:
        if packet.kind == p.CONNECT:
            self.clean = packet.clean
            self.unanswered = True
            return
        self.joined |= self.unread
        self.unread = False
        if self.lost:
            self.lost = False
            self.restart_flows()
        if packet.kind == p.PUBLISH and packet.qos:
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
            if self.answered[cause] > self.came[cause]:
                self.wrong(f"{packet} answers nothing that came")
        if len(self.open) > self.case.window:
            self.wrong(f"{len(self.open)} messages in flight")

    def published(self, packet: p.Packet) -> None:
        number, packet_id = int(packet.payload.split(b";")[0]), packet.packet_id
        self.unknown.discard(packet_id)
        if number in self.lost_unread:  # the device knows of the loss, or PUBREC did not arrive: the flow begins again
            self.lost_unread.discard(number)
            old = self.ids.pop(number)
            self.released.discard(old)
            self.received.discard(old)
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
                self.lost = passed
            self.accepted = True
            self.unread = passed and (self.gave_up or any(cut.manner in ("rst", "action") for cut in self.case.cuts))
            if passed and not self.joined:
                self.joined = not self.unread
                if self.case.store == "ram" and not self.clean and (packet.session_present or self.case.level == 3):
                    self.unknown = set(range(1, 65536))
        elif packet.kind == p.PUBREL:
            self.past_pubrel.add(packet.packet_id)
        elif packet.kind == p.PUBLISH:
            number = packet.payload.split(b";")[0]
            if not packet.dup or number != self.carried.get(packet.packet_id):
                self.past_pubrel.discard(packet.packet_id)
            elif packet.packet_id in self.past_pubrel:
                self.wire.repeated.add(int(number) if number.isdigit() else 0)
            self.carried[packet.packet_id] = number
        elif packet.kind == p.PUBREC:
            self.received.add(packet.packet_id)
            self.wire.released |= self.numbers({packet.packet_id})
        elif packet.kind in (p.PUBACK, p.PUBCOMP):
            if passed:
                self.ended.add(packet.packet_id)
            self.finished.add(packet.packet_id)
            self.open.discard(packet.packet_id)
            self.released.discard(packet.packet_id)


def audit(case: Case, trace: list[Seen], gave_up: bool = False) -> Wire:
    """Return the result of the audit; `gave_up`: the device reported that it got no CONNACK in time."""
    ledger = _Ledger(case, gave_up)
    for seen, packets, wrong in decoded(trace, case.level):
        if seen.connection != ledger.connection:
            ledger.begin(seen.connection)
        for packet in packets:
            if seen.direction == UP:
                ledger.up(packet)
            else:
                ledger.down(packet, seen.whole)
        if wrong:
            ledger.wrong(wrong)
            break
    return ledger.wire
