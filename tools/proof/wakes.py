"""A board that sleeps, for many wakes, half of them without a network: `python -m tools.proof.wakes --wakes 500`.

Each wake is a start of the real program: it samples, sends what is stored, waits for acknowledgements until its deadline,
and sleeps. In the last wakes there is a network. In the end each message that the board ever stored must be in the collector's
landing once.

The chain is that of `make run` and `make soak`. The loop is its own: a wake begins when the wake before has ended, and not at a
moment of the run's progress or time.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tools.children import tail
from tools.command import exit_status, named, number, parser_of, progress_bar
from tools.proof.broker import Broker
from tools.proof.chain import ABSENCE, POWER, Chain, RunStats
from tools.proof.soak import judge
from tools.proof.soak.judge import Landing

DEVICE = "sleeper-1"
AWAKE_S = 1
FLASH_KIB = 64
FURTHER_WAKES = 20  # at most, to send what is still stored


async def sleep_and_wake(wakes: int, directory: Path, seed: int, cuts: float = 0.0) -> tuple[RunStats, Landing]:
    """Let a board wake so many times; return what was counted, and what the collector has.

    Args:
        wakes: how often.
        directory: where everything goes.
        seed: of the network's absences and the power cuts.
        cuts: the share of wakes in which the power is cut.
    """
    stats = RunStats(seed)
    chain = Chain(directory, Broker(directory / "broker"), stats)
    settings = {"sleep_s": 600, "awake_s": AWAKE_S, "keep_alive_s": 30}
    async with chain.running([("board", DEVICE)], settings, FLASH_KIB, flash_time=0.0, power_on=False):
        (board,), (proxy,) = chain.boards, chain.proxies
        for wake in progress_bar(range(wakes), unit=" wakes"):
            last = wake >= wakes - 2
            if last or chain.rng.random() < 0.5:
                proxy.admit(ABSENCE)
            else:
                proxy.refuse(ABSENCE)
                chain.count(ABSENCE)
            await _wake(chain, not last and chain.rng.random() < cuts)
        for _ in range(FURTHER_WAKES):  # on a busy machine a wake's deadline may come before its acknowledgements
            if not board.progress.waiting:
                break
            await _wake(chain, False)
        board.note_counters()
        await chain.collector.quiet()
    return stats, judge.landing(chain.collector.landing)


async def _wake(chain: Chain, cut: bool) -> None:
    """Let the board wake once; with `cut`, its power goes meanwhile."""
    (board,), (proxy,), rng = chain.boards, chain.proxies, chain.rng
    proxy.admit(POWER)
    await board.power_on("deep-sleep")
    if cut:
        await asyncio.sleep(rng.uniform(0.02, 0.15))
        proxy.swallow()  # so that the board can't finish, and sleep, before its power goes
        proxy.refuse(POWER)
        await asyncio.sleep(rng.uniform(0.0, 0.4))
        if board.running:
            proxy.cut()
            await board.power_cut(rng)
            chain.count(POWER)
            return
    await board.ended()
    if tail(board.console, 1) != "asleep":
        raise RuntimeError(f"the board did not go to sleep: {tail(board.console)}")


@named("wakes")
def main(argv: list[str] | None = None) -> int:
    """Run it; return 0 if no message is missing or came more than once at QoS 2."""
    parser = parser_of("tools.proof.wakes", __doc__)
    # In the last two there is a network: they give the figures of the wire in any case.
    parser.add_argument("--wakes", type=number(int, 2), default=500)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        stats, landed = asyncio.run(sleep_and_wake(arguments.wakes, Path(scratch), seed=1))
    missing, repeated = stats.messages - landed.distinct, landed.again[2]
    print(
        f"{arguments.wakes} wakes, {stats.faults[ABSENCE]} of them without a network: "
        f"{stats.messages} messages stored, {missing} missing, {repeated} more than once at QoS 2, "
        f"{landed.again[1]} resent at QoS 1 because their acknowledgement came after the deadline"
    )
    return 1 if missing or repeated else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
