"""The broker's access rules on the page about security work as described, with a real mosquitto."""

import re
import subprocess
import threading
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from host_tests.waiting import until
from tools.proof.broker import Broker, find_mosquitto

PAGE = (Path(__file__).resolve().parents[2] / "firmware/SECURITY.md").read_text()
RULES = next(block for block in re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "pattern" in block)
PASSWD = Path(find_mosquitto() or "/").parent.parent / "bin/mosquitto_passwd"
EVERYTHING = ("flashmqtt/#", "flashmqtt-live/#", "flashmqtt-commands/#")
NAMES = ("board-1", "board-2", "collector", "operator")

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")


class Account:
    """A client of the broker that subscribes to everything, as far as the rules allow."""

    def __init__(self, port, name):
        self.got = []
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name)
        self.client.username_pw_set(name, "secret-" + name)
        self.client.on_message = lambda client, data, message: self.got.append((message.topic, bytes(message.payload)))
        ready = threading.Event()
        self.client.on_connect = lambda client, *_: client.subscribe([(topic, 1) for topic in (*EVERYTHING, own)])
        self.client.on_subscribe = lambda *_: ready.set()
        own = f"flashmqtt-commands/{name}"
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert ready.wait(30)

    def stop(self):
        self.client.disconnect()
        self.client.loop_stop()


def publish(port, name, topic, payload):
    """Publish with an account; the broker may end the connection where that is forbidden."""
    over = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name + "-once")
    client.username_pw_set(name, "secret-" + name)
    client.on_connect = lambda *_: client.publish(topic, payload, qos=1)
    client.on_publish = client.on_disconnect = lambda *_: over.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert over.wait(30)
    client.disconnect()
    client.loop_stop()


@pytest.fixture
def accounts(tmp_path):
    (tmp_path / "acl").write_text(RULES)
    (tmp_path / "passwords").touch(0o600)
    for name in NAMES:
        subprocess.run([PASSWD, "-b", tmp_path / "passwords", name, "secret-" + name], check=True, capture_output=True)
    extra = f"allow_anonymous false\npassword_file {tmp_path}/passwords\nacl_file {tmp_path}/acl"
    with Broker(tmp_path / "broker", kind="mosquitto", extra=extra) as broker:
        found = {name: Account(broker.port, name) for name in NAMES}
        yield broker.port, found
        for account in found.values():
            account.stop()


@pytest.mark.req("B3")
def test_device_uses_only_its_topics_and_only_operators_send_commands(accounts):
    port, found = accounts
    board, stranger, collector, operator = (found[name] for name in NAMES)
    for name, topic, payload in (
        ("board-1", "flashmqtt/board-1/readings", b"mine"),
        ("board-2", "flashmqtt/board-1/readings", b"forged"),
        ("board-2", "flashmqtt-commands/board-1", b"forged command"),
        ("collector", "flashmqtt-commands/board-1", b"not the collector's"),
        ("board-1", "flashmqtt-live/board-1/status", b"online"),
        ("operator", "flashmqtt/board-1/readings", b"not the operator's"),
        ("operator", "flashmqtt-commands/board-1", b"command"),
        ("operator", "flashmqtt-commands/board-2", b"last"),
        ("board-1", "flashmqtt/board-1/readings", b"last"),
    ):
        publish(port, name, topic, payload)
    until(
        lambda: (
            (("flashmqtt-commands/board-2", b"last") in stranger.got)
            and all(("flashmqtt/board-1/readings", b"last") in one.got for one in (collector, operator))
        )
    )
    assert set(board.got) == {("flashmqtt-commands/board-1", b"command")}
    assert set(stranger.got) == {("flashmqtt-commands/board-2", b"last")}
    assert collector.got == [("flashmqtt/board-1/readings", b"mine"), ("flashmqtt/board-1/readings", b"last")]
    assert set(operator.got) == {
        ("flashmqtt/board-1/readings", b"mine"),
        ("flashmqtt/board-1/readings", b"last"),
        ("flashmqtt-live/board-1/status", b"online"),
    }


@pytest.mark.req("B3")
@pytest.mark.parametrize("queued", [1000, 0])
@pytest.mark.parametrize("qos", [1, 2])
def test_forbidden_message_at_level_4_is_dropped_without_an_answer_that_tells_so(tmp_path, qos, queued):
    (tmp_path / "acl").write_text(RULES)
    extra = f"acl_file {tmp_path}/acl\nmax_queued_messages {queued}"
    events = []
    with Broker(tmp_path / "broker", kind="mosquitto", extra=extra) as broker:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="board-2", reconnect_on_failure=False)
        client.username_pw_set("board-2")
        client.on_connect = lambda *_: client.publish("flashmqtt/board-1/readings", b"forged", qos=qos)
        client.on_publish = lambda client, data, mid, reason, _: events.append(f"acknowledged: {reason}")
        client.on_disconnect = lambda *_: events.append("closed")
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        until(lambda: events, lambda: events)
        client.disconnect()
        client.loop_stop()
    # 2.0.11 closes the connection if the queue has no limit; other versions acknowledge the message then, too.
    assert events[0] == "acknowledged: Success" or (not queued and events[0] == "closed")
