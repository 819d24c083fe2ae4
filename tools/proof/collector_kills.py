"""`python -m tools.proof.collector_kills`: kill the collector at random moments under load, then count.

A real mosquitto runs on loopback, and a peer publishes at QoS 1 and 2 all the time. The collector is killed with SIGKILL (half
of the times together with its sealer) and started again. In the end no message may be missing from the segments, and none may be
there twice, except copies at QoS 1 that are marked as copies.

The collector is the chain's. The loop is its own: `make run` and `make soak` kill a collector that is subscribed and has little
to do; here kills also come while it starts, under thousands of messages a second, which no virtual boards could publish.
"""

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tools.command import exit_status, named, number, parser_of, progress_bar
from tools.proof.broker import Broker
from tools.proof.chain import Collector
from tools.proof.faults.peer import Peer
from tools.proof.soak import judge
from tools.proof.soak.judge import Landing

CONFIGURATION = "max_inflight_messages 2000\nautosave_on_changes false\nautosave_interval 1800\nlog_type none"
SEGMENTS = ("--segment-rows", "700", "--segment-seconds", "0.7")
DRAINS = 5
FINISH_S = 60.0
# Limits of the publisher, so that a collector that is killed all the time can keep up. Besides, mosquitto 2.0.11 forgets QoS 2
# messages of a publisher that has more than `max_inflight_messages` in flight.
BATCH = 60
MOST_AHEAD = 1500
MOST_IN_A_LIFE = 1200


class Publisher(Peer):
    """Publishes numbered messages, at QoS 1 and 2 in turn; `sent`: their payloads, by QoS."""

    def __init__(self, port: int) -> None:
        super().__init__(port, "publisher", clean=False)
        self.sent: dict[int, set[bytes]] = {1: set(), 2: set()}

    def publish(self, count: int) -> None:
        """Publish so many messages."""
        for _ in range(count):
            qos = 1 if len(self.sent[1]) == len(self.sent[2]) else 2
            number = len(self.sent[qos])
            payload = b"%d:%d:" % (qos, number) * 5
            self.send(f"flashmqtt/device{number % 7}/readings", payload, qos)
            self.sent[qos].add(payload)


class Outcome:
    """The messages in the segments, compared with the published ones: `missing` and `repeated`, by QoS."""

    def __init__(self, sent: dict[int, set[bytes]], landed: Landing):
        self.published = {qos: len(payloads) for qos, payloads in sent.items()}
        self.missing = {qos: len(payloads - landed.found[qos].keys()) for qos, payloads in sent.items()}
        self.repeated = {qos: landed.again[qos] for qos in sent}
        self.copies = landed.found[0].total()
        strange = [landed.found[0].keys() - sent[1], *(landed.found[qos].keys() - sent[qos] for qos in sent)]
        self.holds = not any((*self.missing.values(), *self.repeated.values(), *strange))


async def kill_collector(directory: Path, kills: int, seed: int) -> Outcome:
    """Run a broker, a publisher and a collector that is killed again and again."""
    rng = random.Random(seed)
    with Broker(directory / "broker", kind="mosquitto", extra=CONFIGURATION) as broker:
        collector = Collector(directory, broker.port, options=SEGMENTS)
        try:
            await collector.drain()  # makes the session at the broker
            publisher = Publisher(broker.port)
            await publisher.start()
            for _ in progress_bar(range(kills), unit=" kills"):
                await collector.launch()
                # Mostly while it collects, sometimes while it starts: how long that takes depends on the machine.
                starting = rng.random() < 0.8
                moment = time.monotonic() + rng.uniform(0, 1.2)
                published = 0
                while starting or time.monotonic() < moment:
                    if publisher.pending < MOST_AHEAD and published < MOST_IN_A_LIFE:
                        publisher.publish(BATCH)
                        published += BATCH
                    await asyncio.sleep(0.01)
                    if starting and (collector.subscribed or not collector.pid):
                        starting = False
                        moment = time.monotonic() + rng.uniform(0, 1.2)
                await collector.kill(alone=rng.random() < 0.5)
            async with asyncio.timeout(FINISH_S):
                while publisher.pending:
                    await asyncio.sleep(0.05)
            await publisher.stop()
            for _ in range(DRAINS):  # on a busy machine, mosquitto may send nothing for longer than `drain` waits
                await collector.drain()
                outcome = Outcome(publisher.sent, judge.landing(collector.landing))
                if not any(outcome.missing.values()):
                    break
        finally:
            await collector.stop()
    return outcome


@named("collector-kills")
def main(argv: list[str] | None = None) -> int:
    """Run it; return 0 if no message is missing or there twice."""
    parser = parser_of("tools.proof.collector_kills", __doc__)
    parser.add_argument("--kills", type=number(int, 1), default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    arguments = parser.parse_args(argv)
    # After Ctrl-C, a sealer whose collector was killed may still write a segment.
    with tempfile.TemporaryDirectory(prefix="collector-kills-", ignore_cleanup_errors=True) as scratch:
        outcome = asyncio.run(kill_collector(Path(scratch), arguments.kills, arguments.seed))
    for qos in (1, 2):
        print(
            f"QoS {qos}: {outcome.published[qos]} published, {outcome.missing[qos]} missing, "
            f"{outcome.repeated[qos]} more than once" + (f", {outcome.copies} copies marked" if qos == 1 else "")
        )
    verdict = "holds" if outcome.holds else "BROKEN"
    print(f"{arguments.kills} kills, seed {arguments.seed}: {verdict}")
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(exit_status(main))
