"""Kills a board's process at random moments, tears the flash operation under way, drops what was in flight, and starts it again.

What is checked in the end: each message whose publish() returned arrived, at QoS 2 once, in order; each message that was sent to
the board was handed to its application, in order. A message whose handler had run when the power went may be handed over again:
no client can know what an application did with it. How often that was is counted.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tools.broker import Broker
from tools.children import Child
from tools.flashsim.tear import tear
from tools.proof.faults.compiled import program_on
from tools.proof.faults.peer import Peer
from tools.proof.proxy import Proxy

HEAP = os.environ.get("FLASHMQTT_FAULTS_HEAP", "192K")
WINDOW = 8
MESSAGES_A_KILL = 12  # published, on average, between two kills
SENT_A_KILL = 4  # sent to the board
BOOT_S = 20.0
END_S = 60.0


@dataclass
class Story:
    """What was done, and what came of it."""

    PREFIX = "power/"

    level: int
    seed: int
    kills: int = 0
    early_kills: int = 0
    torn: int = 0
    boots: int = 0
    published: int = 0
    sent: int = 0
    lost: int = 0
    duplicates_qos1: int = 0
    duplicates_qos2: int = 0
    handed_again: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """What repeats it, as far as time allows."""
        return f"{self.PREFIX}{self.level}/{self.kills}/{self.seed}"

    @classmethod
    def parse(cls, text: str) -> tuple[int, int, int]:
        """Return (level, kills, seed) of an id.

        Raises:
            ValueError: it is none.
        """
        found = re.fullmatch(cls.PREFIX + r"([345])/(\d+)/(\d+)", text)
        if not found:
            raise ValueError(text)
        level, kills, seed = map(int, found.groups())
        return level, kills, seed


class _Board:
    def __init__(self, directory: Path, port: int, level: int, count: int):
        program, environment = program_on("mpy", "tools.proof.faults.board", HEAP)
        program += map(str, (port, level, count, WINDOW))
        self.child = Child(program, directory, environment, take=self._take)
        self.stored = 0
        self.got: list[int] = []
        self.boots = 0
        self.done = False
        self.tail: list[str] = []

    def _take(self, line: str) -> None:
        if not line.endswith("\n"):
            return  # killed in the middle of a line
        self.tail = [*self.tail[-8:], line.rstrip()]
        kind, *words = line.split() or [""]
        if kind == "stored":
            self.stored = int(words[0])
        elif kind == "got":
            self.got.append(int(words[0]))
        elif kind == "up":
            self.boots += 1
            self.stored = max(self.stored, int(words[1]))
        elif kind == "done":
            self.done = True


async def torment(level: int, kills: int, seed: int) -> Story:
    """Kill a board so often; return what came of it."""
    story = Story(level, seed)
    rng = random.Random(seed)
    count = kills * MESSAGES_A_KILL
    with tempfile.TemporaryDirectory(prefix="flashmqtt-power-") as scratch:
        directory = Path(scratch)
        with Broker(directory / "broker", kind="mosquitto", extra="autosave_on_changes false") as broker:
            peer = await Peer(broker.port, "peer").start()
            await peer.subscribe("board/out")
            proxy = await Proxy(broker.port).start()
            board = _Board(directory, proxy.port, level, count)
            sent = 0
            try:
                await board.child.start()
                for number in range(kills):
                    await _moment(board, rng, count * (number + 1) // (kills + 1), early := rng.random() < 0.2)
                    if not board.child.running:
                        story.problems.append(f"the board's program ended by itself: {' | '.join(board.tail)}")
                        return story
                    proxy.accepting = False
                    proxy.cut()
                    await board.child.kill()
                    story.kills += 1
                    story.early_kills += early
                    story.torn += bool(tear(directory / "flash.bin", directory / "flash.intent", rng))
                    proxy.accepting = True
                    for _ in range(SENT_A_KILL if board.boots else 0):
                        sent += 1
                        peer.send("board/in", f"{sent};".encode(), 2 - sent % 2)
                    await board.child.start()
                for qos in (1, 2):
                    peer.send("board/in", b"end", qos)
                await _until(lambda: board.done or not board.child.running, END_S)
                story.sent, story.boots, story.published = sent, board.boots, board.stored
                if not board.done:
                    story.problems.append(f"the board is not done: {' | '.join(board.tail)}")
                marker = peer.send("board/out", b"0;", 1)
                await peer.until(lambda: b"0;" in peer.received["board/out"], 5)
                await marker
            finally:
                await board.child.kill()
                await proxy.stop()
                await peer.stop()
        _judge(story, [int(body.split(b";")[0]) for body in peer.received["board/out"][:-1]], board.got)
    return story


async def _until(condition, seconds: float) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.002)
    return True


async def _moment(board: _Board, rng: random.Random, stored: int, early: bool) -> None:
    """Wait for the moment of the next kill: somewhere in a start, or once so many messages are stored, and a little later."""
    if early:
        await asyncio.sleep(rng.uniform(0, 0.25))
    else:
        await _until(lambda: board.stored >= stored or not board.child.running, BOOT_S)
        await asyncio.sleep(rng.uniform(0, 0.05))


def _judge(story: Story, arrived: list[int], handed: list[int]) -> None:
    for what, numbers, last in (("board", arrived, story.published), ("application", handed, story.sent)):
        lost = [number for number in range(1, last + 1) if number not in set(numbers)]
        firsts = list(dict.fromkeys(numbers))
        story.lost += len(lost)
        if lost:
            story.problems.append(f"{what}: lost {lost}")
        if strange := [number for number in firsts if not 1 <= number <= last]:
            story.problems.append(f"{what}: never stored or sent: {strange}")
        for qos in (1, 2):  # a QoS 2 message takes two round trips: between the two there is no order
            own = [number for number in firsts if 2 - number % 2 == qos]
            if places := [number for number, after in pairwise(own) if after < number]:
                story.problems.append(f"{what}, QoS {qos}: out of order after {places}")
    twice = [number for number in set(arrived) if arrived.count(number) > 1]
    story.duplicates_qos2 = sum(number % 2 == 0 for number in twice)
    story.duplicates_qos1 = sum(arrived.count(number) - 1 for number in twice if number % 2)
    if story.duplicates_qos2:
        story.problems.append(f"twice at QoS 2: {sorted(number for number in twice if number % 2 == 0)}")
    story.handed_again = len(handed) - len(set(handed))
