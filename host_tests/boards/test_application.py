"""The application on the virtual board, against a real broker: commands, power cuts, sleep, time, the will."""

import asyncio
import json
import os
import random
import socket
import struct
import subprocess
from collections import Counter

import paho.mqtt.client as paho
import pytest

from host_tests.waiting import until_async
from tools.proof.board import VirtualBoard
from tools.proof.broker import Broker
from tools.proof.chain import ABSENCE, POWER
from tools.proof.program import MICROPYTHON, board_image
from tools.proof.wakes import sleep_and_wake

DEVICE = "dev-1"
COMMANDS = f"flashmqtt-commands/{DEVICE}"


class Person:
    """A client of the broker that subscribes to everything and sends commands."""

    def __init__(self, port):
        self.messages = []
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="person", clean_session=False)
        self._client.on_message = lambda client, userdata, message: self.messages.append(message)
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([("flashmqtt/#", 2), ("flashmqtt-live/#", 2), ("homeassistant/#", 1)])
        self._client.loop_start()

    def publish(self, payload):
        self._client.publish(COMMANDS, payload, qos=2).wait_for_publish(30)

    def command(self, **command):
        self.publish(json.dumps(command))

    def packs(self, kind):
        return [
            json.loads(message.payload) for message in self.messages if message.topic == f"flashmqtt/{DEVICE}/{kind}"
        ]

    def replies(self):
        return Counter((pack[0]["vs"], pack[1]["vs"]) for pack in self.packs("replies"))

    def live(self, kind):
        return [message.payload for message in self.messages if message.topic == f"flashmqtt-live/{DEVICE}/{kind}"]

    def stop(self):
        self._client.disconnect()
        self._client.loop_stop()


def run_on_a_board(tmp_path, scenario, settings=None, environment=None):
    """Run a scenario (a coroutine of person and board) on a board that has just been switched on."""

    async def run():
        with Broker(tmp_path / "broker") as broker:
            person = Person(broker.port)
            board = VirtualBoard(
                tmp_path / "board", DEVICE, broker.port, {"interval_ms": 200, "keep_alive_s": 10, **(settings or {})}
            )
            board.environment.update(environment or {})
            try:
                await board.power_on()
                await scenario(person, board)
            finally:
                await board.kill()
                person.stop()

    asyncio.run(run())


@pytest.mark.req("Q4", "B4")
def test_commands_run_and_are_answered_once_across_power_cuts(tmp_path):
    rng = random.Random(7)

    async def scenario(person, board):
        await until_async(lambda: person.packs("readings"))
        for n in range(8):
            await until_async(lambda: board.progress.connects >= 1)
            person.command(id=str(n), do="interval", ms=150 + n)
            await asyncio.sleep(rng.uniform(0.0, 0.12))  # somewhere between its arrival and the end of its handshake
            await board.power_cut(rng)
            await board.power_on()
        await until_async(lambda: len(person.replies()) == 8)
        await asyncio.sleep(0.7)
        assert person.replies() == Counter({(str(n), "done"): 1 for n in range(8)})
        assert json.loads((tmp_path / "board" / "state.json").read_text())["interval_ms"] == 157

    run_on_a_board(tmp_path, scenario)


@pytest.mark.req("B4")
def test_flush_reboot_and_unknown_commands_are_answered(tmp_path):
    async def scenario(person, board):
        await until_async(lambda: person.packs("readings"))
        person.command(id="f", do="flush")
        await until_async(lambda: person.packs("health"))
        (head, *more) = person.packs("health")[0]
        assert {record["n"] for record in [head, *more]} >= {
            "uptime",
            "waiting",
            "stored",
            "dropped",
            "damaged",
            "connects",
            "wear",
            "heap_free",
        }
        person.command(id="x", do="explode")
        person.command(id="r", do="reboot")
        await until_async(lambda: not board.running)
        await board.power_on("reset")
        await until_async(lambda: len(person.packs("boot")) == 2)
        assert [pack[0]["cause"] for pack in person.packs("boot")] == ["power-on", "reset"]
        await until_async(lambda: len(person.replies()) == 3)
        replies = person.replies()
        assert replies[("f", "done")] == replies[("r", "done")] == 1

    run_on_a_board(tmp_path, scenario)


