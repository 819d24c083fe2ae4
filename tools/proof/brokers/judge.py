"""Judges a case: finds what was wrong, and whether it was the client's or the broker's fault.

A proxy between client and broker keeps every packet. So if a message is missing or came twice, the packets show whose fault it
is: the broker's if it never sent the message, the client's if the broker sent it and the client acknowledged it. A TLS connection
can't be read: there every deviation counts as the client's.

It parses with the tests' own codec, and knows no sockets.
"""

import binascii
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.proof import packets as p
from tools.proof.device import body
from tools.proof.faults import cases
from tools.proof.proxy import DOWN, UP, Seen, decoded, packet_lines

MOST_NAMED = 8


@dataclass
class Message:
    """A published message."""

    number: int
    qos: int
    size: int
    acknowledged: bool = False  # by the broker, to the peer that sent it


@dataclass
class Got:
    """A message that the board's program received."""

    number: int
    qos: int
    retain: bool
    length: int
    crc: int


@dataclass(kw_only=True)
class Verdict(cases.Verdict):
    """The observations of a case; the faults of the client (`problems`) and of the broker (`theirs`).

    Attributes:
        sent_in, sent_out: what the peer published to the board, and the board to the peer.
        prefix: the beginning of every topic of the case.
        got: the messages that the board's program received, in order; strays: topics of received messages of other cases.
        arrived: the payloads that the peer received, in order.
        oversize: lengths of the messages that the board's client skipped and reported.
        left: how many messages it had not delivered at the end.
        retained_in: numbers that must arrive at the board with RETAIN set; all others without.
        uncleared: payloads that were still retained after the topic was cleared.
        failures: descriptions of failed steps.
        refusal: class and code of the error after a wrong password.
        killed: whether the broker was killed.
        trace: the packets, None with TLS.
        told: limits that the client reported.
    """

    level: int
    prefix: str = ""
    strays: list[str] = field(default_factory=list)
    sent_in: dict[int, Message] = field(default_factory=dict)
    sent_out: dict[int, Message] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    arrived: list[bytes] = field(default_factory=list)
    oversize: list[int] = field(default_factory=list)
    left: int = 0
    retained_in: Sequence[int] = ()
    uncleared: list[bytes] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refusal: tuple[str, int] | None = None
    killed: bool = False
    trace: list[Seen] | None = None
    told: list[str] = field(default_factory=list)
    theirs: list[str] = field(default_factory=list)

    def note(self, kind: str, words: list[Any]) -> None:
        """Note what the board reported."""
        if kind == "got":
            topic, head, *rest = words
            if topic.startswith(self.prefix):
                self.got.append(Got(int(head) if head.isdigit() else 0, *rest))
            else:
                self.strays.append(topic)
        elif kind == "oversize":
            self.oversize.append(words[0])
        elif kind == "refused":
            self.failures.append(f"on_refused({words[0]}, {words[1]:#04x})")
        else:
            super().note(kind, words)

    def details(self) -> list[str]:
        """Return the details, in lines."""
        ended = [f"ended: {text}" for text in self.texts]
        return [*packet_lines(self.trace or [], self.level), *ended, f"the broker: {self.theirs or 'nothing'}"]


def number_of(payload: bytes) -> int:
    """Return the number of a message, 0 if it has none."""
    head = payload[:12].split(b";")[0]
    return int(head) if head.isdigit() and b";" in payload[:12] else 0


