"""What is done to a board and its link, by `make run` and by `make soak`: the power cut, the link cut at and inside a packet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from tools.proof.proxy import Proxy
from tools.virtual_board.supervisor import VirtualBoard

# Of the link cuts, how many fall in the middle of a packet.
SHARE_INSIDE = 0.6
# Flash operations take five times their typical time, still below the data sheet's maximum: the slower the chip, the
# more of the power cuts tear something.
FLASH_TIME = 5.0
POLL_S = 0.005


class Line(Proxy):
    """The proxy before one client, which may have several reasons at once to let nobody through."""

    def __init__(self, target: int, rng: random.Random, capture: Path | None = None):
        super().__init__(target, rng, capture=capture)
        self._reasons: set[str] = set()

    def refuse(self, reason: str) -> None:
        """Let no connection through any more, for one more reason."""
        self._reasons.add(reason)
        self.accepting = False

    def admit(self, reason: str) -> None:
        """Take a reason back; without one left, connections get through again."""
        self._reasons.discard(reason)
        self.accepting = not self._reasons


async def until(condition: Callable[[], bool], board: VirtualBoard, poll_s: float = POLL_S) -> None:
    """Wait for a condition, or until the board is done.

    Raises:
        BoardFailed: its program ended meanwhile.
    """
    while not condition() and not board.progress.done:
        if not board.running:
            await board.finished()
        await asyncio.sleep(poll_s)


async def cut_power(board: VirtualBoard, line: Line, rng: random.Random) -> None:
    """Cut a board's power, and give it back."""
    line.refuse("power")
    line.cut()  # what was in flight is lost with the power
    await board.power_cut(rng)
    line.admit("power")
    await board.power_on()


async def cut_link(board: VirtualBoard, line: Line, rng: random.Random) -> bool:
    """Cut a board's connection, as soon as there is one: now, or in the middle of the next packet that it sends.

    Returns whether there was one, before the board was done.
    """
    before = line.counts.cuts
    inside = rng.random() < SHARE_INSIDE
    while line.counts.cuts == before and not board.progress.done:
        await until(lambda: line.connected, board)
        if inside:
            # Again and again: one that fell silent passes no packet to cut, and the board makes another beside it.
            line.cut_inside_a_packet()
            await asyncio.sleep(POLL_S)
        else:
            line.cut()
    return line.counts.cuts > before
