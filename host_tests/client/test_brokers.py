"""Against real brokers: a second kind of broker, a session taken over, a long outage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.session.ram import RamStore
from flashmqtt.session.subscriptions import GRANTED
from tools.broker import Broker, find_mosquitto

ROOT = Path(__file__).resolve().parents[2]
MICROPYTHON = Path(sys.executable).parent / "micropython"
mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")


def poll_until(condition, *clients: Client, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        for client in clients:
            client.poll(10)


@pytest.mark.timeout(90)
@pytest.mark.req("Q0", "Q1", "Q2", "Q3", "Q4", "Q7")
def test_amqtt_is_a_broker_like_any_other(tmp_path):
    with Broker(tmp_path, kind="amqtt") as broker:
        # amqtt bounds nothing: all QoS 2 messages are in flight at once, and those of a lost connection are not sent again.
        mqtt = Client("127.0.0.1", broker.port, "me", RamStore(60), backoff=Backoff(base_ms=50, cap_ms=200))
        mqtt.connect(10)
        got: list[tuple[str, bytes, int, bool]] = []
        mqtt.subscribe("a/#", 2, lambda m: got.append((m.topic, m.payload, m.qos, m.retain)))
        for i in range(30):
            mqtt.publish("a/b", b"%d" % i, qos=i % 3)
        assert mqtt.drain(10)
        poll_until(lambda: len(got) == 30, mqtt)
        assert sorted(int(one[1]) for one in got) == list(range(30))  # it raises the QoS, and keeps no order
        mqtt.publish("a/kept", "value", qos=1, retain=True)
        assert mqtt.drain(10)
        other = Client("127.0.0.1", broker.port, "other")
        other.connect(10)
        seen: list[tuple[bytes, bool]] = []
        other.subscribe("a/kept", 1, lambda m: seen.append((m.payload, m.retain)))
        poll_until(lambda: (b"value", True) in seen, other, mqtt)  # amqtt may send it twice
        other.disconnect()
        broker.kill()
        for i in range(30):
            mqtt.publish("a/b", b"late%d" % i, qos=1 + i % 2)
        with broker:
            got.clear()
            assert mqtt.drain(30)  # what was published meanwhile is acknowledged
            # It takes PUBLISH in before SUBSCRIBE has taken effect, although SUBSCRIBE came first: not all of these come back.
            assert {one[1] for one in got} <= {b"late%d" % i for i in range(30)} | {b"value"}
            poll_until(lambda: mqtt.session.subscriptions[0].state == GRANTED, mqtt)
            for i in range(30):
                mqtt.publish("a/b", b"again%d" % i, qos=1 + i % 2)
            poll_until(lambda: len({one[1] for one in got if one[1].startswith(b"again")}) == 30, mqtt, seconds=30)
            assert mqtt.drain(10)
        mqtt.disconnect()


@mosquitto
@pytest.mark.req("W12", "B4")
def test_two_clients_of_one_name_do_not_fight_without_end(tmp_path):
    with Broker(tmp_path, kind="mosquitto") as broker:
        first = Client("127.0.0.1", broker.port, "same", level=5, backoff=Backoff(base_ms=300, cap_ms=5000))
        second = Client("127.0.0.1", broker.port, "same", level=5, backoff=Backoff(base_ms=300, cap_ms=5000))
        first.connect(5)
        second.connect(5)
        poll_until(lambda: not first.connected, first)
        assert first.error is not None  # mosquitto 2.0 just closes; its successors send DISCONNECT 0x8E
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            first.poll(10)
            second.poll(10)
        assert first.link.connects + second.link.connects < 16  # they wait longer each time
        first.disconnect()
        second.disconnect()


@mosquitto
@pytest.mark.skipif(not MICROPYTHON.exists(), reason="needs MicroPython")
@pytest.mark.timeout(120)
@pytest.mark.req("S5", "Q6", "B2")
def test_an_outage_fills_the_journal_and_no_ram_and_drains_in_order(tmp_path):
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
        assert int(grown) < 1024  # for 1400 messages of a journal
        with broker:
            listener = Client("127.0.0.1", broker.port, "listener", buffer_bytes=4096)
            listener.connect(5)
            got: list[int] = []
            listener.subscribe("backlog", 1, lambda m: got.append(int(m.payload)))
            board.stdin.write("\n")
            board.stdin.flush()
            poll_until(lambda: len(set(got)) == count + 200, listener, seconds=60)
            listener.disconnect()
            assert board.stdout.readline() == f"drained {count + 200}\n"
            assert board.wait(10) == 0
    finally:
        board.kill()
        board.wait()
        board.stdin.close()
        board.stdout.close()
    for qos in (1, 2):
        assert [n for n in got if 1 + n % 2 == qos] == [n for n in range(count + 200) if 1 + n % 2 == qos]
