"""The link to a real mosquitto cut at every packet of both QoS flows, with and without a crash of the collector."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import pytest

from tools.collector.collector import Collector, Settings
from tools.collector.health import Health
from tools.landing.log import read_log
from tools.landing.seal import rows_of
from tools.proof import broker as brokers
from tools.proof import packets as p
from tools.proof.proxy import Cut, Proxy

pytestmark = [
    pytest.mark.req("P1", "Q3", "Q4"),
    pytest.mark.skipif(not brokers.find_mosquitto(), reason="mosquitto is not installed"),
]

# Up: CONNECT, SUBSCRIBE, PUBACK 2, PUBREC 2, PUBCOMP 2. Down: CONNACK, SUBACK, PUBLISH 4, PUBREL 2.
PACKETS = 8
CASES = [
    Cut(direction, packet, place, manner)
    for direction, packet, place, manner in itertools.product(
        ("up", "down"), range(1, PACKETS + 1), ("before", "middle", "after"), ("rst", "action")
    )
]
AT_ONCE = 12
DEADLINE_S = 60


async def talk(port, *packets, answers):
    """Connect as a client: send the packets, wait for this number of bytes, disconnect."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(packets))
    await asyncio.wait_for(reader.readexactly(answers), DEADLINE_S)
    writer.write(p.disconnect())
    await writer.drain()
    writer.close()


async def prepare(port, name):
    """Queue four messages, alternately QoS 2 and 1, at the broker for the client of this name."""
    topic = f"flashmqtt/{name}/readings"
    await talk(port, p.connect(name, clean=False), p.subscribe(1, [(topic, 2)]), answers=4 + 5)
    publishes = []
    for n in (1, 2, 3, 4):
        publishes.append(p.publish(topic, b"%d" % n, 1 + n % 2, n))
        if n % 2:
            publishes.append(p.ack(p.PUBREL, n))
    await talk(port, p.connect(f"from-{name}"), *publishes, answers=4 + 4 + 4 + 8 + 8)
    return topic


async def collect_through_cut(directory, broker_port, cut):
    """Collect the four messages through one cut; return the rows, and how many cuts were made."""
    name = str(cut).replace(".", "-")
    topic = await prepare(broker_port, name)
    running: list[asyncio.Task] = []
    collectors: list[Collector] = []
    landing = directory / name

    def start():
        chosen = Settings(
            "127.0.0.1",
            proxy.port,
            name,
            landing,
            topics=((topic, 2),),
            in_flight=20,
            longest_pause_s=0.05,
            segment_seconds=3600,
            commit_count=50,
        )
        collectors.append(Collector(chosen, Health(name, quiet=True)))
        running.append(asyncio.create_task(collectors[-1].run()))

    async def crash():
        running[-1].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running[-1]

    async def crash_and_start():
        await crash()
        start()

    trace = []
    proxy = await Proxy(broker_port, plan=[cut], action=crash_and_start, watch=trace.append).start()
    start()
    deadline = time.monotonic() + DEADLINE_S
    quiet_since, seen = time.monotonic(), None
    while (
        time.monotonic() - quiet_since < 0.4
        or collectors[-1].store.stored < 4
        or collectors[-1].store.held_count
        or not proxy.made  # every cut is made at an existing packet
    ):
        assert time.monotonic() < deadline, f"{cut}: {collectors[-1].store.stored} rows, {len(proxy.made)} cuts"
        await asyncio.sleep(0.02)
        now = (len(trace), len(collectors))
        if now != seen:
            seen, quiet_since = now, time.monotonic()
    await crash()
    await proxy.stop()
    contents = read_log(landing / f"{name}.logs" / "0000000001.log")
    return rows_of(contents).to_pylist(), len(proxy.made)


def test_cut_at_every_packet_loses_nothing_and_marks_qos_1_duplicates(tmp_path):
    async def run():
        gate = asyncio.Semaphore(AT_ONCE)
        cuts = repeated = 0

        async def one(cut):
            nonlocal cuts, repeated
            async with gate:
                rows, made = await collect_through_cut(tmp_path, broker.port, cut)
            cuts += made
            assert {row["payload"] for row in rows} == {b"1", b"2", b"3", b"4"}, cut
            assert sorted(row["payload"] for row in rows if row["qos"] == 2) == [b"1", b"3"], cut
            again = [row for row in rows if row["payload"] in (b"2", b"4")]
            twice = [row["dup"] for n, row in enumerate(again) if row["payload"] in [r["payload"] for r in again[:n]]]
            assert all(twice), cut
            repeated += len(twice)

        await asyncio.gather(*map(one, CASES))
        assert repeated > 0
        return cuts

    with brokers.Broker(tmp_path / "broker", kind="mosquitto", extra="autosave_on_changes false") as broker:
        assert asyncio.run(run()) == len(CASES), "every cut has a packet to be made at"
