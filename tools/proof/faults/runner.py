"""Runs fault cases: a device, a proxy with a plan of cuts, a broker, and a peer.

Cases run side by side in workers. A worker has one device process for its cases, and its own broker for cases that kill the
broker.
"""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.proof.broker import Broker
from tools.proof.faults.audit import audit
from tools.proof.faults.cases import Case, Outcome, judge
from tools.proof.faults.peer import Peer
from tools.proof.program import BoardFailed, Program, failure_of, holds
from tools.proof.proxy import Proxy

HEAP = "192K"
CASE_S = 120.0
DRAIN_S = 25
COMMON = {"face": "client", "pause_ms": 0, "keep_alive_s": 2, "response_s": 1, "backoff": (10, 40, 20)}
SECTORS = 16
QUIET_S = 0.03
AGAIN_S = 0.3
_OWN_BROKER = ("kill", "lost", "lostdrop")
_serial = itertools.count(1)


def settings(client_id: str, port: int, level: int, journal: Path | None = None, **more: Any) -> dict[str, Any]:
    """Return the settings of a case's client, for `tools.proof.device`; `more` adds others."""
    where = {"host": "127.0.0.1", "port": port, "client_id": client_id, "level": level}
    store = {"journal": str(journal or ""), "sectors": SECTORS, "takes_all": True}
    return {**COMMON, **where, **store, **more}


async def play(
    program: Program, topic: str, case: Case, ready: Callable[[], object] | None, again: bool, patient: bool
) -> list[int]:
    """Let a device go through a case's flow; return its number of connections, and the bytes on MicroPython's heap.

    The flow "out" publishes `count` numbered messages, the first half before there is a connection. The flow "in" receives
    messages until the last one. The flow "both" publishes at QoS 1 and 2 in turn and receives, in one session.

    Args:
        program: started with the case's settings.
        topic: of the messages out; those of the flow "both" to the device have another.
        case: the flow, and its number, size and QoS of messages.
        ready: called when the subscription is granted; None: do not wait for that.
        again: connect once more at the end, which shows whether a message comes a second time.
        patient: the client tries again if the broker refuses its first connection.

    Raises:
        BoardFailed, ProgramEnded: a step failed.
    """
    out, inward = case.flow != "in", case.flow != "out"
    quality = (2, 1) if case.flow == "both" else (case.qos,)
    half = case.count // 2 + 1 if case.qos else 1
    steps: list[tuple[Any, ...]] = [("subscribe", inbound(topic, case), 2)] if inward else []
    steps += [("publish", topic, list(range(1, half)), quality, case.size, False)] if out else []
    steps += [("connect",)]
    steps += [("publish", topic, list(range(half, case.count + 1)), quality, case.size, False)] if out else []
    steps += [("settle",)] if inward and ready else []
    steps += [("finish", DRAIN_S), ("linger",)] if inward else [("drain", DRAIN_S)]
    steps += [("disconnect",), ("connect",), ("linger",)] if again else []
    answers = [program.do(*step) for step in (*steps, ("disconnect",), ("over",))]
    try:
        for step, answer in zip(steps, answers, strict=False):
            try:
                await answer
            except BoardFailed as failed:
                if not patient or (*step, failed.name) != ("connect", "ConnectRefused"):
                    raise
            if step == ("settle",) and ready:
                ready()
        return (await asyncio.gather(*answers[-2:]))[-1]
    except BaseException:
        await program.off()  # it may be anywhere in the flow
        await asyncio.gather(*answers, return_exceptions=True)
        raise


def inbound(topic: str, case: Case) -> str:
    """Return the topic of the messages to the device."""
    return topic + ("/in" if case.flow == "both" else "")


async def arrived(peer: Peer, topic: str) -> list[int]:
    """Return the numbers of the messages that the peer has received, up to one that it sends to itself now."""
    marker = peer.send(topic, b"0;end", 1)
    await holds(lambda: b"0;end" in peer.received[topic], 5)
    await marker
    peer.unsubscribe(topic)
    return [int(body.split(b";")[0]) for body in peer.received.pop(topic) if body != b"0;end"]


