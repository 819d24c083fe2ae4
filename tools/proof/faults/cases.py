"""Fault cases: their settings, their ids, and what must hold at their end.

An id contains all settings of a case, so that it replays the case alone:

    4-q2-out-mpy-ram-mosquitto-w2x4/up3.middle.rst+down2.after.fin

Level 4, QoS 2, messages going out from a device on MicroPython whose store is in RAM, to mosquitto, a window of 2, four
messages; the third packet up is cut in its middle with a reset, and then the connection ends after the second packet down.

The interpreters are `mpy` (MicroPython) and `cpy` (CPython), each followed by `aio` for the asyncio client; the stores `ram` and
`journal`; the flows `out`, `in` and `both` (messages out at QoS 1 and 2 in turn, and messages in).

Brokers:
    mosquitto   one for all cases
    kill        mosquitto with persistence: a cut of manner "action" kills it with SIGKILL and starts it again
    lost        the same, but its database is deleted; the device publishes messages in doubt once more
    lostdrop    the same; the device drops messages in doubt
    amqtt       another broker
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tools.proof.device import END
from tools.proof.proxy import DOWN, PLACES, UP, Cut, Seen, packet_lines

FLOWS = ("out", "in")
LONG = 2500


@dataclass(frozen=True)
class Case:
    """One fault case."""

    level: int
    qos: int
    flow: str
    interpreter: str = "mpy"
    store: str = "ram"
    broker: str = "mosquitto"
    window: int = 2
    count: int = 4
    long: bool = False
    cuts: tuple[Cut, ...] = ()

    @property
    def size(self) -> int:
        """The length of a message."""
        return LONG if self.long else 40

    def __str__(self) -> str:
        setting = f"{self.level}-q{self.qos}-{self.flow}-{self.interpreter}-{self.store}-{self.broker}"
        setting += f"-w{self.window}x{self.count}{'l' if self.long else ''}"
        return "/".join(filter(None, (setting, "+".join(map(str, self.cuts)))))

    async def run(self, worker: Any) -> Outcome:
        """Run it; return the verdict."""
        return await worker.run(self)


@dataclass(kw_only=True)
class Verdict:
    """What a device reported in a case, and the problems: of all kinds of cases.

    Attributes:
        problems: descriptions of the violations.
        handed: the messages that the application received, in order: the number, or the text of a message without one.
        delivered: the numbers that the device reported as delivered.
        doubtful: the numbers that the device reported as in doubt.
        texts: why connections ended: the error's class with its reason code, if it has one; and its text.
        failure: a description, if the device's program failed or hung.
        heap: bytes on MicroPython's heap after the case; 0: not measured.
    """

    case: Any = None
    problems: list[str] = field(default_factory=list)
    handed: list[Any] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    failure: str = ""
    heap: int = 0

    @property
    def gave_up(self) -> bool:
        """Whether the device reported that it got no CONNACK in time; on a slow machine one may have come nevertheless."""
        return any("no CONNACK" in text for text in self.texts)

    def counts(self) -> dict[str, int]:
        """Return the counts of its kind of case."""
        return {}

    def details(self) -> list[str]:
        """Return the details, in lines."""
        return [
            f"handed over {self.handed}; delivered {self.delivered}, in doubt {self.doubtful}",
            *(f"the device: {error}" for error in self.texts),
        ]

    def note(self, kind: str, words: list[Any]) -> None:
        """Note what the device reported."""
        if kind == "got" and words[1] != END:
            self.handed.append(int(words[1]) if words[1].isdigit() else words[1])
        elif kind in ("delivered", "doubt"):
            (self.delivered if kind == "delivered" else self.doubtful).append(words[0])
        elif kind in ("ended", "refused"):
            self.texts.append(" ".join(map(str, words if kind == "ended" else ("Refused", *words))))


@dataclass
class Wire:
    """What the packets show: see `audit`.

    Attributes:
        problems: descriptions of the rules that the device broke.
        repeated: the numbers of the messages that the broker repeated against the rules.
        released: the numbers whose PUBREC was received. At level 3 nobody can know whether the broker lost such a message later.
        forgot: the broker did not know a session any more that it had known before.
        uncertain: the numbers that a device may report as in doubt: their PUBREC was received, and then a CONNECT got no answer,
            and that answer may have said that the session was lost.
        unproved: the uncertain ones that must not be reported as delivered, because their PUBREL shows that the device has read
            the PUBREC.
    """

    problems: list[str] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    forgot: bool = False
    uncertain: set[int] = field(default_factory=set)
    unproved: set[int] = field(default_factory=set)


@dataclass
class Outcome(Verdict):
    """The observations of a case.

    Attributes:
        received: the numbers that the peer received, in order.
        trace: the packets that the proxy received.
        made: how many cuts were made.
    """

    received: list[int] = field(default_factory=list)
    connections: int = 0
    trace: list[Seen] = field(default_factory=list)
    made: int = 0
    lost: int = 0
    duplicates: int = 0
    wire: Wire = field(default_factory=Wire)

    def counts(self) -> dict[str, int]:
        """Return the counts."""
        return {
            "cuts": self.made,
            "lost": self.lost,
            "duplicates_qos2": self.duplicates,
            "not_reached": int(self.made < len(self.case.cuts)),
            "repeated_by_the_broker": int(bool(self.wire.repeated)),
        }

    def details(self) -> list[str]:
        """Return the details, in lines."""
        return [f"received {self.received}", *packet_lines(self.trace, self.case.level), *super().details()]


def places_of(trace: list[Seen], manners: tuple[str, ...], cuts: int = 0) -> Iterator[Cut]:
    """Yield every possible cut of the packets after so many cuts: each packet, each place in it, each manner."""
    for direction in (UP, DOWN):
        lengths = [len(seen.content) for seen in trace if seen.direction == direction and seen.cuts == cuts]
        for number, length in enumerate(lengths, 1):
            offsets = set()
            for place in PLACES:
                passes = Cut(direction, number, place, "rst").passes(length)
                if passes in offsets:
                    continue
                offsets.add(passes)
                for manner in manners:
                    yield Cut(direction, number, place, manner)


def judge(outcome: Outcome) -> list[str]:
    """Return descriptions of the violations; set the outcome's counts of lost and repeated messages."""
    case = outcome.case
    if outcome.failure:
        return [outcome.failure, *outcome.wire.problems]
    problems: list[str] = []
    if case.flow != "in":
        problems += _judge_flow(case, outcome, "the far end", outcome.received, out=True)
        reported = outcome.delivered + outcome.doubtful
        if case.qos and case.broker in ("mosquitto", "amqtt"):
            if sorted(reported) != list(range(1, case.count + 1)):
                problems.append(f"reported as delivered {outcome.delivered}, as in doubt {outcome.doubtful}")
            if sure := sorted(set(outcome.doubtful) - outcome.wire.uncertain):
                problems.append(f"in doubt without a reason: {sure}")
            if unproved := sorted(outcome.wire.unproved.intersection(outcome.delivered)):
                problems.append(f"reported as delivered, but in doubt: {unproved}")
    if case.flow != "out":
        problems += _judge_flow(case, outcome, "the application", outcome.handed, out=False)
    return problems + outcome.wire.problems


