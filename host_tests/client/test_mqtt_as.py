"""Programs for mqtt_as run with only the import changed, on MicroPython, over an outage of mosquitto; each configuration key."""

import asyncio
import difflib
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from flashmqtt.errors import UsageError
from flashmqtt.mqtt_as import MQTTClient, config
from flashmqtt.session.ram import RamStore
from host_tests.waiting import until
from tools.bootstrap import ROOT
from tools.proof.broker import Broker

PROGRAMS = Path(__file__).parent / "mqtt_as"
MICROPYTHON = Path(sys.executable).parent / "micropython"
LOCAL = """from flashmqtt.mqtt_as import config
config["server"] = "127.0.0.1"
config["port"] = %d
config["client_id"] = "range"
wifi_led = blue_led = lambda on: None
"""


def test_ported_range_program_changes_one_line():
    before, after = ((PROGRAMS / f"range_{name}.py").read_text().splitlines()[1:] for name in ("before", "after"))
    changed = sum(line.startswith("+ ") for line in difflib.ndiff(before, after))
    assert 0 < changed <= len(before) / 3
    assert changed == 1  # the import


@pytest.mark.parametrize("program", ["range_after", "events_after"])
@pytest.mark.req("B4", "Q1", "R4")
def test_program_survives_an_outage(tmp_path, program):
    import paho.mqtt.client as paho

    broker = Broker(tmp_path / "broker", kind="mosquitto").start()
    (tmp_path / "mqtt_local.py").write_text(LOCAL % broker.port)
    (tmp_path / "program.py").write_text((PROGRAMS / f"{program}.py").read_text().replace("sleep(5)", "sleep(0.2)"))
    got: list[str] = []
    person = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="person", clean_session=False)
    person.on_message = lambda _client, _data, message: got.append(message.payload.decode())
    person.on_connect = lambda client, *_: client.subscribe("shed", 1)
    person.reconnect_delay_set(1, 1)
    person.connect("127.0.0.1", broker.port)
    person.loop_start()
    console = tmp_path / "console"
    with console.open("w") as out:
        board = subprocess.Popen(
            [str(MICROPYTHON), "-X", "heapsize=512K", "program.py"],
            cwd=tmp_path,
            env={**os.environ, "MICROPYPATH": f".frozen:{tmp_path}:{ROOT / 'firmware'}"},
            stdout=out,
            stderr=out,
        )
    try:
        until(lambda: len(got) > 2)
        person.publish("foo_topic", "one", 1)
        until(lambda: "message foo_topic one False" in console.read_text())
        for qos in (0, 1, 2):
            person.publish("foo_topic", str(qos) * 5000, qos)
            until(lambda long=f"foo_topic {str(qos) * 5000} False": long in console.read_text())
        broker.stop()
        until(lambda: "\ndown\n" in console.read_text())
        time.sleep(1)
        broker.start()
        until(lambda: console.read_text().count("up\n") == 2 and person.is_connected())
        heard = len(got)
        until(lambda: len(got) > heard + 2)
        person.publish("foo_topic", "two", 1)
        until(lambda: "message foo_topic two False" in console.read_text())
        assert board.poll() is None
    except AssertionError as error:
        raise AssertionError(console.read_text()) from error
    finally:
        board.kill()
        board.wait()
        person.loop_stop()
        broker.stop()
    texts = [text for text in got if text[0].isdigit()]
    numbers = [int(text.split()[0]) for text in texts]
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))  # no message is missing
    if program == "range_after":
        assert "outages: 1" in texts[-1] and "broker: connection lost" in console.read_text()  # DEBUG is set


