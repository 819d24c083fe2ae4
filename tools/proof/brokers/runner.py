"""Runs the scenarios with a broker, a proxy that keeps the packets, a board's program, and another client (the peer).

A case's id is `broker/level/face/interpreter/scenario`, and replays it alone. Cases of one broker run side by side; cases that
kill it run last, one after the other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tools.bootstrap import ROOT
from tools.broker import BrokerFailed
from tools.children import Child
from tools.proof import side_by_side
from tools.proof.brokers.device import body
from tools.proof.brokers.judge import Got, Message, Observed, Verdict, judge, number_of
from tools.proof.brokers.kinds import KINDS, PASSWORD, Certificate, Kind
from tools.proof.brokers.scenarios import SCENARIOS, Scenario
from tools.proof.faults.compiled import program_on
from tools.proof.faults.peer import Peer
from tools.proof.proxy import Proxy

FACES = ("client", "aio")
INTERPRETERS = ("cpy", "mpy")
SECTORS = 64
KEEP_ALIVE_S = 30
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

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case with this id.

        Raises:
            ValueError: there is no such case.
        """
        return side_by_side.find((case for name in KINDS for case in all_cases(name)), text)


def all_cases(broker: str) -> list[Case]:
    """Return the cases of a broker, at the levels that it supports."""
    return [
        Case(broker, level, face, interpreter, scenario)
        for scenario, level, face, interpreter in product(SCENARIOS.values(), KINDS[broker].levels, FACES, INTERPRETERS)
    ]


class StepFailed(Exception):
    """A step of a case failed; the text says how."""


class BoardFailed(Exception):
    """A command of the board raised an error.

    Attributes:
        name, code: the error's class, and its code, 0 if it has none.
    """

    def __init__(self, name: str, text: str, code: int):
        super().__init__(f"{name}: {text}")
        self.name = name
        self.code = code


class Board:
    """A board's program, which can be started again and again."""

    def __init__(self, case: Case, directory: Path, seen: Observed, settings: dict[str, Any]):
        self._case = case
        self._directory = directory
        self._seen = seen
        self._settings = settings
        self._child: Child | None = None
        self._answer: asyncio.Future | None = None

    async def start(self, more: dict[str, Any] | None = None) -> None:
        """Start it with the case's settings; `more` replaces some."""
        program, environment = program_on(
            self._case.interpreter,
            "tools.proof.brokers.device",
            self._case.scenario.heap,
            f"{ROOT / 'firmware'}:{ROOT}",
        )
        log = self._directory / "board.log"
        self._child = Child(program, self._directory, environment, log, self._take, talks=True)
        await self._child.start()
        self._child.write(json.dumps({**self._settings, **(more or {})}))

    def _take(self, line: str) -> None:
        seen, answer = self._seen, self._answer
        if answer is not None and answer.done():
            answer = None
        if not line and answer is not None and self._child is not None:
            log = " | ".join(self._child.logged(2).splitlines())
            answer.set_exception(StepFailed(f"the board's program ended: {log}"))
        try:
            kind, *words = json.loads(line)
        except ValueError:
            return  # cut off by the power cut
        if kind == "got":
            topic, *rest = words
            if topic.startswith(seen.prefix):
                seen.got.append(Got(*rest))
            else:
                seen.strays.append(topic)
        elif kind == "oversize":
            seen.oversize.append(words[0])
        elif kind == "delivered":
            seen.delivered.add(words[0])
        elif kind == "refused":
            seen.failures.append(f"on_refused({words[0]}, {words[1]:#04x})")
        elif kind == "ended":
            seen.ended.append(": ".join(words))
        elif answer is not None and kind == "done":
            answer.set_result(words[0])
        elif answer is not None:
            answer.set_exception(BoardFailed(*words))

    async def do(self, verb: str, *arguments: Any, seconds: float = STEP_S) -> Any:
        """Send it a command; return the result."""
        self._answer = asyncio.get_running_loop().create_future()
        assert self._child is not None
        self._child.write(json.dumps([verb, *arguments]))
        try:
            async with asyncio.timeout(seconds):
                return await self._answer
        except TimeoutError:
            raise StepFailed(f"no end within {seconds:.0f} s") from None
        finally:
            self._answer = None

    async def off(self) -> None:
        """Cut its power."""
        if self._child is not None:
            await self._child.kill()


