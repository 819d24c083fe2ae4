"""Judges a case: finds what was wrong, and whether it was the client's or the broker's fault.

A proxy between client and broker keeps every packet. So if a message is missing or came twice, the packets show whose fault it
is: the broker's if it never sent the message, the client's if the broker sent it and the client acknowledged it. A TLS connection
can't be read: there every deviation counts as the client's.

It parses with the tests' own codec, and knows no sockets.
"""

import binascii
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.proof import packets as p
from tools.proof.device import body
from tools.proof.faults import cases
from tools.proof.proxy import DOWN, UP, Seen, decoded, packet_lines

MOST_NAMED = 8
OURS, THEIRS = "the client", "the broker"


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
        uncleared: payloads that were still retained after the topic was cleared.
        refusal: class and code of the error after a wrong password.
        trace: the packets, None with TLS.
        limits: limits that the client reported.
    """

    prefix: str = ""
    strays: list[str] = field(default_factory=list)
    sent_in: dict[int, Message] = field(default_factory=dict)
    sent_out: dict[int, Message] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    arrived: list[bytes] = field(default_factory=list)
    oversize: list[int] = field(default_factory=list)
    left: int = 0
    uncleared: list[bytes] = field(default_factory=list)
    refusal: tuple[str, int] | None = None
    trace: list[Seen] | None = None
    limits: list[str] = field(default_factory=list)
    theirs: list[str] = field(default_factory=list)

    def note(self, kind: str, words: list[Any]) -> None:
        """Note what the board reported."""
        if kind == "got":
            topic, head, _, *rest = words
            if topic.startswith(self.prefix):
                self.got.append(Got(int(head) if head.isdigit() else 0, *rest))
            else:
                self.strays.append(topic)
        elif kind == "oversize":
            self.oversize.append(words[0])
        elif kind == "refused":
            self.problems.append(f"on_refused({words[0]}, {words[1]:#04x})")
        else:
            super().note(kind, words)

    def blame(self, whose: str, text: str) -> None:
        """Note a fault once."""
        found = self.problems if whose == OURS else self.theirs
        if text not in found:
            found.append(text)

    def details(self) -> list[str]:
        """Return the details, in lines."""
        ended = [f"ended: {text}" for text in self.texts]
        return [*packet_lines(self.trace or [], self.case.level), *ended, f"the broker: {self.theirs or 'nothing'}"]


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
    waits_in: dict[int, int] = field(default_factory=dict)  # packet id -> the number whose answer the broker awaits
    unrepeated: set[int] = field(default_factory=set)  # it had no answer on a connection; no later one had it
    unreleased: set[int] = field(default_factory=set)  # the client sent PUBREC, and no PUBREL followed
    passed_out: Counter = field(default_factory=Counter)
    flows_out: Counter = field(default_factory=Counter)
    waits_out: dict[int, str] = field(default_factory=dict)  # number -> the answer that it waits for, or ""
    finished_out: set[int] = field(default_factory=set)  # the broker acknowledged it finally
    in_doubt: set[int] = field(default_factory=set)  # past PUBREC when the session was lost: maybe passed on
    granted: dict[str, int] = field(default_factory=dict)
    connack: list[int] = field(default_factory=list)
    strays: int = 0  # messages that came on topics that were not asked for


def read_wire(verdict: Verdict) -> _Wire:
    """Read the trace of a case; note the faults that the packets alone show."""
    wire, level = _Wire(known=True), verdict.case.level
    ids_out: dict[int, int] = {}  # packet id -> number, of the board's messages
    open_in: dict[int, int] = {}  # the broker's QoS 2 flows: packet id -> number, until PUBREL
    asked: set[int] = set()  # numbers for which the broker awaits PUBACK or PUBREC on this connection
    requests: dict[int, list[tuple[str, int]]] = {}
    clean = known = False
    for seen, packets, wrong in decoded(verdict.trace or [], level):
        if wrong:
            side = OURS if seen.direction == UP else THEIRS
            verdict.blame(side, f"{side} sent what is malformed: {wrong}")
        for packet in packets:
            if packet.kind == p.PUBLISH:
                number = number_of(packet.payload)
                if seen.direction == UP:
                    wire.passed_out[number] += 1
                    wire.flows_out[number] += not (packet.dup and ids_out.get(packet.packet_id) == number)
                    if packet.qos:
                        ids_out[packet.packet_id] = number
                        wire.waits_out[number] = "PUBREC" if packet.qos == 2 else "PUBACK"
                elif not packet.topic.startswith(verdict.prefix):
                    wire.strays += 1
                else:
                    wire.passed_in[number] += 1
                    wire.retain_in.setdefault(number, packet.retain)
                    wire.flows_in[number] += packet.qos != 2 or open_in.get(packet.packet_id) != number
                    if packet.qos == 2:
                        open_in[packet.packet_id] = number
                    elif number not in wire.order_in:
                        wire.order_in.append(number)
                    wire.unrepeated.discard(number)
                    if packet.qos:
                        wire.waits_in[packet.packet_id] = number
                        asked.add(number)
                    message = verdict.sent_in.get(number)
                    if message and packet.qos > message.qos:
                        verdict.blame(THEIRS, "sends messages at a higher QoS than they were published with")
                    if message and packet.payload == body(number, message.size):
                        wire.right_in.add(number)
            elif packet.kind in (p.PUBACK, p.PUBREC, p.PUBCOMP) and seen.direction == DOWN:
                number = ids_out.get(packet.packet_id, 0)
                if packet.kind == p.PUBACK and wire.waits_out.get(number) == "PUBREC":
                    verdict.blame(THEIRS, "answers a QoS 2 PUBLISH by PUBACK")
                if packet.kind == p.PUBREC and packet.code < 0x80:
                    wire.waits_out[number] = "PUBCOMP"
                else:
                    wire.waits_out[number] = ""
                    wire.finished_out.add(number)
            elif packet.kind in (p.PUBACK, p.PUBREC):
                number = wire.waits_in.pop(packet.packet_id, 0)
                asked.discard(number)
                if packet.kind == p.PUBREC:
                    wire.unreleased.add(number)
            elif packet.kind == p.PUBREL and seen.direction == DOWN:
                # From now on a PUBLISH with this id is another message, even if the PUBCOMP is lost: see MQTT-4.3.3-1.
                number = wire.waits_in[packet.packet_id] = open_in.pop(packet.packet_id, 0)
                wire.unreleased.discard(number)
                if number and number not in wire.order_in:
                    wire.order_in.append(number)
            elif packet.kind == p.PUBCOMP:
                wire.waits_in.pop(packet.packet_id, None)
            elif packet.kind == p.SUBSCRIBE:
                requests[packet.packet_id] = packet.filters
            elif packet.kind == p.SUBACK:
                for (name, options), code in zip(requests.get(packet.packet_id, []), packet.codes, strict=False):
                    wire.granted[name] = code
                    if code != options & 3:
                        what = "nothing" if code >= 0x80 else f"QoS {code}"
                        verdict.blame(THEIRS, f"grants {what} where QoS {options & 3} is asked for")
            elif packet.kind == p.CONNECT:
                wire.waits_in.clear()
                wire.unrepeated |= asked
                asked.clear()
                clean = packet.clean
            elif packet.kind == p.CONNACK:
                wire.connack.append(packet.code)
                if not packet.code and level != 3:
                    if known and not packet.session_present and not clean:
                        killed = verdict.case.scenario.kills
                        verdict.blame(THEIRS, "forgets the session" + (" when it is killed" if killed else ""))
                        wire.in_doubt |= {number for number, answer in wire.waits_out.items() if answer == "PUBCOMP"}
                    known = True
                if not packet.session_present:
                    open_in.clear()
    return wire


def judge(seen: Verdict) -> Verdict:
    """Find the faults, of the client and of the broker; return the verdict with them."""
    wire = _Wire() if seen.trace is None else read_wire(seen)
    if seen.refusal is not None:
        _judge_refusal(seen, wire, *seen.refusal)
        return seen
    if wire.known and not seen.case.scenario.kills and any("closed by the peer" in text for text in seen.texts):
        seen.blame(THEIRS, "ends the connection, for no reason that the wire shows")
    if wire.strays if wire.known else seen.strays:
        seen.blame(THEIRS, "sends messages of topics that were not asked for")
    elif seen.strays:
        seen.blame(OURS, f"handed over messages of other topics than came: {seen.strays}")
    for way, found in (("in", _faults_in(seen, wire)), ("out", _faults_out(seen, wire))):
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for whose, text, number in found:
            groups[whose, text].append(number)
        for (whose, text), numbers in groups.items():
            few = ", ".join(map(str, numbers[:MOST_NAMED])) + (", ..." if len(numbers) > MOST_NAMED else "")
            seen.blame(whose, f"{way}: {text}: {len(numbers)} messages ({few})")
    if seen.uncleared:
        seen.blame(THEIRS, "an empty retained message does not clear what is retained")
    return seen


def _judge_refusal(seen: Verdict, wire: _Wire, name: str, code: int) -> None:
    said = [one for one in wire.connack if one]
    if wire.known and not said:
        seen.blame(THEIRS, "closes the connection instead of saying why" if not wire.connack else "takes any password")
        if name != "ConnectionLost":
            seen.blame(OURS, f"a connection closed without CONNACK ends in {name}")
        return
    if name != "ConnectRefused":
        seen.blame(OURS, f"a refusal ends in {name or 'a connection'}, not in ConnectRefused")
    elif said and code and code != said[0]:
        seen.blame(OURS, f"the broker's code is {said[0]:#04x}, the error's {code:#04x}")
    if said and said[0] not in ((0x86, 0x87) if seen.case.level == 5 else (4, 5)):
        seen.blame(THEIRS, f"refuses a wrong password with code {said[0]:#04x}")


def _faults_in(seen: Verdict, wire: _Wire) -> Iterator[tuple[str, str, int]]:
    """Yield the faults in the messages to the board: whose, what, the message's number."""
    taken = Counter(one.number for one in seen.got)
    for number, message in seen.sent_in.items():
        if not taken[number] and message.size in seen.oversize:
            seen.limits = ["skipped and reported"]
        elif not taken[number]:
            if number in wire.unreleased:
                yield THEIRS, "no PUBREL follows PUBREC", number
            elif number in wire.unrepeated:
                yield THEIRS, "not sent again, though it had no answer", number
            elif not wire.known or wire.passed_in[number]:
                yield OURS, "not handed over", number
            elif wire.waits_in:
                yield OURS, "not sent by the broker, which waits for answers to earlier ones", number
            else:
                what = " that it has acknowledged to the publisher" if message.acknowledged else ""
                yield THEIRS, "never sends a message" + what, number
        elif taken[number] > 1 and message.qos == 2:
            if wire.flows_in[number] < taken[number]:
                yield OURS, "handed over twice at QoS 2", number
            elif all(code >= 2 for code in wire.granted.values()):
                yield THEIRS, "sends at QoS 2 as a new message once more", number
    for one in seen.got:
        sent = seen.sent_in.get(one.number)
        if sent is None:
            yield THEIRS if wire.passed_in[one.number] else OURS, "sent by nobody", one.number
        elif (one.length, one.crc) != (sent.size, binascii.crc32(body(one.number, sent.size))):
            yield OURS if not wire.known or one.number in wire.right_in else THEIRS, "other content", one.number
        wanted = one.number in seen.case.scenario.retained
        if wire.known and one.retain != wanted and taken[one.number] == 1:
            whose = OURS if wire.retain_in.get(one.number) == wanted else THEIRS
            yield whose, "arrives with RETAIN" if one.retain else "arrives without RETAIN", one.number
    firsts = list(dict.fromkeys(one.number for one in seen.got))
    for qos in () if seen.case.scenario.kills else (1, 2):  # a killed broker begins again with its database
        mine = [number for number in firsts if number in seen.sent_in and seen.sent_in[number].qos == qos]
        if mine != sorted(mine):
            if mine == [number for number in wire.order_in if number in mine]:
                seen.blame(THEIRS, f"QoS {qos} arrives out of order")
            else:
                seen.blame(OURS, f"QoS {qos} handed over out of order")


