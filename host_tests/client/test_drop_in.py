"""Typical programs for umqtt.simple and umqtt.robust run with only the import changed (R6).

They run on MicroPython with mosquitto; some tests kill and restart the broker.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from host_tests.waiting import until
from tools.bootstrap import ROOT
from tools.proof.broker import Broker, find_mosquitto

PROGRAMS = Path(__file__).parent / "drop_in"
MICROPYTHON = Path(sys.executable).parent / "micropython"
PATIENCE_S = 60  # deadline for expected events, on a busy machine
MESSAGE = "(b'drop_in', "

pytestmark = [
    pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto"),
    pytest.mark.skipif(not MICROPYTHON.exists(), reason="needs MicroPython"),
]


class Board:
    """A program on MicroPython; `line` returns the next line that it prints."""

    def __init__(self, directory: Path, name: str, *arguments: object):
        source = (PROGRAMS / f"{name}.py").read_text()
        assert "flashmqtt" not in source
        program = directory / f"{name}.py"
        program.write_text(source.replace("umqtt.", "flashmqtt."))
        path = f".frozen:{PROGRAMS}:{ROOT / 'firmware'}"
        self.process = subprocess.Popen(
            [str(MICROPYTHON), "-X", "heapsize=512K", str(program), *map(str, arguments)],
            env={**os.environ, "MICROPYPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        return self._lines.get(timeout=PATIENCE_S)

    def until(self, wanted: str) -> list[str]:
        """Return the lines before the wanted one, without those of messages: a restarted broker repeats some messages."""
        lines = []
        while True:
            line = self.line()
            if line == wanted:
                return lines
            if not line.startswith(MESSAGE):
                lines.append(line)
            assert not line.startswith("Traceback"), [*lines, *self.rest()]

    def past_messages(self) -> str:
        """Return the next line that is not a printed message."""
        while True:
            line = self.line()
            if not line.startswith(MESSAGE):
                return line

    def rest(self) -> list[str]:
        """Return the remaining lines until the program ends."""
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return list(self._lines.queue)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        self.process.stdout.close()


class Peer:
    """Another client: publishes, and records the messages that it receives."""

    def __init__(self, port: int):
        self.heard: list[tuple[str, bytes]] = []
        self._subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="peer")
        self._client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _, __, message: self.heard.append((message.topic, message.payload))
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(PATIENCE_S)

    def publish(self, *payloads: bytes, topic: str = "drop_in") -> None:
        for payload in payloads:
            self._client.publish(topic, payload, 1).wait_for_publish(PATIENCE_S)

    def publish_until(self, board: Board, payload: bytes) -> list[str]:
        """Publish repeatedly until the board prints the payload; return the lines before it."""
        lines: list[str] = []
        seen = threading.Thread(target=lambda: lines.extend(board.until(f"(b'drop_in', {payload!r})")))
        seen.start()
        while seen.is_alive():  # after a kill the broker may lack the subscription until the board restores it
            self.publish(payload)
            seen.join(0.2)
        return lines

    def until(self, *wanted: tuple[str, bytes]) -> None:
        until(lambda: all(self.heard.count(one) >= wanted.count(one) for one in wanted), lambda: self.heard)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path / "broker", kind="mosquitto") as running:
        yield running


@pytest.mark.req("R6")
def test_program_that_publishes_once_delivers_its_message_and_ends(tmp_path, broker):
    with Peer(broker.port) as peer, Board(tmp_path, "pub", broker.port, "pub") as board:
        assert board.rest() == [] and board.process.returncode == 0
        peer.until(("drop_in", b"hello"))


@pytest.mark.req("R6")
def test_button_program_publishes_each_press(tmp_path, broker):
    with Peer(broker.port) as peer, Board(tmp_path, "pub_button", broker.port) as board:
        assert board.line() == "Connected to 127.0.0.1"
        peer.until(("drop_in", b"toggle"), ("drop_in", b"toggle"))
        assert board.rest() == []


@pytest.mark.req("R6")
@pytest.mark.parametrize("how", ["wait", "check"])
def test_subscriber_program_prints_each_message(tmp_path, broker, how):
    with Peer(broker.port) as peer, Board(tmp_path, "sub", broker.port, how) as board:
        assert board.line() == "subscribed"
        peer.publish(b"1", b"2", b"end")
        assert board.rest() == [f"(b'drop_in', b'{payload}')" for payload in ("1", "2", "end")]


@pytest.mark.req("R6")
def test_lamp_program_switches_and_disconnects_at_ctrl_c(tmp_path, broker):
    with Peer(broker.port) as peer, Board(tmp_path, "sub_led", broker.port) as board:
        assert board.line() == "subscribed"
        peer.publish(b"on", b"toggle", b"toggle", b"off", b"end")
        lamp = {"on": 0, "toggle": 1, "toggle ": 0, "off": 1}
        shown = [f"b'drop_in' b'{payload.strip()}' {value}" for payload, value in lamp.items()]
        assert board.rest() == [*shown, "disconnected"] and board.process.returncode == 0


@pytest.mark.req("R6", "B4")
def test_robust_program_survives_a_killed_broker(tmp_path, broker):
    with Board(tmp_path, "sub_robust", broker.port) as board:
        assert [board.line(), board.line()] == ["a new session", "subscribed"]
        for i in range(3):
            with Peer(broker.port) as peer:
                tried = peer.publish_until(board, b"%d" % i)
            assert all(line.startswith("mqtt reconnect: OSError(") for line in tried), tried
            broker.kill()
            line = board.past_messages()
            if not i or not line.startswith(
                "mqtt reconnect"
            ):  # the last message may have come before `connect` returned
                assert line.startswith("mqtt: OSError(")
                line = board.line()
            assert line.startswith("mqtt reconnect: OSError(")
            broker.start()


@pytest.mark.req("R6", "B4")
def test_robust_program_publishes_its_status_on_every_connection(tmp_path, broker):
    with Board(tmp_path, "status_robust", broker.port) as board:
        assert board.line() == "subscribed"
        with Peer(broker.port) as peer:
            peer.until(("status", b"Online"))
        broker.kill()
        assert board.line().startswith("mqtt: OSError(")
        broker.start()
        with Peer(broker.port) as peer:
            peer.until(("status", b"Online"))
            peer.publish_until(board, b"1")  # returns only after the subscription is restored


@pytest.mark.req("R6", "B4")
def test_robust_program_resubscribes_after_its_session_was_taken_over(tmp_path, broker):
    with Board(tmp_path, "resubscribe_robust", broker.port) as board:
        assert [board.line(), board.line()] == ["False", "(b'drop_in', b'message 1')"]
        # A second connection with the same client id: the broker ends the board's connection.
        other = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="resubscribe")
        other.connect("127.0.0.1", broker.port)
        other.loop_start()
        while not other.is_connected():
            time.sleep(0.01)
        other.disconnect()
        other.loop_stop()
        assert board.line().startswith("mqtt: OSError(")
        assert board.rest() == ["None", "(b'drop_in', b'message 3')"]


@pytest.mark.req("R6", "B4")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_program_that_resets_on_errors_gets_the_error(tmp_path, broker, moment):
    if moment == "before":
        broker.kill()
    with Board(tmp_path, "restart", broker.port) as board:
        if moment == "after":
            assert board.line() == "Connected to the broker, subscribed to b'drop_in'"
            with Peer(broker.port) as peer:
                peer.until(("hello", b"Hello #1"))
                peer.publish(b"1")
                assert board.line() == "(b'drop_in', b'1')"
                peer.until(("notification", b"received"))
            broker.kill()
        assert board.rest() == ["Failed to connect to MQTT broker. Reconnecting...", "reset"]


@pytest.mark.req("R6", "B4")
def test_program_that_reconnects_by_hand_survives_a_killed_broker(tmp_path, broker):
    with Board(tmp_path, "by_hand", broker.port) as board:
        assert board.line() == "connected"
        for payload in (b"1", b"2"):
            broker.kill()
            assert board.past_messages() == "lost"
            assert board.line() == "not connected"
            broker.start()
            assert set(board.until("connected")) <= {"not connected"}
            with Peer(broker.port) as peer:
                peer.until(("status", b"online"))
                peer.publish_until(board, payload)