@dataclass
class _Wire:
    """What the packets show; nothing with TLS, where they are not known."""

    known: bool = False
    passed_in: Counter = field(default_factory=Counter)  # number -> how often the broker sent it
    flows_in: Counter = field(default_factory=Counter)  # ... as a new message each time, as far as a receiver can know
    retain_in: dict[int, bool] = field(default_factory=dict)
    right_in: set[int] = field(default_factory=set)  # its content was right
    order_in: list[int] = field(default_factory=list)  # in which they may be handed over: by PUBLISH or PUBREL
    passed_out: Counter = field(default_factory=Counter)
    flows_out: Counter = field(default_factory=Counter)
    finished_out: set[int] = field(default_factory=set)  # the broker acknowledged it finally
    unanswered: set[int] = field(default_factory=set)  # the last PUBLISH or PUBREL of it had no answer
    unanswered_in: set[int] = field(default_factory=set)  # the client left it without PUBACK, PUBREC or PUBCOMP
    unrepeated: set[int] = field(default_factory=set)  # it had no answer on a connection; no later one had it
    unreleased: set[int] = field(default_factory=set)  # the client sent PUBREC, and no PUBREL followed
    raised: set[int] = field(default_factory=set)  # came at a higher QoS than it was published with
    puback_for_2: set[int] = field(default_factory=set)
    granted: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    connack: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    lost_session: bool = False
    in_doubt: set[int] = field(default_factory=set)  # past PUBREC when the session was lost: maybe passed on
    strays: int = 0  # messages that came on topics that were not asked for


def read_wire(trace: list[Seen], level: int, expected: dict[int, Message], prefix: str = "") -> _Wire:
    """Read a trace; `prefix` is the beginning of every topic of the case."""
    wire = _Wire(known=True)
    out_by_id: dict[int, int] = {}  # packet id -> number, of the board's messages
    out_phase: dict[int, str] = {}  # number -> what it waits for
    in_phase: dict[int, int] = {}  # packet id -> number of the message for which the broker awaits an answer
    in_open: dict[int, int] = {}  # the broker's QoS 2 flows: packet id -> number, until PUBREL
    asked: set[int] = set()  # numbers for which the broker awaits PUBACK or PUBREC on this connection
    requests: dict[int, list[tuple[str, int]]] = {}
    clean: dict[int, bool] = {}
    known = False
    for seen, packets, wrong in decoded(trace, level):
        if wrong:
            side = "the client" if seen.direction == UP else "the broker"
            wire.broken.append(f"{side} sent what is malformed: {wrong}")
        for packet in packets:
            if packet.kind == p.PUBLISH:
                number = number_of(packet.payload)
                if seen.direction == UP:
                    wire.passed_out[number] += 1
                    again = packet.dup and out_by_id.get(packet.packet_id) == number
                    if not again:
                        wire.flows_out[number] += 1
                    if packet.qos:
                        out_by_id[packet.packet_id] = number
                        out_phase[number] = "PUBREC" if packet.qos == 2 else "PUBACK"
                elif not packet.topic.startswith(prefix):
                    wire.strays += 1
                else:
                    wire.passed_in[number] += 1
                    wire.retain_in.setdefault(number, packet.retain)
                    if packet.qos < 2 and number not in wire.order_in:
                        wire.order_in.append(number)
                    if packet.qos != 2 or in_open.get(packet.packet_id) != number:
                        wire.flows_in[number] += 1
                    if packet.qos == 2:
                        in_open[packet.packet_id] = number
                    wire.unrepeated.discard(number)
                    if packet.qos:
                        in_phase[packet.packet_id] = number
                        asked.add(number)
                    message = expected.get(number)
                    if message and packet.qos > message.qos:
                        wire.raised.add(number)
                    if message and packet.payload == body(number, message.size):
                        wire.right_in.add(number)
            elif packet.kind in (p.PUBACK, p.PUBREC, p.PUBCOMP) and seen.direction == DOWN:
                number = out_by_id.get(packet.packet_id, 0)
                phase = out_phase.get(number, "")
                if packet.kind == p.PUBACK and phase == "PUBREC":
                    wire.puback_for_2.add(number)
                if packet.kind == p.PUBREC and packet.code < 0x80:
                    out_phase[number] = "PUBCOMP"
                else:
                    out_phase[number] = ""
                    wire.finished_out.add(number)
            elif packet.kind in (p.PUBACK, p.PUBREC):
                number = in_phase.pop(packet.packet_id, 0)
                asked.discard(number)
                if packet.kind == p.PUBREC:
                    wire.unreleased.add(number)
            elif packet.kind == p.PUBREL and seen.direction == DOWN:
                # From now on a PUBLISH with this id is another message, even if the PUBCOMP is lost: see MQTT-4.3.3-1.
                number = in_phase[packet.packet_id] = in_open.pop(packet.packet_id, 0)
                wire.unreleased.discard(number)
                if number and number not in wire.order_in:
                    wire.order_in.append(number)
            elif packet.kind == p.PUBCOMP:
                in_phase.pop(packet.packet_id, None)
            elif packet.kind == p.SUBSCRIBE:
                requests[packet.packet_id] = packet.filters
            elif packet.kind == p.SUBACK:
                for (name, options), code in zip(requests.get(packet.packet_id, []), packet.codes, strict=False):
                    wire.asked[name], wire.granted[name] = options & 3, code
            elif packet.kind == p.CONNECT:
                in_phase.clear()
                wire.unrepeated |= asked
                asked.clear()
                clean[seen.connection] = packet.clean
            elif packet.kind == p.CONNACK:
                wire.connack.append(packet.code)
                if not packet.code and level != 3:
                    if known and not packet.session_present and not clean.get(seen.connection):
                        wire.lost_session = True
                        wire.in_doubt.update(number for number, phase in out_phase.items() if phase == "PUBCOMP")
                    known = True
                if not packet.session_present:
                    in_open.clear()
    wire.unanswered_in = set(in_phase.values())
    wire.unanswered = {number for number, phase in out_phase.items() if phase}
    return wire


