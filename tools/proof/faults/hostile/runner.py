"""Runs the hostile broker's cases: every wrong thing, at every moment, at every level, against the real client.

A case's id is `level/interpreter/moment/wrong thing`, and replays it alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from tools.proof.faults.cases import Case as Flow
from tools.proof.faults.cases import Verdict as Reported
from tools.proof.faults.hostile.broker import NO_DISCONNECT, HostileBroker, Seen
from tools.proof.faults.hostile.wrongs import WRONGS, Wrong
from tools.proof.faults.runner import CASE_S, Worker, play, settings
from tools.proof.program import failure_of

LEVELS = "345"
INTERPRETERS = ("mpy", "cpy")
COUNT, WINDOW = 4, 2
# If the broker stops answering, the client has to notice soon. In all other cases a busy machine must not look like that.
SILENT_KEEP_ALIVE_S, SILENT_RESPONSE_S = 2, 1
KEEP_ALIVE_S, RESPONSE_S = 60, 20
_serial = itertools.count(1)
NORMAL = 0x00


@dataclass(frozen=True)
class Case:
    """One wrong thing at one moment."""

    level: int
    interpreter: str
    moment: str
    wrong: Wrong

    def __str__(self) -> str:
        return f"{self.level}/{self.interpreter}/{self.moment}/{self.wrong.name}"

    async def run(self, worker: Worker) -> Verdict:
        """Run it; return the verdict."""
        topic = f"faults/h{next(_serial)}"
        program = worker.program(self.interpreter)
        broker = HostileBroker(self.wrong, self.moment, self.level, topic)
        verdict = Verdict(case=self, seen=broker.seen)
        program.note = verdict.note
        silent = "DeadlineExpired" in self.wrong.allowed(self.moment)
        keep_alive_s, response_s = (SILENT_KEEP_ALIVE_S, SILENT_RESPONSE_S) if silent else (KEEP_ALIVE_S, RESPONSE_S)
        more: dict[str, Any] = {"window": WINDOW, "keep_alive_s": keep_alive_s, "response_s": response_s}

        async def flow() -> None:
            await program.start(settings(topic.partition("/")[2], broker.port, self.level, **more))
            both = Flow(self.level, 1, "both", count=COUNT)
            _, verdict.heap = await play(program, topic, both, None, again=False, patient=True)

        try:
            verdict.failure = await failure_of(flow(), CASE_S)
        finally:
            await broker.stop()
        verdict.problems = verdict.judge()
        return verdict


def all_cases(levels: str, interpreter: str) -> list[Case]:
    """Return every case at these levels."""
    return [
        Case(int(level), interpreter, moment, wrong)
        for level in levels
        for wrong in WRONGS
        if level in wrong.levels
        for moment in wrong.moments
    ]


@dataclass(kw_only=True)
class Verdict(Reported):
    """The observations of a case."""

    seen: Seen

    def details(self) -> list[str]:
        """Return the details, in lines."""
        return [*super().details(), str(self.seen)]

    def _disconnect_code(self, first_error: str) -> int:
        """Return the reason code of the DISCONNECT that the broker must see after the wrong thing, or NO_DISCONNECT."""
        # Before CONNACK there is no connection to disconnect: the client only closes the socket.
        if self.case.level < 5 or (self.case.moment == "connect" and first_error):
            return NO_DISCONNECT
        if not first_error:
            return NORMAL  # the client disconnects at the end of the case
        # Other errors end a connection without a DISCONNECT, because nobody would read it: the broker has closed or reset the
        # connection (_LOST in `wrongs`), answers nothing any more (DeadlineExpired), or has sent DISCONNECT itself.
        _, _, reason = first_error.partition(":")
        return int(reason, 16) if reason else NO_DISCONNECT

    def judge(self) -> list[str]:
        """Return descriptions of the violations."""
        allowed, there, every = self.case.wrong.allowed(self.case.moment), self.seen.numbers, list(range(1, COUNT + 1))
        errors = [text.partition(" ")[0] for text in self.texts]  # with their reason codes
        first = errors[0] if errors else ""  # "": the wrong thing was tolerated
        wanted = " or ".join(sorted(error or "nothing" for error in allowed))
        numbers = [one for one in self.handed if isinstance(one, int)]
        code, right_code = self.seen.disconnect_code, self._disconnect_code(first)
        # A late CONNACK may have said that the session was lost, and then a message past PUBREC was, too.
        odd_doubt = any(number % 2 or not self.gave_up for number in self.doubtful)
        reported = f"reported as delivered {self.delivered}, as in doubt {self.doubtful}"
        said = f"{first or 'no error'}: {_disconnect(code)}, not {_disconnect(right_code)}"
        problems = [
            self.failure,
            not self.seen.done and "the moment never came",
            first not in allowed and f"answered by {first or 'nothing'}, not by {wanted}",
            set(errors) - _NAMED and f"errors without a name: {sorted(set(errors) - _NAMED)}",
            "bad" in self.handed and "a message was delivered that must not be",
            (1 not in numbers or numbers.count(2) != 1 or numbers.count(3) > 1) and f"took {numbers}",
            sorted(self.delivered + self.doubtful) != every and reported,
            odd_doubt and f"in doubt without a reason: {self.doubtful}",
            sorted(set(there)) != every and f"the broker has {there}",
            (there.count(2) > 1 or there.count(4) > 1) and f"a QoS 2 message came twice: {there}",
            self.case.level == 5 and code != right_code and said,
        ]
        return [*self.seen.problems, *(str(text) for text in problems if text)]


_NAMED = set().union(*(wrong.allowed(moment) for wrong in WRONGS for moment in wrong.moments)) - {""}


def _disconnect(code: int) -> str:
    return "no DISCONNECT" if code == NO_DISCONNECT else f"DISCONNECT with {code:#04x}"
