"""Runs the scenarios with a broker, a proxy that keeps the packets, a board's program, and another client (the peer).

A case's id is `broker/level/face/interpreter/scenario`, and replays it alone. Cases of one broker run side by side; cases that
kill it run last, one after the other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.proof import side_by_side
from tools.proof.broker import BrokerFailed
from tools.proof.brokers.judge import Message, Verdict, judge, number_of
from tools.proof.brokers.kinds import KINDS, PASSWORD, Kind
from tools.proof.brokers.scenarios import SCENARIOS, Scenario
from tools.proof.device import ANSWER_S, TURN_MS, body
from tools.proof.faults.peer import Peer
from tools.proof.faults.runner import settings
from tools.proof.program import BoardFailed, Program, ProgramEnded, holds
from tools.proof.proxy import Proxy, Seen

FACES = ("client", "aio")
INTERPRETERS = ("cpy", "mpy")
SETTINGS = {
    "password": PASSWORD,
    "takes_all": False,
    "sectors": 64,
    "pause_ms": TURN_MS,  # a killed broker then has the answers to what it has sent
    "keep_alive_s": 30,
    "response_s": 30,
    "timeout_s": ANSWER_S,
    "backoff": (50, 200, 100),
}
STEP_S = 45.0
CASE_S = 480.0
QUIET_S = 0.3  # the wait for repetitions at the end
PEER_BACK_S = 60.0
PEER_WINDOW = 10  # mosquitto 2.0.11 forgets QoS 2 messages of a publisher that has more than 20 in flight
_serial = itertools.count(1)


@dataclass(frozen=True)
class Case:
    """One scenario, with one broker, at one level, with one client on one interpreter."""

    broker: str
    level: int
    face: str
    interpreter: str
    scenario: Scenario

    def __str__(self) -> str:
        return f"{self.broker}/{self.level}/{self.face}/{self.interpreter}/{self.scenario.name}"

    async def run(self, broker: Kind) -> Verdict:
        """Run it with its broker; return the verdict."""
        return await CaseRun(self, broker).run()


def find(text: str) -> Case:
    """Return the case with this id.

    Raises:
        ArgumentTypeError: there is none.
    """
    return side_by_side.find((case for name in KINDS for case in all_cases(name)), text)


def all_cases(broker: str) -> list[Case]:
    """Return the cases of a broker, at the levels that it supports."""
    return [
        Case(broker, level, face, interpreter, scenario)
        for scenario, level, face, interpreter in product(SCENARIOS.values(), KINDS[broker].levels, FACES, INTERPRETERS)
    ]


class CaseRun:
    """One running case."""

    def __init__(self, case: Case, broker: Kind):
        self.case = case
        self.broker = broker
        self.name = f"b{next(_serial)}"
        scenario = case.scenario
        self.seen = Verdict(case=case, prefix=f"{self.name}/")
        trace: list[Seen] = []
        self.seen.trace = None if scenario.secure else trace
        self.proxy = Proxy(broker.port, watch=trace.append)
        self._directory = directory = broker.directory / "cases" / str(case).replace("/", "-")
        self._peer = Peer(broker.port, f"{self.name}p", not scenario.kills, broker.user, PASSWORD)
        self._board = Program(case.interpreter, directory, case.scenario.heap, f"{ROOT / 'firmware'}:{ROOT}")
        self._board.note = self.seen.note
        self._settings: dict[str, Any] = {}
        self._sending: list[asyncio.Task] = []  # each waits for the acknowledgement of one of the peer's messages

    async def run(self) -> Verdict:
        """Run the scenario; return the verdict."""
        scenario = self.case.scenario
        await self.proxy.start()
        self._directory.mkdir(parents=True, exist_ok=True)
        port = self.broker.tls_port if scenario.secure else self.proxy.port
        more = {"face": self.case.face, "user": self.broker.user, **SETTINGS, **scenario.settings}
        if scenario.secure:
            more |= {"host": "localhost", "ca": str(self.broker.certificate)}
        self._settings = settings(self.name, port, self.case.level, self._directory / "journal.flash", **more)
        step: tuple[Any, ...] = ()
        try:
            async with asyncio.timeout(CASE_S):
                await self._peer.start()
                for step in scenario.steps:
                    # A slow broker has limits of its own; one that acknowledges nothing holds up what the peer sends.
                    by_broker = step[0] == "broker" or step[1] in ("send", "post")
                    async with asyncio.timeout(None if by_broker else STEP_S + scenario.wait_s):
                        await getattr(self, f"_{step[0]}_step")(*step[1:])
                await asyncio.sleep(QUIET_S)
        except (BrokerFailed, BoardFailed, ProgramEnded, TimeoutError) as failed:
            who = " ".join(map(str, step[:2])) or "the peer"
            self.seen.problems.append(f"{who}: {str(failed) or 'no end in time'}")
        finally:
            await self._end()
        return judge(self.seen)

    async def _end(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._board.off()
        self.seen.arrived = [payload for one in self._peer.received.values() for payload in one]
        await self._peer.stop()
        await self.proxy.stop()
        (self._directory / "journal.flash").unlink(missing_ok=True)

    def _topic(self, name: str) -> str:
        return f"{self.name}/{name}"

    async def _wait_step(self, verb: str) -> None:
        await holds(self._all_taken if verb == "in" else self._all_arrived, self.case.scenario.wait_s)

    def _all_taken(self) -> bool:
        seen = self.seen
        taken = {one.number for one in seen.got}
        return all(number in taken or message.size in seen.oversize for number, message in seen.sent_in.items())

    def _all_arrived(self) -> bool:
        there = {number_of(payload) for one in self._peer.received.values() for payload in one}
        return {number for number, message in self.seen.sent_out.items() if message.size} <= there

    async def _board_step(self, verb: str, *arguments: Any) -> None:
        if verb == "start":
            await self._board.off()
            await self._board.start({**self._settings, **(arguments[0] if arguments else {})})
        elif verb == "off":
            await self._board.off()
        elif verb == "refused":
            try:
                await self._board.do("connect")
                self.seen.refusal = ("", 0)
            except BoardFailed as failed:
                self.seen.refusal = (failed.name, failed.code)
        elif verb == "subscribe":
            topic, qos = arguments
            if await self._board.do("subscribe", self._topic(topic), qos) is None:
                await self._board.do("settle")  # the connection was lost: the next one subscribes
        elif verb == "publish":
            topic, numbers, qos, size, retain = arguments
            for number in numbers:
                self.seen.sent_out[number] = Message(number, qos[number % len(qos)], size)
            await self._board.do("publish", self._topic(topic), numbers, qos, size, retain)
        elif verb == "drain":
            self.seen.left = await self._board.do("drain", int(self.case.scenario.wait_s))
        else:
            await self._board.do(verb)

    async def _peer_step(self, verb: str, *arguments: Any) -> None:
        peer = self._peer
        if verb == "subscribe":
            await peer.subscribe(self._topic(arguments[0]))
        elif verb == "none":
            other = await Peer(self.broker.port, f"{self.name}q", True, self.broker.user, PASSWORD).start()
            await other.subscribe(self._topic(arguments[0]))
            await asyncio.sleep(QUIET_S)
            self.seen.uncleared = [payload for one in other.received.values() for payload in one if payload]
            await other.stop()
        else:
            topic, numbers, qos, size, retain = arguments
            waiting: list[asyncio.Task] = []
            for number in numbers:
                message = self.seen.sent_in[number] = Message(number, qos[number % len(qos)], size)
                future = peer.send(self._topic(topic), body(number, size), message.qos, retain)
                waiting.append(asyncio.create_task(self._acknowledged(future, message)))
                self._sending.append(waiting[-1])
                if verb == "send" and (len(waiting) == PEER_WINDOW or number == numbers[-1]):
                    await asyncio.wait(waiting, timeout=self.case.scenario.wait_s)
                    waiting.clear()

    async def _acknowledged(self, future: asyncio.Future, message: Message) -> None:
        await future
        message.acknowledged = bool(message.qos)

    async def _broker_step(self, verb: str) -> None:
        peer = self._peer
        if verb == "kill":
            self.proxy.refuse("kill")
            peer.wait()
            self.broker.kill()
            peer.lost()
        else:
            await asyncio.to_thread(self.broker.start)
            await peer.resumed(PEER_BACK_S)
            self.proxy.admit("kill")


async def run_broker(
    kind: type[Kind], cases: list[Case], directory: Path, workers: int, report: Callable[[Verdict], None]
) -> None:
    """Start one broker with its files in a folder (see Kind), run its cases, report each, and end the broker.

    Raises:
        BrokerFailed: it does not start.
    """
    broker = kind(directory)
    try:
        await asyncio.to_thread(broker.start)
        for kills, beside in ((False, workers), (True, 1)):
            some = [case for case in cases if case.scenario.kills == kills]
            await side_by_side.run_cases(some, [broker] * beside, report)
    finally:
        broker.stop()