def judge(seen: Verdict) -> Verdict:
    """Find the faults, of the client and of the broker; return the verdict with them."""
    wire = _Wire() if seen.trace is None else read_wire(seen.trace, seen.level, seen.sent_in, seen.prefix)
    ours, theirs = seen.problems, seen.theirs
    for text in wire.broken:
        (ours if text.startswith("the client") else theirs).append(text)
    if wire.known:
        _judge_broker(seen, wire, theirs)
    if seen.refusal is not None:
        _judge_refusal(seen, wire)
        return seen
    if wire.strays if wire.known else seen.strays:
        theirs.append("sends messages of topics that were not asked for")
    elif seen.strays:
        ours.append(f"handed over messages of other topics than came: {seen.strays}")
    _judge_in(seen, wire)
    _judge_out(seen, wire)
    if seen.uncleared:
        theirs.append("an empty retained message does not clear what is retained")
    ours.extend(seen.failures)
    return seen


def _judge_broker(seen: Verdict, wire: _Wire, theirs: list[str]) -> None:
    for name, code in sorted(wire.granted.items()):
        if code != wire.asked[name]:
            theirs.append(
                f"grants {'nothing' if code >= 0x80 else f'QoS {code}'} where QoS {wire.asked[name]} is asked for"
            )
    if wire.raised:
        theirs.append("sends messages at a higher QoS than they were published with")
    if wire.puback_for_2:
        theirs.append("answers a QoS 2 PUBLISH by PUBACK")
    if not seen.killed and seen.refusal is None and any("closed by the peer" in text for text in seen.texts):
        theirs.append("ends the connection, for no reason that the wire shows")
    if wire.lost_session:
        theirs.append("forgets the session" + (" when it is killed" if seen.killed else ""))


def _judge_refusal(seen: Verdict, wire: _Wire) -> None:
    name, code = seen.refusal or ("", 0)
    said = [one for one in wire.connack if one]
    if wire.known and not said:
        seen.theirs.append("closes the connection instead of saying why" if not wire.connack else "takes any password")
        if name != "ConnectionLost":
            seen.problems.append(f"a connection closed without CONNACK ends in {name}")
        return
    if name != "ConnectRefused":
        seen.problems.append(f"a refusal ends in {name or 'a connection'}, not in ConnectRefused")
    elif said and code and code != said[0]:
        seen.problems.append(f"the broker's code is {said[0]:#04x}, the error's {code:#04x}")
    if said and said[0] not in ((0x86, 0x87) if seen.level == 5 else (4, 5)):
        seen.theirs.append(f"refuses a wrong password with code {said[0]:#04x}")