def compared(where: str, got: list[int], last: int, qos: Callable[[int], int]) -> tuple[set[int], set[int], list[str]]:
    """Return the numbers from 1 to `last` that are missing, those that came again, and what else is wrong, in words."""
    wanted = set(range(1, last + 1))
    problems = []
    if strange := sorted(set(got) - wanted, key=str):
        problems.append(f"{where} has what was never sent: {strange}")
    for quality in range(3):  # no order between messages of different QoS: each has its own number of round trips
        firsts = list(dict.fromkeys(number for number in got if qos(number) == quality))
        if firsts != sorted(firsts):
            problems.append(f"{where} has out of order: {got}")
    return wanted - set(got), {number for number in got if got.count(number) > 1}, problems


def _judge_flow(case: Case, outcome: Outcome, where: str, got: list[int], out: bool) -> list[str]:
    def qos(number: int) -> int:
        return 2 - number % 2 if case.flow == "both" and out else case.qos

    lost, twice, problems = compared(where, got, case.count, qos)
    lost = {number for number in lost if qos(number)}
    twice = {number for number in twice if qos(number) != 1}
    if not out:
        twice -= outcome.wire.repeated
    if case.broker.startswith("lost") or outcome.wire.forgot:
        # A message in doubt was reported; it may come twice or not at all, depending on the policy. At level 3 a broker can't
        # say that it lost a session: a message past PUBREC is lost with it. So are messages queued for the device.
        doubtful = set(outcome.doubtful)
        if not out:
            lost = set()
        elif case.level == 3:
            lost -= outcome.wire.released
        elif case.broker == "lostdrop":
            lost -= doubtful
        else:
            twice -= doubtful
            # Not published again, as nobody can know whether the session was lost.
            lost -= doubtful & outcome.wire.uncertain
    outcome.lost += len(lost)
    outcome.duplicates += sum(qos(number) == 2 for number in twice)
    if lost:
        problems.append(f"{where} lost: {sorted(lost)}")
    if twice:
        problems.append(f"{where} has twice: {sorted(twice)}")
    runs = 1 + sum(later <= earlier for earlier, later in pairwise(number for number in got if qos(number) == 1))
    if runs > max(1, outcome.connections) and case.broker != "kill":
        problems.append(f"{where}: repeated on a live connection: {got} in {outcome.connections} connections")
    return problems
