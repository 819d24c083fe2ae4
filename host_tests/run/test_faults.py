"""A kill of the broker; the proxy between board and broker, and its cuts."""

import asyncio
import random

import paho.mqtt.client as paho
import pytest
from paho.mqtt import subscribe
from paho.mqtt.enums import CallbackAPIVersion

from tools.command import Failure
from tools.proof import chain
from tools.proof.board import Progress
from tools.proof.broker import Broker, find_mosquitto
from tools.proof.chain import SHARE_INSIDE, cut_link
from tools.proof.packets import PONG
from tools.proof.proxy import Proxy


@pytest.mark.skipif(not find_mosquitto(), reason="mosquitto is not installed")
def test_saved_broker_state_survives_a_kill(tmp_path):
    with Broker(tmp_path, kind="mosquitto", extra="autosave_on_changes false") as broker:
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        client.publish("kept", b"1", qos=1, retain=True).wait_for_publish(30)
        client.loop_stop()
        broker.save()
        broker.kill()
        assert not broker.running
        broker.start()
        found = subscribe.simple("kept", port=broker.port, keepalive=30)
    assert found.payload == b"1"


async def _greeted(port: int) -> bytes:
    """Return a listener's first bytes, or b"" if the connection is refused."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await reader.read(9)
        finally:
            writer.close()
    except OSError:
        return b""


def test_proxy_admits_connections_only_after_all_refusals_are_lifted():
    async def run():
        async def greet(reader, writer):
            writer.write(PONG)
            await writer.drain()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        proxy = Proxy(server.sockets[0].getsockname()[1], random.Random(1))
        await proxy.start()
        heard = [await _greeted(proxy.port)]
        for act, reason in (
            (proxy.refuse, "power"),
            (proxy.refuse, "broker"),
            (proxy.admit, "power"),
            (proxy.admit, "broker"),
        ):
            act(reason)
            heard.append(await _greeted(proxy.port))
        await proxy.stop()
        server.close()
        return heard

    assert asyncio.run(run()) == [PONG, b"", b"", b"", PONG]


def test_cut_inside_a_packet_skips_a_silent_connection():
    class Board:
        running = True
        progress = Progress()

    async def run():
        kept = []  # from Python 3.13 on, a writer that is garbage closes its connection
        server = await asyncio.start_server(lambda *both: kept.append(both), "127.0.0.1", 0)
        proxy = Proxy(server.sockets[0].getsockname()[1], random.Random(1))
        await proxy.start()
        _, silent = await asyncio.open_connection("127.0.0.1", proxy.port)
        while not proxy.connected:
            await asyncio.sleep(0.01)
        proxy.swallow()
        cutting = asyncio.ensure_future(cut_link(Board(), proxy, random.Random(1)))
        await asyncio.sleep(0.05)
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        while not cutting.done():
            writer.write(b"\x32\x07\x00\x03a/b\x00\x0a")
            await asyncio.sleep(0.01)
        for one in (silent, writer):
            one.close()
        await proxy.stop()
        server.close()
        return cutting.result(), proxy.cuts_inside_a_packet

    assert random.Random(1).random() < SHARE_INSIDE
    assert asyncio.run(asyncio.wait_for(run(), 60)) == (True, 1)


def test_board_without_progress_is_reported_and_a_slow_one_is_not(monkeypatch):
    class Board:
        running = True
        console = "console.log"

        def __init__(self):
            self.progress = Progress()

    async def slow(board):
        waiting = asyncio.ensure_future(chain.until(lambda: board.progress.stored == 4, board))
        for board.progress.stored in range(5):
            await asyncio.sleep(0.2)
        await waiting

    monkeypatch.setattr(chain, "STALLED_S", 0.5)
    asyncio.run(slow(Board()))
    with pytest.raises(Failure, match=r"stored and delivered nothing for 0\.5 s\. See console\.log"):
        asyncio.run(chain.until(lambda: False, Board()))