@pytest.mark.req("B4", "R4")
def test_deeply_nested_command_is_refused_and_does_not_stop_the_board(tmp_path):
    async def scenario(person, board):
        await until_async(lambda: person.packs("readings"))
        for payload in (b"[" * 600, b'{"id":' * 90, b'{"id": "' + b"{" * 40 + b'", "do": "flush"}'):
            person.publish(payload)
        await until_async(lambda: len(person.packs("replies")) == 3)
        assert set(person.replies()) == {("", "nested too deeply"), ("{" * 40, "done")}
        person.command(id="1", do="identify")
        await until_async(lambda: person.replies()[("1", "done")])
        assert board.running and len(person.packs("boot")) == 1

    run_on_a_board(tmp_path, scenario)


@pytest.mark.req("B4", "Q7")
def test_status_will_and_discovery_messages_are_published(tmp_path):
    async def scenario(person, board):
        await until_async(lambda: person.live("status") == [b"online"])
        await until_async(
            lambda: any(message.topic.startswith("homeassistant/sensor/dev-1/") for message in person.messages)
        )
        await board.kill()
        await until_async(lambda: person.live("status") == [b"online", b"offline"])

    run_on_a_board(tmp_path, scenario, {"discovery": "homeassistant"})


@pytest.mark.req("B4", "B5")
def test_reboot_of_sleeping_board_happens_after_its_reply_is_delivered(tmp_path):
    async def scenario(person, board):
        await board.ended()
        person.command(id="r", do="reboot")
        await board.power_on("deep-sleep")
        await board.ended()
        await until_async(lambda: person.replies() == Counter({("r", "done"): 1}))
        assert board.console.read_text().count("\nsleep ") == 1, "the second wake ends with the restart"
        await board.power_on("reset")
        await board.ended()
        assert board.console.read_text().count("\nsleep ") == 2
        assert person.replies() == Counter({("r", "done"): 1})

    run_on_a_board(tmp_path, scenario, {"sleep_s": 600, "awake_s": 10})


class TimeServer(asyncio.DatagramProtocol):
    """An NTP server that says it is the year 2031."""

    unix_s = 1924992000

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, packet, address):
        head = bytes((0x24, 2)) + bytes(22) + packet[40:48] + bytes(8)
        self.transport.sendto(head + struct.pack(">II", (self.unix_s + 2208988800) % (1 << 32), 0), address)


@pytest.mark.req("B4")
def test_clock_message_ties_uptime_to_time_after_late_ntp(tmp_path):
    async def scenario(person, board):
        await until_async(lambda: person.packs("readings"))
        assert "bt" not in person.packs("readings")[0][0]
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(TimeServer, local_addr=("127.0.0.1", port))
        await until_async(lambda: person.packs("clock"))
        transport.close()
        (tie,) = person.packs("clock")
        assert abs(tie[0]["bt"] - TimeServer.unix_s) < 30 and tie[0]["up"] > 0
        known = len(person.packs("readings"))
        await until_async(lambda: len(person.packs("readings")) > known + 1)
        later = person.packs("readings")[-1][0]
        assert abs((later["bt"] - later["up"]) - (tie[0]["bt"] - tie[0]["up"])) < 0.01

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run_on_a_board(tmp_path, scenario, {"ntp": f"127.0.0.1:{port}"}, {"FLASHMQTT_CLOCK": "unset"})


@pytest.mark.req("B5", "S5")
def test_sleeping_board_without_network_at_some_wakes_loses_nothing(tmp_path):
    stats, landed = asyncio.run(sleep_and_wake(12, tmp_path, seed=3))
    assert stats.faults[ABSENCE] >= 4
    assert landed.distinct == stats.messages >= 24
    assert landed.again[2] == 0


@pytest.mark.req("B5", "S1")
def test_sleeping_board_with_power_cuts_during_wakes_loses_nothing(tmp_path):
    stats, landed = asyncio.run(sleep_and_wake(12, tmp_path, seed=4, cuts=0.5))
    assert stats.faults[POWER] >= 3
    assert landed.distinct == stats.messages
    assert landed.again[2] == 0