@pytest.mark.req("B4")
def test_failed_first_connect_raises_oserror_without_retry(tmp_path):
    with Broker(tmp_path / "broker", kind="mosquitto") as broker:
        port = broker.port
    (tmp_path / "mqtt_local.py").write_text(LOCAL % port)
    program = (PROGRAMS / "range_after.py").read_text()
    (tmp_path / "program.py").write_text(program.replace("(config)", "(dict(config, timeout_s=1))"))
    ran = subprocess.run(
        [str(MICROPYTHON), "-X", "heapsize=512K", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MICROPYPATH": f".frozen:{tmp_path}:{ROOT / 'firmware'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("no connection\n") and "broker: not connected" in ran.stdout


def made(**changed):
    return MQTTClient(dict(config, server="127.0.0.1", **changed))


def test_each_configuration_key_sets_its_client_option():
    client = made(
        client_id="me",
        user="u",
        password="p",
        keepalive=120,
        will=("t", "m", True, 1),
        response_time=7,
        store=RamStore(),
    )
    connection = client.connection
    assert (connection.client_id, connection.user, connection.password) == (b"me", b"u", b"p")
    assert (connection.keep_alive_s, connection.will, connection.session.response_ms) == (
        120,
        (b"t", b"m", 1, True),
        7000,
    )
    assert client.link.port == 1883 and connection.clean and not connection._purge
    assert made(ping_interval=7, keepalive=60).connection.keep_alive_s == 8
    assert made(will=("t", "m")).connection.will == (b"t", b"m", 0, False)
    assert made(mqttv5=True).session.level == 5
    once = made(clean=False).connection  # clean_init: only the first connection starts a new session
    assert not once.clean and once._purge
    always = made(clean=False, clean_init=False).connection
    assert not always.clean and not always._purge


@pytest.mark.req("Q8")
@pytest.mark.parametrize("mqttv5", [False, True])
def test_clean_init_discards_the_session_of_an_earlier_run_only_once(tmp_path, mqttv5):
    async def sessions(port):
        present = []
        for _ in range(2):  # the second client is a restarted program
            client = made(port=port, client_id="me", clean=False, mqttv5=mqttv5)
            for _ in range(3):
                present.append(await client.connect())
                await client.disconnect()
        return present

    with Broker(tmp_path / "broker", kind="mosquitto") as broker:
        present = asyncio.run(sessions(broker.port))
    assert present == [False, True, True] * 2


@pytest.mark.parametrize("debug", [False, True])
def test_network_and_client_share_one_log(monkeypatch, debug):
    lines: list[str] = []
    board = types.ModuleType("board")
    board.network_up = lambda ssid, password, country, log: log(f"network: {ssid} {password} {country}")
    board.network_problem = lambda: "wrong password"
    monkeypatch.setitem(sys.modules, "board", board)
    monkeypatch.setattr("flashmqtt.mqtt_as._JOIN_MS", 1)
    monkeypatch.setattr("flashmqtt.mqtt_as.print", lines.append, raising=False)
    monkeypatch.setattr(MQTTClient, "DEBUG", debug)
    client = made(ssid="home", wifi_pw="pw", **({} if debug else {"log": lines.append}))
    with pytest.raises(OSError, match="network: wrong password"):
        asyncio.run(client.connect())
    assert lines == ["network: home pw "]


def test_wifi_is_joined_again_in_each_new_event_loop(monkeypatch):
    joins: list[str] = []
    board = types.ModuleType("board")
    board.network_up = lambda ssid, *_: joins.append(ssid) or True
    monkeypatch.setitem(sys.modules, "board", board)

    async def connects(_client):
        return False

    monkeypatch.setattr("flashmqtt.aio.Client.connect", connects)
    client = made(ssid="home", wifi_pw="pw")
    for runs in (1, 2, 3):
        assert asyncio.run(client.connect()) is False
        assert joins == ["home"] * runs


def test_close_leaves_wifi_until_the_next_connect(monkeypatch):
    calls: list[str] = []
    board = types.ModuleType("board")
    board.network_up = lambda *_: calls.append("up") or True
    board.network_down = lambda: calls.append("down")
    monkeypatch.setitem(sys.modules, "board", board)

    async def connects(_client):
        return False

    monkeypatch.setattr("flashmqtt.aio.Client.connect", connects)

    async def program():
        client = made(ssid="home", wifi_pw="pw")
        await client.connect()
        client.close()
        await asyncio.sleep(1.1)  # the network is checked twice a second
        assert calls == ["up", "down"]
        await client.connect()
        await asyncio.sleep(0.6)
        assert calls[:4] == ["up", "down", "up", "up"]

    asyncio.run(program())


def test_queue_counts_the_messages_that_were_discarded():
    client = made(queue_len=2)
    assert client.queue.discards == 0
    client._blocking.load_waiting().missed = 3
    assert client.queue.discards == 3


def test_unsupported_configuration_is_refused():
    for changed in ({"server": None}, {"gateway": True}, {"will": ("a",)}, {"will": "a"}):
        with pytest.raises(UsageError):
            MQTTClient(dict(config, **{"server": "x", **changed}))


def test_none_as_ssl_params_is_the_same_as_none_of_them():
    assert made(ssl_params=None).isconnected() is False


@pytest.mark.req("W11", "B4")
def test_subscribe_and_unsubscribe_wait_through_a_hang_and_an_outage(tmp_path):
    async def program(broker):
        client = made(port=broker.port, client_id="me", timeout_s=0.3)
        await client.connect()
        os.kill(broker.pid, signal.SIGSTOP)
        asked = asyncio.create_task(client.subscribe("a", 1))
        await asyncio.sleep(0.6)
        os.kill(broker.pid, signal.SIGCONT)
        assert await asked == 1
        broker.stop()
        await client.down.wait()
        tasks = [asyncio.create_task(client.subscribe("b", 1)), asyncio.create_task(client.unsubscribe("a"))]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in tasks)
        broker.start()
        assert await asyncio.gather(*tasks) == [1, 0]
        assert client.isconnected()
        await client.disconnect()

    with Broker(tmp_path / "broker", kind="mosquitto") as broker:
        asyncio.run(program(broker))


@pytest.mark.req("W12")
@pytest.mark.parametrize("queue_len", [0, 4])
def test_level_5_message_without_properties_has_none(tmp_path, queue_len):
    got = []

    async def program(port):
        client = made(
            port=port, client_id="me", mqttv5=True, queue_len=queue_len, subs_cb=lambda *args: got.append(args)
        )
        await client.connect()
        await client.subscribe("a", 1)
        for properties in (None, {0x26: {"name": "value"}}):
            await client.publish("a", "1", qos=1, properties=properties)
            if queue_len:
                got.append(await client.queue.__anext__())
        while len(got) < 2:
            await asyncio.sleep(0.01)
        await client.disconnect()

    with Broker(tmp_path / "broker", kind="mosquitto") as broker:
        asyncio.run(program(broker.port))
    assert got == [(b"a", b"1", False, None), (b"a", b"1", False, {0x26: [("name", "value")]})]


@pytest.mark.req("S5")
def test_publish_waits_while_100_messages_wait(tmp_path):
    async def program(broker):
        client = made(port=broker.port, client_id="me")
        await client.connect()
        broker.stop()
        await client.down.wait()
        tasks = [asyncio.create_task(client.publish("a", str(i), qos=1)) for i in range(103)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in tasks)
        broker.start()
        assert await asyncio.gather(*tasks) == list(range(1, 104))
        await client.disconnect()

    with Broker(tmp_path / "broker", kind="mosquitto") as broker:
        asyncio.run(program(broker))
