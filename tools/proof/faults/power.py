"""Power cuts of a board: kills its process at random moments, tears the current flash operation, and starts the board again.

At the end it checks that each message whose publish() returned has arrived, at QoS 2 once, in order; and that the application
received each message that was sent to the board, in order. A message may be handed to the application again if the power went
after its handler ran: no client can know whether the application has used it. Such repetitions are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tools.broker import Broker
from tools.children import tail
from tools.proof.board import BoardFailed, VirtualBoard
from tools.proof.chain import BoardProxy, cut_power, until
from tools.proof.faults.compiled import program_on
from tools.proof.faults.peer import Peer

HEAP = os.environ.get("FLASHMQTT_FAULTS_HEAP", "192K")
WINDOW = 8
MESSAGES_A_KILL = 12  # published, on average, between two kills
SENT_A_KILL = 4  # sent to the board
EARLY = 0.2  # the share of kills while the board starts
BOOT_S = 20.0
END_S = 60.0


@dataclass(frozen=True)
class Case:
    """A number of kills of a board at random moments; the id repeats the random numbers, but not the exact moments."""

    level: int
    kills: int
    seed: int

    def __str__(self) -> str:
        return f"power/{self.level}/{self.kills}/{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case with this id.

        Raises:
            ValueError: there is no such case.
        """
        found = re.fullmatch(r"power/([345])/(\d+)/(\d+)", text)
        if not found:
            raise ValueError(text)
        return cls(*map(int, found.groups()))


@dataclass
class Verdict:
    """The counts and problems of a case."""

    case: Case
    heap = 0  # not measured
    kills: int = 0
    torn: int = 0
    boots: int = 0
    published: int = 0
    sent: int = 0
    lost: int = 0
    duplicates_qos2: int = 0
    handed_again: int = 0
    problems: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the counts; each kill counts as a case."""
        kept = {name: getattr(self, name) for name in ("lost", "duplicates_qos2", "torn", "handed_again")}
        return kept | {"cases": self.kills, "cuts": self.kills}

    def details(self) -> list[str]:
        """Return the details, in lines."""
        return [str(self)]


class Board(VirtualBoard):
    """A board that runs `tools.proof.faults.board`, with what its lines reported."""

    def __init__(self, directory: Path, port: int, case: Case):
        program, environment = program_on("mpy", "tools.proof.faults.board", HEAP)
        program += map(str, (port, case.level, case.kills * MESSAGES_A_KILL, WINDOW))
        super().__init__(directory, "board", port, program=(program, environment))
        self.got: list[int] = []
        self.starts = 0
        self.was_full = False  # its journal refused a message

    def take(self, line: str) -> None:
        """Read one line of the program."""
        super().take(line)
        kind, *words = line.split() or [""]
        if not line.endswith("\n"):
            return  # killed in the middle of a line
        if kind == "stored":
            self.progress.stored = int(words[0])
        elif kind == "got":
            self.got.append(int(words[0]))
        elif kind == "full":
            self.was_full = True
        elif kind == "up":
            self.starts += 1
            self.progress.stored = max(self.progress.stored, int(words[1]))


async def run_cases(cases: Iterable[Case], _workers: int, report: Callable[[Verdict], object]) -> None:
    """Run cases one at a time, because other load would shift the moments of the kills; report each verdict."""
    for case in cases:
        report(await run_case(case))


async def run_case(case: Case) -> Verdict:
    """Run one case; return the verdict."""
    verdict = Verdict(case)
    rng = random.Random(case.seed)
    kills = case.kills
    count = kills * MESSAGES_A_KILL
    with (
        tempfile.TemporaryDirectory(prefix="flashmqtt-power-") as scratch,
        Broker(Path(scratch) / "broker", kind="mosquitto", extra="autosave_on_changes false") as broker,
    ):
        peer = await Peer(broker.port, "peer").start()
        await peer.subscribe("board/out")
        proxy = BoardProxy(broker.port, rng)
        await proxy.start()
        board = Board(Path(scratch) / "board", proxy.port, case)
        try:
            await board.power_on()
            for number in range(1, kills + 1):
                if rng.random() < EARLY:  # during a start
                    await asyncio.sleep(rng.uniform(0, 0.25))
                else:
                    await _until(lambda: board.progress.stored >= count * number // (kills + 1), board, BOOT_S)  # noqa: B023
                    await asyncio.sleep(rng.uniform(0, 0.05))
                if not board.running:
                    await board.finished()  # raises an error: the program ended by itself
                await cut_power(board, proxy, rng)
                for _ in range(SENT_A_KILL if board.starts else 0):
                    verdict.sent += 1
                    peer.send("board/in", f"{verdict.sent};".encode(), 2 - verdict.sent % 2)
            for qos in (1, 2):
                peer.send("board/in", b"end", qos)
            await _until(lambda: False, board, END_S)
            if not board.progress.done:
                verdict.problems.append(f"the board is not done: {tail(board.console)}")
            marker = peer.send("board/out", b"0;", 1)
            await peer.until(lambda: b"0;" in peer.received["board/out"], 5)
            await marker
        except BoardFailed as failed:
            verdict.problems.append(str(failed))
            return verdict
        finally:
            await board.stop()
            await proxy.stop()
            await peer.stop()
            verdict.kills, verdict.torn, verdict.boots = board.power.cuts, len(board.power.torn), board.starts
            verdict.published = board.progress.stored
    _judge(verdict, [int(body.split(b";")[0]) for body in peer.received["board/out"][:-1]], board.got)
    return verdict


async def _until(condition: Callable[[], bool], board: VirtualBoard, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await until(condition, board, poll_s=0.002)


def _judge(verdict: Verdict, arrived: list[int], handed: list[int]) -> None:
    for what, numbers, last in (("board", arrived, verdict.published), ("application", handed, verdict.sent)):
        lost = [number for number in range(1, last + 1) if number not in set(numbers)]
        firsts = list(dict.fromkeys(numbers))
        verdict.lost += len(lost)
        if lost:
            verdict.problems.append(f"{what}: lost {lost}")
        if strange := [number for number in firsts if not 1 <= number <= last]:
            verdict.problems.append(f"{what}: never stored or sent: {strange}")
        for qos in (1, 2):  # no order between QoS 1 and 2: a QoS 2 message takes two round trips
            own = [number for number in firsts if 2 - number % 2 == qos]
            if places := [number for number, after in pairwise(own) if after < number]:
                verdict.problems.append(f"{what}, QoS {qos}: out of order after {places}")
    twice = [number for number in set(arrived) if arrived.count(number) > 1]
    verdict.duplicates_qos2 = sum(number % 2 == 0 for number in twice)
    if verdict.duplicates_qos2:
        verdict.problems.append(f"twice at QoS 2: {sorted(number for number in twice if number % 2 == 0)}")
    verdict.handed_again = len(handed) - len(set(handed))
