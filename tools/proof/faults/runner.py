"""Runs fault cases: a device, a proxy with a plan of cuts, a broker, and a peer.

Cases run side by side in workers. A worker has one device process for its cases, and its own broker for cases that kill the
broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.broker import Broker
from tools.children import Child
from tools.proof import packets as p
from tools.proof import side_by_side
from tools.proof.faults.audit import audit
from tools.proof.faults.cases import Case, Outcome, judge
from tools.proof.faults.compiled import compile_library, program_on
from tools.proof.faults.peer import Peer
from tools.proof.proxy import UP, Proxy, Seen

HEAP = "192K"
CASE_S = 120.0
QUIET_S = 0.03
AGAIN_S = 0.3
_OWN_BROKER = ("kill", "lost", "lostdrop")
_serial = itertools.count(1)


@dataclass
class Verdict:
    """A case with its outcome and problems."""

    case: Case
    outcome: Outcome
    problems: list[str]

    @property
    def heap(self) -> int:
        """Bytes on MicroPython's heap after the case."""
        return self.outcome.heap

    def counts(self) -> dict[str, int]:
        """Return the counts."""
        outcome = self.outcome
        return {
            "cuts": outcome.made,
            "lost": outcome.lost,
            "duplicates_qos2": outcome.duplicates,
            "not_reached": int(outcome.made < len(self.case.cuts)),
            "repeated_by_the_broker": int(bool(outcome.repeated)),
        }

    def details(self) -> list[str]:
        """Return the details, in lines."""
        outcome = self.outcome
        return [
            f"received {outcome.received}, handed over {outcome.handed}",
            f"delivered {outcome.delivered}, in doubt {outcome.doubtful}",
            *packet_lines(outcome.trace, self.case.level),
            *(f"the device: {error}" for error in outcome.errors),
        ]


def packet_lines(trace: list[Seen], level: int) -> Iterator[str]:
    """Yield a line for each packet that a proxy saw."""
    readers: dict[tuple[int, str], p.Reader] = defaultdict(lambda: p.Reader(level))
    for seen in trace:
        try:
            found = readers[seen.connection, seen.direction].feed(seen.content)
            text = ", ".join(f"{one} {one.payload[:12]!r}" if one.payload else f"{one}" for one in found)
        except p.Wrong as wrong:
            text = f"{seen.content.hex(' ')}: {wrong}"
        passed = "" if seen.whole else f"   cut after {seen.passed} of {len(seen.content)} bytes"
        yield f"{seen.at_s:6.3f} s  {seen.connection} {'->' if seen.direction == UP else '<-'} {text}{passed}"


class Device:
    """The program on a board that reads one case after another."""

    def __init__(self, interpreter: str, directory: Path, heap: str = HEAP):
        self.interpreter = interpreter
        self._heap = heap
        self._directory = directory
        self._child: Child | None = None
        self._said: asyncio.Queue[str] = asyncio.Queue()

    async def lines(self, command: str) -> AsyncIterator[list[str]]:
        """Send a command to the program, after starting it if necessary; yield the words of each answer."""
        if self._child is None or not self._child.running:
            module = (
                "tools.proof.faults.device_aio" if self.interpreter.endswith("aio") else "tools.proof.faults.device"
            )
            program, environment = program_on(self.interpreter, module, self._heap)
            self._said = asyncio.Queue()
            log = self._directory / "device.log"
            self._child = Child(program, self._directory, environment, log, self._said.put_nowait, talks=True)
            await self._child.start()
        self._child.write(command)
        while line := await self._said.get():
            yield line.split(" ")
        yield ["failed", "", "the device's program ended:", *" | ".join(self._child.logged(3).splitlines()).split()]

    async def stop(self) -> None:
        """End it."""
        if self._child is not None:
            await self._child.kill()