class CaseRun:
    """One running case."""

    def __init__(self, case: Case, broker: Kind, directory: Path):
        self.case = case
        self.broker = broker
        self.name = f"b{next(_serial)}"
        self.seen = Observed(
            case.level, prefix=f"{self.name}/", retained_in=case.scenario.retained, killed=case.scenario.kills
        )
        self.proxy = Proxy(broker.port, watch=True)
        self._directory = directory
        self._peers: list[Peer] = []
        self._board: Board | None = None
        self._sending: list[asyncio.Task] = []  # each waits for the acknowledgement of one of the peer's messages

    async def run(self) -> Verdict:
        """Run the scenario; return the verdict."""
        scenario = self.case.scenario
        await self.proxy.start()
        self._directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "face": self.case.face,
            "host": "localhost" if scenario.secure else "127.0.0.1",
            "port": self.broker.tls_port if scenario.secure else self.proxy.port,
            "client_id": self.name,
            "level": self.case.level,
            "user": self.broker.user,
            "password": PASSWORD,
            "keep_alive_s": KEEP_ALIVE_S,
            "buffer_bytes": 1024,
            "chunks": False,
            "journal": str(self._directory / "journal.flash"),
            "sectors": SECTORS,
            "ca": str(self.broker.certificate.certificate) if scenario.secure and self.broker.certificate else None,
            **scenario.settings,
        }
        self._board = Board(self.case, self._directory, self.seen, settings)
        step: tuple[Any, ...] = ()
        try:
            async with asyncio.timeout(CASE_S):
                await self._peer()
                for step in scenario.steps:
                    await self._step(*step)
                await asyncio.sleep(QUIET_S)
        except (StepFailed, BoardFailed) as failed:
            self.seen.failures.append(f"{step[0]} {step[1]}: {failed}")
        except TimeoutError:
            self.seen.failures.append(f"{' '.join(map(str, step[:2])) or 'the peer'}: no end within {CASE_S:.0f} s")
        finally:
            await self._end()
        if not scenario.secure:
            self.seen.trace = self.proxy.trace
        return judge(self.seen)

    async def _end(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        if self._board is not None:
            await self._board.off()
        self.seen.arrived = [payload for peer in self._peers for one in peer.received.values() for payload in one]
        for peer in self._peers:
            await peer.stop()
        await self.proxy.stop()
        (self._directory / "journal.flash").unlink(missing_ok=True)

    async def _peer(self) -> Peer:
        """Return the peer; the first call makes it."""
        if not self._peers:
            clean = not self.case.scenario.kills
            self._peers.append(Peer(self.broker.port, f"{self.name}p", clean, self.broker.user, PASSWORD))
            await self._peers[0].start()
        return self._peers[0]

    def _topic(self, name: str) -> str:
        return f"{self.name}/{name}"

    async def _step(self, actor: str, verb: str, *arguments: Any) -> None:
        if actor == "board":
            await self._board_step(verb, *arguments)
        elif actor == "peer":
            await self._peer_step(verb, *arguments)
        elif actor == "broker":
            await self._broker_step(verb)
        elif verb == "in":
            await self._until(self._all_taken)
        else:
            await self._until(self._all_arrived)

    def _all_taken(self) -> bool:
        seen = self.seen
        taken = {one.number for one in seen.got}
        return all(number in taken or message.size in seen.oversize for number, message in seen.sent_in.items())

    def _all_arrived(self) -> bool:
        there = {number_of(payload) for one in self._peers[0].received.values() for payload in one}
        return {number for number, message in self.seen.sent_out.items() if message.size} <= there

    async def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.case.scenario.wait_s
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def _board_step(self, verb: str, *arguments: Any) -> None:
        board = self._board
        assert board is not None
        if verb == "start":
            await board.off()
            await board.start(*arguments)
        elif verb == "off":
            await board.off()
        elif verb == "refused":
            try:
                await board.do("connect", seconds=self.case.scenario.wait_s + STEP_S)
                self.seen.refusal = ("", 0)
            except BoardFailed as failed:
                self.seen.refusal = (failed.name, failed.code)
        elif verb == "subscribe":
            topic, qos = arguments
            if await board.do("subscribe", self._topic(topic), qos) is None:
                await board.do("settle")  # the connection was lost: the next one subscribes
        elif verb == "publish":
            topic, numbers, qos, size, retain = arguments
            for number in numbers:
                self.seen.sent_out[number] = Message(number, qos[number % len(qos)], size)
            await board.do("publish", self._topic(topic), numbers, qos, size, retain)
        elif verb == "drain":
            wait_s = int(self.case.scenario.wait_s)
            self.seen.left = await board.do("drain", wait_s, seconds=wait_s + STEP_S)
        else:
            await board.do(verb)

    async def _peer_step(self, verb: str, *arguments: Any) -> None:
        peer = await self._peer()
        if verb == "subscribe":
            try:
                async with asyncio.timeout(STEP_S):
                    await peer.subscribe(self._topic(arguments[0]))
            except TimeoutError:
                raise StepFailed("the broker does not answer SUBSCRIBE") from None
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
        peer = await self._peer()
        if verb == "kill":
            self.proxy.accepting = False
            peer.wait()
            self.broker.kill()
            peer.lost()
        else:
            try:
                await asyncio.to_thread(self.broker.start)
            except BrokerFailed as failed:
                raise StepFailed(str(failed)) from None
            deadline = time.monotonic() + PEER_BACK_S
            while True:
                try:
                    await peer.resumed()
                    break
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise StepFailed("the peer can't connect again") from None
            self.proxy.accepting = True


class Worker:
    """Runs one case after another, against one broker."""

    def __init__(self, broker: Kind, directory: Path):
        self._broker = broker
        self._directory = directory

    async def run(self, case: Case) -> tuple[Case, Verdict, Observed]:
        """Run one case."""
        play = CaseRun(case, self._broker, self._directory / str(case).replace("/", "-"))
        return case, await play.run(), play.seen

    async def stop(self) -> None:
        """Do nothing: no program outlives a case."""


async def run_broker(
    kind: type[Kind],
    cases: list[Case],
    directory: Path,
    certificate: Certificate | None,
    workers: int,
    report: Callable[[Case, Verdict, Observed], None],
) -> None:
    """Start one broker, run its cases, report each, and end the broker.

    Raises:
        BrokerFailed: it does not start.
    """
    broker = kind(directory, certificate)
    try:
        await asyncio.to_thread(broker.start)
        deadline = time.monotonic() + broker.start_deadline_s
        while not broker.ready():
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{broker.name} offers no TLS at port {broker.tls_port}. Its log: {broker.log}")
            await asyncio.sleep(0.05)

        worker = Worker(broker, directory / "cases")
        beside = [case for case in cases if not case.scenario.kills]
        await side_by_side.run_cases(beside, workers, lambda _: worker, lambda result: report(*result))
        alone = [case for case in cases if case.scenario.kills]
        await side_by_side.run_cases(alone, 1, lambda _: worker, lambda result: report(*result))
    finally:
        broker.stop()