def _faults_out(seen: Verdict, wire: _Wire) -> Iterator[tuple[str, str, int]]:
    """Yield the faults in the messages from the board."""
    arrived = Counter(number_of(payload) for payload in seen.arrived)
    for number, message in seen.sent_out.items():
        if message.qos and seen.left and number not in seen.delivered:
            if wire.waits_out.get(number) and number not in wire.finished_out:
                yield THEIRS, "leaves without an answer", number
            elif not wire.known or wire.passed_out[number]:
                yield OURS, "acknowledged, but not reported as delivered", number
            else:
                yield OURS, "never sent", number
        if not message.size:
            continue
        if not arrived[number]:
            if number in wire.finished_out:
                yield THEIRS, "acknowledged and never passed on", number
            elif wire.passed_out[number]:
                yield THEIRS, "not passed on", number
            else:
                yield OURS, "did not arrive", number
        elif arrived[number] > 1 and message.qos == 2:
            once = wire.flows_out[number] == 1 or number in wire.in_doubt
            yield (THEIRS, "passed on twice at QoS 2", number) if once else (OURS, "sent twice at QoS 2", number)
    for payload in seen.arrived:
        number = number_of(payload)
        if number in seen.sent_out and payload != body(number, seen.sent_out[number].size):
            yield OURS, "arrived with other content", number