class Worker:
    """Runs one case after another."""

    def __init__(self, directory: Path, shared: dict[str, Broker], heap: str):
        self.directory = directory
        self._heap = heap
        directory.mkdir(parents=True, exist_ok=True)
        self._shared = shared
        self._devices: dict[str, Device] = {}
        self._peers: dict[str, Peer] = {}
        self._own: dict[str, Broker] = {}

    async def stop(self) -> None:
        """End the programs that it started."""
        for device in self._devices.values():
            await device.stop()
        for peer in self._peers.values():
            await peer.stop()
        for broker in self._own.values():
            broker.kill()

    def _broker(self, kind: str) -> Broker:
        if kind not in _OWN_BROKER:
            return self._shared[kind]
        if kind not in self._own:
            self._own[kind] = Broker(self.directory / kind, kind="mosquitto").start()
        return self._own[kind]

    async def _peer(self, kind: str) -> Peer:
        if kind not in self._peers:
            port = self._broker(kind).port
            self._peers[kind] = await Peer(port, f"peer{next(_serial)}", clean=kind not in _OWN_BROKER).start()
        return self._peers[kind]

    async def _restart(self, broker: Broker, case: Case, proxy: Proxy) -> None:
        """Let the broker write its database, kill it, and start it again; the peer connects first.

        Mosquitto acknowledges a message before it writes it. A kill in between would lose messages without a fault of a client,
        and what the peer and the broker finish after the writing would come twice.
        """
        peer = await self._peer(case.broker)
        proxy.accepting = False
        peer.wait()
        await asyncio.sleep(QUIET_S)
        await peer.settled()
        await asyncio.to_thread(broker.save)
        broker.kill()
        if case.broker != "kill":
            (broker.directory / "mosquitto.db").unlink(missing_ok=True)
        peer.lost()
        await asyncio.to_thread(broker.start)
        await peer.resumed()
        proxy.accepting = True

    async def run(self, case: Case) -> Verdict:
        """Run one case."""
        broker = self._broker(case.broker)
        peer = await self._peer(case.broker)
        peer.begin()
        outcome = Outcome()
        name = f"c{next(_serial)}"
        proxy = Proxy(broker.port, plan=list(case.cuts), action=lambda: self._restart(broker, case, proxy), watch=True)
        await asyncio.gather(proxy.start(), peer.resumed())
        if case.interpreter not in self._devices:
            self._devices[case.interpreter] = Device(case.interpreter, self.directory, self._heap)
        device = self._devices[case.interpreter]
        try:
            async with asyncio.timeout(CASE_S):  # wait_for of Python 3.11 may swallow a Ctrl-C
                await self._follow(case, name, proxy, peer, device, outcome)
        except TimeoutError:
            outcome.failure = f"hung: no end within {CASE_S:.0f} s"
            await device.stop()
        finally:
            await proxy.stop()
        outcome.trace, outcome.made = proxy.trace, len(proxy.made)
        wire = audit(case, proxy.trace)
        outcome.repeated, outcome.released, outcome.forgot = wire.repeated, wire.released, wire.forgot
        outcome.uncertain, outcome.unproved = wire.uncertain, wire.unproved
        return Verdict(case, outcome, judge(case, outcome) + wire.problems)

    async def _follow(self, case: Case, name: str, proxy: Proxy, peer: Peer, device: Device, outcome: Outcome) -> None:
        topic = f"faults/{name}"
        if case.flow != "in":
            await peer.subscribe(topic)
        image = self.directory / f"{name}.flash"
        command = (
            f"case {name} {proxy.port} {case.level} {case.qos} {case.flow} {case.count} {case.window} {case.size} "
            f"{case.store} {'no' if case.broker == 'lostdrop' else 'yes'} {image}"
        )
        sending: asyncio.Task | None = None
        async for kind, _, *words in device.lines(command):
            if kind == "ready":
                inbound = topic + ("/in" if case.flow == "both" else "")
                sending = asyncio.ensure_future(self._send(case, inbound, peer, proxy))
            elif kind == "got":
                outcome.handed.append(int(words[0]))
            elif kind == "delivered":
                outcome.delivered.append(int(words[0]))
            elif kind == "doubt":
                outcome.doubtful.append(int(words[0]))
            elif kind == "error":
                outcome.errors.append(" ".join(words).strip())
            elif kind == "end":
                outcome.connections, outcome.heap = int(words[0]), int(words[1])
                break
            else:
                outcome.failure = f"the device failed: {' '.join(words).strip()}"
                break
        if sending is not None:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        image.unlink(missing_ok=True)
        if case.flow != "in" and not outcome.failure:
            marker = peer.send(topic, b"0;end", 1)
            await peer.until(lambda: b"0;end" in peer.received[topic], 5)
            await marker
            peer.unsubscribe(topic)
            outcome.received = [int(body.split(b";")[0]) for body in peer.received.pop(topic) if body != b"0;end"]

    async def _send(self, case: Case, topic: str, peer: Peer, proxy: Proxy) -> None:
        """Send the numbered messages to the device, and then "end"."""
        for number in range(1, case.count + 1):
            peer.send(topic, f"{number};".encode().ljust(case.size, b"."), case.qos)
        peer.send(topic, b"end", case.qos or 1)
        if case.broker in _OWN_BROKER:
            # The broker may have lost this message: repeat it until the device has received it.
            while True:
                await asyncio.sleep(AGAIN_S)
                if proxy.made:
                    peer.send(topic, b"end", case.qos or 1)


async def run_cases(
    cases: Iterable[Case], workers: int, report: Callable[[Verdict], Iterable[Case] | None], heap: str = HEAP
) -> None:
    """Run fault cases side by side; `report` returns further cases."""
    cases = list(cases)
    if any(case.interpreter.startswith("mpy") for case in cases):
        compile_library()  # once, and outside the time limit of a case
    with tempfile.TemporaryDirectory(prefix="flashmqtt-faults-") as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)
        shared: dict[str, Broker] = {}
        for kind in {case.broker for case in cases} - set(_OWN_BROKER):
            shared[kind] = Broker(directory / kind, kind=kind, extra="persistence false\nautosave_on_changes false")
            stack.callback(shared[kind].start().kill)
        await side_by_side.run_cases(cases, workers, lambda n: Worker(directory / f"w{n}", shared, heap), report)
