"""A board that sleeps, for many wakes, half of them without a network: `python -m tools.proof.wakes --wakes 500`.

Each wake is a start of the real program: it samples, sends what is stored, waits for acknowledgements until its deadline,
and sleeps. A listener at the broker writes down what comes. At the end the network is there, and everything that the board
ever stored has to have arrived once; what a wake cost on the wire and in flash is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import paho.mqtt.client as paho

from tools.broker import Broker, BrokerFailed
from tools.command import ended, number, progress_bar
from tools.proof.board import VirtualBoard
from tools.proof.proxy import Proxy

DEVICE = "sleeper-1"
AWAKE_S = 1
FURTHER_WAKES = 20  # at most, to bring what is still stored
_FLASH = re.compile(r"^flash programs=(\d+) erases=(\d+) read=(\d+)", re.MULTILINE)


@dataclass
class Wakes:
    """What happened.

    Attributes:
        absent: wakes without a network.
        cuts: power cuts in the middle of a wake.
        stored: how many messages the board says it stored.
        arrived: sequence number -> how often it came.
        exact: the numbers of the messages at QoS 2, which must not come twice.
        up, down: bytes on the wire for each wake with a network.
        programs, erases: page programs and sector erases of each wake.
    """

    absent: int = 0
    cuts: int = 0
    stored: int = 0
    arrived: Counter = field(default_factory=Counter)
    exact: set[int] = field(default_factory=set)
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    programs: list[int] = field(default_factory=list)
    erases: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        """The numbers that never came."""
        return [seq for seq in range(1, self.stored + 1) if not self.arrived[seq]]

    @property
    def repeated(self) -> list[int]:
        """The numbers at QoS 2 that came more than once."""
        return [seq for seq in self.exact if self.arrived[seq] > 1]

    @property
    def resent(self) -> list[int]:
        """The numbers at QoS 1 that came more than once: their acknowledgement came after the deadline, or not at all."""
        return [seq for seq, count in self.arrived.items() if count > 1 and seq not in self.exact]


class Listener:
    """A subscriber with a session of its own that writes sequence numbers down."""

    def __init__(self, port: int, result: Wakes):
        self._result = result
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="listener", clean_session=False)
        self._client.on_message = self._note
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("flashmqtt/#", 2)
        self._client.loop_start()

    def _note(self, client, userdata, message) -> None:
        seq = json.loads(message.payload)[0]["seq"]
        self._result.arrived[seq] += 1
        if message.qos == 2:
            self._result.exact.add(seq)

    def stop(self) -> None:
        """Leave."""
        self._client.disconnect()
        self._client.loop_stop()


async def sleep_and_wake(
    wakes: int, directory: Path, seed: int = 1, cuts: float = 0.0, progress: bool = False
) -> Wakes:
    """Let a board wake so many times; return what happened.

    Args:
        wakes: how often.
        directory: where everything goes.
        seed: of the network's absences and the power cuts.
        cuts: the share of wakes in whose middle the power goes.
        progress: show a bar.
    """
    rng = random.Random(seed)
    result = Wakes()
    loop = asyncio.get_running_loop()
    with Broker(directory / "broker") as broker:
        proxy = await Proxy(broker.port, rng).start()
        listener = await loop.run_in_executor(None, Listener, broker.port, result)
        settings = {"sleep_s": 600, "awake_s": AWAKE_S, "keep_alive_s": 30}
        board = VirtualBoard(directory / "board", DEVICE, proxy.port, settings, flash_time=0.0)
        try:
            for wake in progress_bar(range(wakes), unit=" wakes", disable=None if progress else True):
                last = wake >= wakes - 2
                proxy.accepting = last or rng.random() < 0.5
                result.absent += not proxy.accepting
                await _one(board, proxy, result, rng, not last and rng.random() < cuts)
            for _ in range(FURTHER_WAKES):  # on a busy machine a wake's deadline may come before its acknowledgements
                await asyncio.sleep(0.5)
                result.stored = board.progress.stored
                if not result.missing:
                    break
                await _one(board, proxy, result, rng, False)
        finally:
            await board.stop()
            listener.stop()
            await proxy.stop()
    return result


async def _one(board: VirtualBoard, proxy: Proxy, result: Wakes, rng: random.Random, cut: bool) -> None:
    offset = board.console.stat().st_size if board.console.exists() else 0
    up, down = proxy.counts.bytes_up, proxy.counts.bytes_down
    started = asyncio.get_running_loop().time()
    await board.power_on("deep-sleep")
    if cut:
        await asyncio.sleep(rng.uniform(0.02, 0.15))
        proxy.swallow()  # so that the board can't finish, and sleep, before its power goes
        proxy.accepting = False
        await asyncio.sleep(rng.uniform(0.0, 0.4))
        if board.running:
            proxy.cut()
            await board.power_cut(rng)
            result.cuts += 1
            return
    await board.asleep()
    told = _FLASH.search(board.console.read_text(errors="replace")[offset:])
    if told is None:
        raise RuntimeError(f"the board did not go to sleep: {board.console.read_text()[offset:]}")
    result.seconds.append(asyncio.get_running_loop().time() - started)
    result.programs.append(int(told[1]))
    result.erases.append(int(told[2]))
    if proxy.accepting:
        result.up.append(proxy.counts.bytes_up - up)
        result.down.append(proxy.counts.bytes_down - down)


def figures(result: Wakes) -> dict[str, float]:
    """Return the costs of a wake: medians for the wire, means for the flash."""
    return {
        "bytes_up": statistics.median(result.up),
        "bytes_down": statistics.median(result.down),
        "programs": statistics.fmean(result.programs),
        "erases": statistics.fmean(result.erases),
    }


def run(arguments: argparse.Namespace) -> int:
    """Run it; return 0 where nothing was lost and nothing came twice."""
    with tempfile.TemporaryDirectory() as scratch:
        result = asyncio.run(
            sleep_and_wake(arguments.wakes, Path(scratch), arguments.seed, arguments.cuts, progress=True)
        )
    print(
        f"{arguments.wakes} wakes, {result.absent} of them without a network, {result.cuts} cut off: "
        f"{result.stored} messages stored, {len(result.missing)} missing, {len(result.repeated)} more than once at QoS 2, "
        f"{len(result.resent)} resent at QoS 1 whose acknowledgement came after the deadline"
    )
    print("a wake: " + ", ".join(f"{name} {value:.2f}" for name, value in figures(result).items()))
    return 1 if result.missing or result.repeated else 0


def main(argv: list[str] | None = None) -> int:
    """Read the command line and run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.proof.wakes", description=__doc__.splitlines()[0])
    # The last two have a network: of them there are figures in any case.
    parser.add_argument("--wakes", type=number(int, 2), default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cuts", type=number(float, 0, 1), default=0.0, help="share of wakes in whose middle the power goes"
    )
    arguments = parser.parse_args(argv)
    return ended(lambda: run(arguments), BrokerFailed)


if __name__ == "__main__":
    sys.exit(main())
