"""With a real mosquitto: a session takeover, a long outage, a burst (for other scenarios see `host_tests/brokers`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from flashmqtt.session.ram import RamStore
from tools.bootstrap import ROOT
from tools.proof.broker import Broker, find_mosquitto

MICROPYTHON = Path(sys.executable).parent / "micropython"
PATIENCE_S = 60  # deadline for expected events, on a busy machine
mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")


def poll_until(condition, *clients: Client, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        for client in clients:
            client.poll(10)


@mosquitto
@pytest.mark.req("W12", "B4")
def test_two_clients_with_same_client_id_back_off(tmp_path):
    with Broker(tmp_path, kind="mosquitto") as broker:
        first = Client("127.0.0.1", broker.port, "same", level=5, backoff=Backoff(base_ms=300, cap_ms=5000))
        second = Client("127.0.0.1", broker.port, "same", level=5, backoff=Backoff(base_ms=300, cap_ms=5000))
        first.connect(PATIENCE_S)
        losses: list[Exception | None] = []
        first.on_disconnect = losses.append
        second.connect(PATIENCE_S)
        poll_until(lambda: losses, first)  # it may be connected again when the call returns
        assert losses[0] is not None  # mosquitto 2.0 only closes the connection; later versions send DISCONNECT 0x8E
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            first.poll(10)
            second.poll(10)
        assert first.link.connects + second.link.connects < 16  # because the delays grow
        first.disconnect()
        second.disconnect()


@mosquitto
@pytest.mark.skipif(not MICROPYTHON.exists(), reason="needs MicroPython")
@pytest.mark.req("S5", "Q6", "B2")
def test_outage_fills_journal_not_ram_and_drains_in_order(tmp_path):
    count = 1500
    broker = Broker(tmp_path, kind="mosquitto", extra="max_queued_messages 0\n")
    board = subprocess.Popen(
        [
            str(MICROPYTHON),
            "-X",
            "heapsize=3M",
            str(Path(__file__).with_name("backlog_case.py")),
            str(broker.port),
            str(count),
        ],
        env={**os.environ, "MICROPYPATH": f"{ROOT / 'firmware'}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        word, pending, grown = board.stdout.readline().split()
        assert (word, int(pending)) == ("stored", count)
        assert int(grown) < 1024  # bytes of heap for 1400 stored messages
        with broker:
            listener = Client("127.0.0.1", broker.port, "listener", buffer_bytes=4096)
            listener.connect(PATIENCE_S)
            got: list[int] = []
            listener.subscribe("backlog", 1, lambda m: got.append(int(m.payload)))
            board.stdin.write("\n")
            board.stdin.flush()
            poll_until(lambda: len(set(got)) == count + 200, listener, seconds=2 * PATIENCE_S)
            listener.disconnect()
            assert board.stdout.readline() == f"drained {count + 200}\n"
            assert board.wait(PATIENCE_S) == 0
    finally:
        board.kill()
        board.wait()
        board.stdin.close()
        board.stdout.close()
    for qos in (1, 2):
        assert [n for n in got if 1 + n % 2 == qos] == [n for n in range(count + 200) if 1 + n % 2 == qos]


def connections_for_burst(tmp_path, level, store):
    """Queue 100 QoS 2 messages for an offline client; return how many connections it needs to receive them."""
    with Broker(tmp_path, kind="mosquitto") as broker:
        # After the first PUBCOMP mosquitto 2.0.11 sends the whole backlog. It ignores its max_inflight_messages (20) and our
        # Receive Maximum. The messages that the store can't hold come with the next connection.
        backoff = Backoff(base_ms=60000, cap_ms=60000)
        board = Client("127.0.0.1", broker.port, "board", store, level=level, backoff=backoff)
        got: list[bytes] = []
        board.connect(5)
        board.subscribe("commands", 2, lambda m: got.append(m.payload))
        board.disconnect()
        operator = Client("127.0.0.1", broker.port, "operator", window=20)
        operator.connect(5)
        for i in range(100):
            operator.publish("commands", b"%d" % i, qos=2)
        assert operator.drain(10)
        operator.disconnect()
        before = board.link.connects
        board.start()
        poll_until(lambda: len(got) >= 100, board)
        board.poll(100)
        assert got == [b"%d" % i for i in range(100)]
        board.disconnect()
        return board.link.connects - before


@mosquitto
@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize(("hold_limit", "connections"), [(100, 1), (40, 2)])
def test_burst_of_qos_2_messages_arrives_in_order_without_delay(tmp_path, level, hold_limit, connections):
    assert connections_for_burst(tmp_path, level, RamStore(hold_limit=hold_limit)) <= connections


@mosquitto
@pytest.mark.req("Q4", "R4")
@pytest.mark.parametrize("level", [4, 5])
def test_journal_holds_burst_of_qos_2_messages_in_one_connection(tmp_path, level):
    store = Journal(RamRegion(16))
    assert connections_for_burst(tmp_path, level, store) == 1 and not store.held()


@mosquitto
@pytest.mark.req("Q8", "P1")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_first_session_of_a_new_journal_outlives_a_restart_of_the_broker(tmp_path, level):
    with Broker(tmp_path, kind="mosquitto") as broker:
        board = Client("127.0.0.1", broker.port, "board", Journal(RamRegion(4)), level=level)
        board.connect(PATIENCE_S)
        got: list[bytes] = []
        board.subscribe("commands", 1, lambda m: got.append(m.payload))
        board.disconnect()
        operator = Client("127.0.0.1", broker.port, "operator")
        operator.connect(PATIENCE_S)
        operator.publish("commands", "on", qos=1)
        assert operator.drain(PATIENCE_S)
        operator.disconnect()
        broker.save()
        broker.kill()
        broker.start()
        board.start()
        poll_until(lambda: got, board)
        assert got == [b"on"]
        board.disconnect()