@pytest.mark.req("B4", "S5")
def test_board_keeps_sampling_while_the_broker_is_down(tmp_path):
    async def run():
        broker = Broker(tmp_path / "broker").start()
        person = Person(broker.port)
        board = VirtualBoard(tmp_path / "board", DEVICE, broker.port, {"interval_ms": 100, "keep_alive_s": 10})
        try:
            await board.power_on()
            await until_async(lambda: len(person.packs("readings")) > 3)
            broker.stop()  # not killed: mosquitto acknowledges before it writes to disk, and here the broker must lose nothing
            before = board.progress.stored
            await until_async(lambda: board.progress.stored > before + 10)
            assert board.progress.waiting > 0
            broker.start()
            wanted = board.progress.stored
            await until_async(
                lambda: (
                    {pack[0]["seq"] for pack in person.packs("readings") + person.packs("boot")}
                    >= set(range(1, wanted + 1))
                )
            )
        finally:
            await board.kill()
            person.stop()
            broker.stop()

    asyncio.run(run())


FAILING_BOARD = """
from os import listdir
from sys import exit

from flashmqtt.errors import FlashFailed, StoreForeign

unique_id = reset_cause = lambda: "x"
led = lambda on: None
watchdog = lambda ms: None
watchdog_off = lambda: None


def journal_region(sectors, feed=None):
    raise %s


def reset():
    exit(7)
"""


def run_main(folder):
    """Run the application with a folder's modules in place of its own."""
    return subprocess.run(
        [MICROPYTHON, "-m", "main"],
        cwd=folder,
        env={**os.environ, "MICROPYPATH": f".frozen:{folder}:{board_image()}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        ('FlashFailed("read")', 7, "restart: in 10 s"),  # may succeed the next time
        ('StoreForeign("other data")', 0, "journal: StoreForeign other data"),
        ("OSError(5)", 7, "restart: in 10 s"),
    ],
)
@pytest.mark.req("B4", "S6")
def test_error_that_may_not_come_again_restarts_the_board(tmp_path, error, status, words):
    (tmp_path / "board.py").write_text(FAILING_BOARD % error)
    (tmp_path / "config.json").write_text('{"broker": "127.0.0.1"}')
    ran = run_main(tmp_path)
    assert ran.returncode == status and words in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.req("B4")
def test_board_file_that_fails_once_does_not_end_the_program(tmp_path):
    (tmp_path / "board.py").write_text("raise OSError(5)")
    (tmp_path / "machine.py").write_text("def reset():\n    raise SystemExit(7)\n")
    (tmp_path / "time.py").write_text("def sleep(s):\n    print('sleep', s)\n")
    ran = run_main(tmp_path)
    assert ran.returncode == 7 and "restart: in 10 s; Ctrl-C gives the REPL\nsleep 10" in ran.stdout, ran.stdout


@pytest.mark.req("R4")
def test_discovery_prefix_that_is_not_part_of_a_topic_is_named_and_readings_continue(tmp_path):
    async def scenario(person, board):
        await until_async(lambda: person.packs("readings"))
        await until_async(lambda: "sensor: not announced: load not a topic name" in board.console.read_text())
        before = len(person.packs("readings"))
        await until_async(lambda: len(person.packs("readings")) > before + 1)
        assert "restart:" not in board.console.read_text()

    run_on_a_board(tmp_path, scenario, {"discovery": "home/#"})


@pytest.mark.req("B2", "B4")
def test_console_with_log_disabled_shows_only_boot_and_status(tmp_path):
    async def scenario(person, board):
        await until_async(lambda: len(person.packs("readings")) > 1)
        await until_async(lambda: "status stored=" in board.console.read_text())
        said = {line.split()[0] for line in board.console.read_text().splitlines()}
        assert {"boot", "status"} <= said and not {"network:", "broker:", "stored", "delivered"} & said

    run_on_a_board(tmp_path, scenario, {"log": False, "status_ms": 200})


@pytest.mark.parametrize(
    ("listens", "words"), [(False, "broker: "), (True, "broker: not connected: bad user name or password")]
)
@pytest.mark.req("B4", "W10")
def test_unreachable_or_refusing_broker_is_named_on_the_console(tmp_path, listens, words):
    async def refuse(reader, writer):
        await reader.read(256)
        writer.write(bytes((0x20, 2, 0, 4)))  # CONNACK: bad user name or password
        await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if not listens:
            server.close()
        board = VirtualBoard(tmp_path / "board", DEVICE, port, {"interval_ms": 200})
        try:
            await board.power_on()
            await until_async(lambda: board.console.exists() and words in board.console.read_text())
        finally:
            await board.kill()
            server.close()

    asyncio.run(run())