def _judge_in(seen: Verdict, wire: _Wire) -> None:
    """Judge the messages to the board."""
    taken = Counter(one.number for one in seen.got)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, message in seen.sent_in.items():
        if not taken[number] and message.size in seen.oversize:
            seen.told = ["skipped and reported"]
        elif not taken[number]:
            if number in wire.unreleased:
                groups["theirs", "no PUBREL follows PUBREC"].append(number)
            elif number in wire.unrepeated:
                groups["theirs", "not sent again, though it had no answer"].append(number)
            elif not wire.known or wire.passed_in[number]:
                groups["ours", "not handed over"].append(number)
            elif wire.unanswered_in:
                groups["ours", "not sent by the broker, which waits for answers to earlier ones"].append(number)
            else:
                what = " that it has acknowledged to the publisher" if message.acknowledged else ""
                groups["theirs", "never sends a message" + what].append(number)
        elif taken[number] > 1 and message.qos == 2:
            if wire.flows_in[number] < taken[number]:
                groups["ours", "handed over twice at QoS 2"].append(number)
            elif all(code >= 2 for code in wire.granted.values()):
                groups["theirs", "sends at QoS 2 as a new message once more"].append(number)
    for one in seen.got:
        sent = seen.sent_in.get(one.number)
        if sent is None:
            groups["theirs" if wire.passed_in[one.number] else "ours", "sent by nobody"].append(one.number)
        elif (one.length, one.crc) != (sent.size, binascii.crc32(body(one.number, sent.size))):
            right = not wire.known or one.number in wire.right_in
            groups["ours" if right else "theirs", "other content"].append(one.number)
        wanted = one.number in seen.retained_in
        if wire.known and one.retain != wanted and taken[one.number] == 1:
            right = wire.retain_in.get(one.number) == wanted
            where = "with RETAIN" if one.retain else "without RETAIN"
            groups["ours" if right else "theirs", f"arrives {where}"].append(one.number)
    firsts = list(dict.fromkeys(one.number for one in seen.got))
    for qos in () if seen.killed else (1, 2):  # a killed broker begins again with its database
        mine = [number for number in firsts if number in seen.sent_in and seen.sent_in[number].qos == qos]
        if mine != sorted(mine):
            if mine == [number for number in wire.order_in if number in mine]:
                seen.theirs.append(f"QoS {qos} arrives out of order")
            else:
                seen.problems.append(f"QoS {qos} handed over out of order")
    _tell(groups, seen, "in")


def _judge_out(seen: Verdict, wire: _Wire) -> None:
    """Judge the messages from the board."""
    arrived = Counter(number_of(payload) for payload in seen.arrived)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, message in seen.sent_out.items():
        if message.qos and seen.left and number not in seen.delivered:
            if number in wire.unanswered and number not in wire.finished_out:
                groups["theirs", "leaves without an answer"].append(number)
            elif not wire.known or wire.passed_out[number]:
                groups["ours", "acknowledged, but not reported as delivered"].append(number)
            else:
                groups["ours", "never sent"].append(number)
        if not message.size:
            continue
        if not arrived[number]:
            if number in wire.finished_out:
                groups["theirs", "acknowledged and never passed on"].append(number)
            elif wire.passed_out[number]:
                groups["theirs", "not passed on"].append(number)
            else:
                groups["ours", "did not arrive"].append(number)
        elif arrived[number] > 1 and message.qos == 2:
            once = wire.flows_out[number] == 1 or number in wire.in_doubt
            what = ("theirs", "passed on twice at QoS 2") if once else ("ours", "sent twice at QoS 2")
            groups[what].append(number)
    for payload in seen.arrived:
        number = number_of(payload)
        if number in seen.sent_out and payload != body(number, seen.sent_out[number].size):
            groups["ours", "arrived with other content"].append(number)
    _tell(groups, seen, "out")


def _tell(groups: dict[tuple[str, str], list[int]], seen: Verdict, way: str) -> None:
    for (whose, text), numbers in groups.items():
        few = ", ".join(map(str, numbers[:MOST_NAMED])) + (", ..." if len(numbers) > MOST_NAMED else "")
        (seen.problems if whose == "ours" else seen.theirs).append(f"{way}: {text}: {len(numbers)} messages ({few})")
