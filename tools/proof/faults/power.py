"""Power cuts of a board: kills its program at random moments, tears the current flash operation, and starts the board again.

At the end it checks that each message whose publish() returned has arrived, at QoS 2 once, in order; and that the application
received each message that was sent to the board, in order. A message may be handed to the application again if the power went
after its handler ran: no client can know whether the application has used it. Such repetitions are counted.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.proof.device import END
from tools.proof.faults.cases import Verdict as Reported
from tools.proof.faults.cases import compared
from tools.proof.faults.runner import Worker, arrived, settings
from tools.proof.program import BoardFailed, Program, ProgramEnded, holds
from tools.proof.proxy import Proxy
from tools.proof.tear import tear

HEAP = "256K"
# The flash operations take a share of their typical time, so that cuts fall into them and between them.
SETTINGS = {
    "window": 8,
    "sectors": 12,
    "flash_time": 0.25,
    "pause_ms": 4,
    "waits": True,
    "response_s": 2,
    "backoff": (5, 20, 20),
}
MESSAGES_A_KILL = 12  # published, on average, between two kills
SENT_A_KILL = 4  # sent to the board
EARLY = 0.2  # the share of kills while the board starts
BOOT_S = 20.0
END_S = 60.0
_serial = itertools.count(1)


@dataclass(frozen=True)
class Case:
    """A number of kills of a board at random moments; the id repeats the random numbers, but not the exact moments."""

    level: int
    kills: int
    seed: int
    interpreter = "mpy"

    def __str__(self) -> str:
        return f"power/{self.level}/{self.kills}/{self.seed}"

    async def run(self, worker: Worker) -> Verdict:
        """Run it; return the verdict."""
        verdict = Verdict(case=self)
        rng = random.Random(self.seed)
        kills = self.kills
        count = kills * MESSAGES_A_KILL
        peer = await worker.peer("mosquitto")
        proxy = await Proxy(peer.port, rng).start()
        board = Board(worker.program("mpy", HEAP), worker.directory / f"p{next(_serial)}.flash", proxy.port, verdict)
        inward, outward = f"{board.name}/in", f"{board.name}/out"
        await peer.subscribe(outward)
        living = await board.on()
        try:
            for number in range(1, kills + 1):
                if rng.random() < EARLY:  # during a start
                    await asyncio.wait({living}, timeout=rng.uniform(0, 0.25))
                else:
                    await holds(lambda: living.done() or verdict.published >= count * number // (kills + 1), BOOT_S)  # noqa: B023
                    await asyncio.sleep(rng.uniform(0, 0.05))
                if living.done():
                    break  # the program ended by itself
                proxy.refuse("power")
                proxy.cut()  # bytes in flight are lost with the power
                verdict.torn += await board.off(rng)
                verdict.kills += 1
                await asyncio.gather(living, return_exceptions=True)
                proxy.admit("power")
                living = await board.on()
                for _ in range(SENT_A_KILL if verdict.delivered else 0):  # else the broker does not know its session
                    verdict.sent += 1
                    peer.send(inward, f"{verdict.sent};".encode(), 2 - verdict.sent % 2)
            for qos in (1, 2):
                peer.send(inward, END.encode(), qos)
            async with asyncio.timeout(END_S):
                await living
            numbers = await arrived(peer, outward)
        except (BoardFailed, ProgramEnded, TimeoutError) as failed:
            verdict.problems.append(f"the board is not done: {failed!r}")
            return verdict
        finally:
            await board.off(rng)
            await asyncio.gather(living, return_exceptions=True)
            await proxy.stop()
        _judge(verdict, numbers)
        return verdict


@dataclass(kw_only=True)
class Verdict(Reported):
    """The counts and problems of a case.

    Attributes:
        published: the last number whose publish() has returned: from then on the message must not be lost.
    """

    kills: int = 0
    torn: int = 0
    boots: int = 0
    published: int = 0
    sent: int = 0
    lost: int = 0
    duplicates_qos2: int = 0
    handed_again: int = 0

    def counts(self) -> dict[str, int]:
        """Return the counts; each kill counts as a case."""
        kept = {name: getattr(self, name) for name in ("lost", "duplicates_qos2", "torn", "handed_again")}
        return kept | {"cases": self.kills, "cuts": self.kills}


class Board:
    """A board that publishes numbered messages from its journal, and receives others, over any number of lives.

    A message's number is its ordinal in the journal, so that after a cut the board continues with the next number. Odd numbers
    have QoS 1, even ones QoS 2.

    Attributes:
        verdict: what it reported.
        was_full: its journal refused a message.
    """

    def __init__(self, program: Program, flash: Path, port: int, verdict: Verdict):
        self.verdict = verdict
        self.was_full = False
        self.name = flash.stem
        self._flash = flash
        self._program = program
        self._program.note = self._note
        self._settings = settings(self.name, port, verdict.case.level, flash, **SETTINGS)
        self._ended: set[int] = set()  # the QoS of the peer's last messages that were received

    def _note(self, kind: str, words: list[Any]) -> None:
        if kind == "stored":
            self.verdict.published = words[0]
        elif kind == "full":
            self.was_full = True
        elif kind == "got" and words[1] == END:
            self._ended.add(words[2])
        else:
            self.verdict.note(kind, words)

    async def on(self) -> asyncio.Task[None]:
        """Switch its power on; return its life."""
        await self._program.start(self._settings)
        return asyncio.create_task(self._live())

    async def _live(self) -> None:
        """Publish what is not stored yet, until all is delivered and the peer's last messages are received.

        Raises:
            BoardFailed, ProgramEnded: a step failed, or the power was cut.
        """
        self.verdict.published = await self._program.do("count")
        self.verdict.boots += 1
        steps: list[tuple[Any, ...]] = [("subscribe", f"{self.name}/in", 2), ("start",)]
        for number in range(self.verdict.published + 1, self.verdict.case.kills * MESSAGES_A_KILL + 1):
            steps.append(("publish", f"{self.name}/out", [number], (2, 1), 1 + number % 90, False))
            steps += [("idle",)] if not number % 8 else []
        await asyncio.gather(*[self._program.do(*step) for step in steps])
        # There is a last message of each QoS, because a message at QoS 1 may overtake one at QoS 2, which takes two round trips.
        while await self._program.do("drain", 0) or len(self._ended) < 2:
            await asyncio.sleep(0.05)
        await asyncio.gather(self._program.do("disconnect"), self._program.do("over"))

    async def off(self, rng: random.Random) -> bool:
        """Cut its power; return whether that tore a flash operation."""
        await self._program.off()
        return tear(self._flash, f"{self._flash}.intent", rng)


def _judge(verdict: Verdict, arrived: list[int]) -> None:
    handed = verdict.handed
    for where, numbers, last in (("the peer", arrived, verdict.published), ("the application", handed, verdict.sent)):
        lost, twice, problems = compared(where, numbers, last, lambda number: 2 - number % 2)
        verdict.lost += len(lost)
        verdict.problems += problems + ([f"{where} lost: {sorted(lost)}"] if lost else [])
        if numbers is handed:
            verdict.handed_again = len(handed) - len(set(handed))
        elif again := sorted(number for number in twice if number % 2 == 0):
            verdict.duplicates_qos2 = len(again)
            verdict.problems.append(f"{where} has twice: {again}")