class Worker:
    """Runs one case after another."""

    def __init__(self, directory: Path, shared: dict[str, Broker], heap: str):
        self.directory = directory
        self._heap = heap
        directory.mkdir(parents=True, exist_ok=True)
        self._shared = shared
        self._programs: dict[tuple[str, str], Program] = {}
        self._peers: dict[str, Peer] = {}
        self._own: dict[str, Broker] = {}

    async def stop(self) -> None:
        """End the programs that it started, and the shared brokers."""
        for program in self._programs.values():
            await program.off()
        for peer in self._peers.values():
            await peer.stop()
        for broker in (*self._own.values(), *self._shared.values()):
            broker.kill()

    def program(self, interpreter: str, heap: str = "") -> Program:
        """Return its board's program on this interpreter; `heap`: of another size than usual."""
        key = interpreter, heap or self._heap
        if key not in self._programs:
            self._programs[key] = Program(interpreter, self.directory, key[1])
        return self._programs[key]

    def broker(self, kind: str) -> Broker:
        """Return the broker of this kind, started."""
        if kind in _OWN_BROKER and kind not in self._own:
            self._own[kind] = Broker(self.directory / kind, kind="mosquitto").start()
        elif kind not in _OWN_BROKER and kind not in self._shared:
            extra = "persistence false\nautosave_on_changes false"
            self._shared[kind] = Broker(self.directory.parent / kind, kind=kind, extra=extra).start()
        return self._own[kind] if kind in _OWN_BROKER else self._shared[kind]

    async def peer(self, kind: str) -> Peer:
        """Return its peer at the broker of this kind, connected."""
        if kind not in self._peers:
            port = self.broker(kind).port
            self._peers[kind] = await Peer(port, f"peer{next(_serial)}", clean=kind not in _OWN_BROKER).start()
        return self._peers[kind]

    async def _restart(self, broker: Broker, case: Case, proxy: Proxy) -> None:
        """Let the broker write its database, kill it, and start it again; the peer connects first.

        Mosquitto acknowledges a message before it writes it. A kill in between would lose messages without a fault of a client,
        and what the peer and the broker finish after the writing would come twice.
        """
        peer = await self.peer(case.broker)
        proxy.refuse("kill")
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
        proxy.admit("kill")

    async def run(self, case: Case) -> Outcome:
        """Run one case."""
        broker = self.broker(case.broker)
        peer = await self.peer(case.broker)
        peer.begin()
        outcome = Outcome(case=case)
        name = f"c{next(_serial)}"
        plan, watch = list(case.cuts), outcome.trace.append
        proxy = Proxy(broker.port, plan=plan, action=lambda: self._restart(broker, case, proxy), watch=watch)
        await asyncio.gather(proxy.start(), peer.resumed())
        try:
            program = self.program(case.interpreter.removesuffix("aio"))
            following = self._follow(case, name, proxy, peer, program, outcome)
            outcome.failure = await failure_of(following, CASE_S)
        finally:
            await proxy.stop()
        outcome.made = len(proxy.made)
        outcome.wire = audit(case, outcome.trace, outcome.gave_up)
        outcome.problems = judge(outcome)
        return outcome

    async def _follow(
        self, case: Case, name: str, proxy: Proxy, peer: Peer, program: Program, outcome: Outcome
    ) -> None:
        topic = f"faults/{name}"
        if case.flow != "in":
            await peer.subscribe(topic)
        image = self.directory / f"{name}.flash" if case.store == "journal" else None
        aio = case.interpreter.endswith("aio")
        more = {"face": "aio" if aio else "client", "window": case.window, "republish": case.broker != "lostdrop"}
        settled = asyncio.Event()
        sending = asyncio.ensure_future(self._send(case, inbound(topic, case), peer, proxy, settled))
        program.note = outcome.note
        try:
            await program.start(settings(name, proxy.port, case.level, image, **more))
            both = case.flow == "both"
            again, patient = case.flow == "in" or (aio and both), aio or both
            outcome.connections, outcome.heap = await play(program, topic, case, settled.set, again, patient)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if image:
                image.unlink(missing_ok=True)
        if case.flow != "in":
            outcome.received = await arrived(peer, topic)

    async def _send(self, case: Case, topic: str, peer: Peer, proxy: Proxy, settled: asyncio.Event) -> None:
        """Send the numbered messages to the device, when it has subscribed, and then "end"."""
        await settled.wait()
        for number in range(1, case.count + 1):
            peer.send(topic, f"{number};".encode().ljust(case.size, b"."), case.qos)
        peer.send(topic, b"end", case.qos or 1)
        if case.broker in _OWN_BROKER:
            # The broker may have lost this message: repeat it until the device has received it.
            while True:
                await asyncio.sleep(AGAIN_S)
                if proxy.made:
                    peer.send(topic, b"end", case.qos or 1)
