"""Each example runs almost unchanged on MicroPython, with a broker that has the requirements of the example's service."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from host_tests.client.test_tls import make_ca, make_certificate
from host_tests.waiting import until
from tools.bootstrap import ROOT
from tools.proof.broker import Broker, find_mosquitto
from tools.proof.program import board_image

EXAMPLES = {path.stem: path.read_text() for path in sorted((ROOT / "firmware/examples").glob("*.py"))}
MICROPYTHON = str(Path(sys.executable).parent / "micropython")
PASSWD = Path(find_mosquitto() or "/").parent.parent / "bin/mosquitto_passwd"
HEAP = "256K"  # a machine word is twice as long as on a board
FLASH = {"FLASHMQTT_FLASH_BYTES": str(64 * 4096)}
BIG = 1024 * 1024
KEY = base64.b64decode("c2l4dGVlbi1ieXRlcy1rZXk=")

pytestmark = [
    pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]


class Person:
    """Another client at the broker: records the messages that it receives, and can publish."""

    def __init__(self, port: int, user: str = "", topics: tuple[str, ...] = ("#",)):
        self.got: list[tuple[str, bytes, int]] = []
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, clean_session=True)
        if user:
            self.client.username_pw_set(user, "its password")
        self.client.on_message = lambda client, data, message: self.got.append(
            (message.topic, bytes(message.payload), message.qos)
        )
        ready = threading.Event()
        self.client.on_connect = lambda client, *_: client.subscribe([(topic, 2) for topic in topics])
        self.client.on_subscribe = lambda *_: ready.set()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        assert ready.wait(60)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        self.client.publish(topic, payload, qos, retain).wait_for_publish(60)

    def wait(self, condition, console: Path) -> None:
        until(lambda: condition(self.got), lambda: f"{str(self.got[-5:])[:500]}\n{console.read_text()[-2000:]}", 90)

    def __enter__(self) -> Person:
        return self

    def __exit__(self, *exception) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Front:
    """A cloud's TLS endpoint: requires the server's name (SNI), and optionally a client certificate and an approved CONNECT."""

    def __init__(self, made: Path, port: int, client_certificate: bool = False, allows=lambda connect: True):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(made / "good.crt", made / "good.key")
        if client_certificate:
            self.context.load_verify_locations(made / "ca.crt")
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.names: list[str | None] = []
        self.context.sni_callback = self._named
        self._behind = port
        self._allows = allows
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _named(self, connection, name, context):
        self.names.append(name)
        return None if name == "localhost" else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._server.accept()
                threading.Thread(target=self._one, args=(plain,), daemon=True).start()

    def _one(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), plain, self.context.wrap_socket(plain, server_side=True) as secured:
            connect = secured.recv(4096)
            if not self._allows(connect):
                return
            with socket.create_connection(("127.0.0.1", self._behind)) as behind:
                behind.sendall(connect)
                threading.Thread(target=self._back, args=(behind, secured), daemon=True).start()
                while data := secured.recv(4096):
                    behind.sendall(data)

    @staticmethod
    def _back(behind: socket.socket, secured: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            while data := behind.recv(4096):
                secured.sendall(data)

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *exception) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_ca(folder, "ca")
    make_certificate(folder, "good", "ca", 30)
    make_certificate(folder, "board", "ca", 30, "greenhouse-1")
    return folder


@contextlib.contextmanager
def running(folder: Path, name: str, port: int, host: str = "localhost", changes=()):
    """Run an example in a folder of its own; yield the file with its output."""
    text = EXAMPLES[name]
    text, hosts = re.subn(r'^HOST = "[^"]*"', f'HOST = "{host}"', text, flags=re.MULTILINE)
    text, ports = re.subn(r"^PORT = \d+", f"PORT = {port}", text, flags=re.MULTILINE)
    assert hosts == ports == 1
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "example.py").write_text(text)
    console = folder / "console"
    with console.open("a") as output:
        board = subprocess.Popen(
            [MICROPYTHON, "-X", f"heapsize={HEAP}", "example.py"],
            cwd=folder,
            env={**os.environ, "MICROPYPATH": f".frozen:{board_image()}", "FLASHMQTT_FLASH_TIME": "0", **FLASH},
            stdout=output,
            stderr=output,
        )
        try:
            yield console
        finally:
            board.kill()
            board.wait()


def with_tls(folder: Path, made: Path) -> None:
    """Copy the certificate files to the program's folder, with the names that the examples use."""
    for source, target in (("ca.crt", "ca.pem"), ("board.crt", "board.crt"), ("board.key", "board.key")):
        shutil.copy(made / source, folder / target)


def accounts(folder: Path, *names: str) -> str:
    """Return mosquitto configuration lines that admit only these users, all with the same password."""
    (folder / "passwords").touch(0o600)
    for name in names:
        subprocess.run([PASSWD, "-b", folder / "passwords", name, "its password"], check=True, capture_output=True)
    return f"allow_anonymous false\npassword_file {folder}/passwords\n"


def test_examples_are_short_and_each_has_a_test():
    tests = Path(__file__).read_text()
    for name, text in EXAMPLES.items():
        assert len(text.splitlines()) < 60, name
        assert f'"{name}"' in tests, name
        assert text.startswith('"""'), name


def test_each_example_logs_client_and_network():
    for name, text in EXAMPLES.items():
        assert text.count("log=") == 1 + text.count("network_up("), name  # of the client, and of each network_up


@pytest.mark.req("B1")
@pytest.mark.parametrize(("name", "qos"), [("sensor", 2), ("tasks", 1)])
def test_sensor_readings_reach_the_broker(tmp_path, name, qos):
    with (
        Broker(tmp_path / "broker") as broker,
        Person(broker.port) as person,
        running(tmp_path, name, broker.port) as said,
    ):
        person.wait(
            lambda got: {("greenhouse-1/load", qos), ("greenhouse-1/memory", qos)} <= {(t, q) for t, _, q in got}, said
        )
        person.wait(lambda got: "\ndelivered 2\n" in said.read_text(), said)
        lines = said.read_text().splitlines()
        for line in (
            "network: this machine's",
            "broker: connecting to",
            "broker: connected,",
            "stored 1: greenhouse-1/load",
            "delivered 1",
        ):
            assert sum(one.startswith(line) for one in lines) == 1, lines
        if name == "tasks":
            person.publish("greenhouse-1/interval", b"soon", 1)  # does not end the program
            person.publish("greenhouse-1/interval", b"7", 1)
            person.wait(lambda got: ("greenhouse-1/interval/now", b"7", 1) in got, said)


NTPTIME = """
import board

asked = 0


def settime():
    global asked
    asked += 1
    if asked < 3:
        raise OSError(110)
    board.set_clock(1800000000)
"""


@pytest.mark.parametrize("name", [name for name, text in EXAMPLES.items() if "ntptime" in text])
@pytest.mark.req("B1", "B4")
def test_example_asks_the_time_again_if_no_answer_came(tmp_path, monkeypatch, name):
    (tmp_path / "ntptime.py").write_text(NTPTIME)
    text = EXAMPLES[name]
    ends = text[text.index("store = ") :]
    changes = [(ends, 'print("clock", board.clock())\n'), ("time.sleep(1)", "time.sleep(0)")]
    monkeypatch.setenv("FLASHMQTT_CLOCK", "unset")
    with running(tmp_path, name, 1, changes=changes) as said:
        until(lambda: "clock 18000000" in said.read_text(), said.read_text)


@pytest.mark.req("B1", "Q2")
def test_commands_queued_before_board_start_are_executed(tmp_path):
    with Broker(tmp_path / "broker") as broker, Person(broker.port) as person:
        with running(tmp_path, "commands", broker.port) as said:
            person.publish("pump-1/set/speed", b"0", 2, retain=True)
            person.wait(lambda got: ("pump-1/speed", b"0", 2) in got, said)
        for speed in (b"10", b"20", b"30"):
            person.publish("pump-1/set/speed", speed, 2)
        with running(tmp_path, "commands", broker.port) as said:
            person.wait(lambda got: ("pump-1/speed", b"30", 2) in got, said)
        # With each subscription the broker sends the retained command again, before or after the queued ones.
        speeds = [payload for topic, payload, _ in person.got if topic == "pump-1/speed" and payload != b"0"]
        assert speeds == [b"10", b"20", b"30"]


@pytest.mark.parametrize(
    ("name", "folder", "sent", "answer"),
    [
        ("commands", "speed.new", "pump-1/set/speed", ("pump-1/speed", b"10", 2)),
        ("file_in", "picture.new", "display-1/picture", ("display-1/picture/got", b"2", 1)),
    ],
)
@pytest.mark.req("B1", "R4")
def test_example_whose_handler_failed_tries_again(tmp_path, name, folder, sent, answer):
    (tmp_path / folder).mkdir()  # so that the file can't be written
    with Broker(tmp_path / "broker") as broker, Person(broker.port) as person:
        person.publish(sent, b"10", 2, retain=True)  # retained, because the board has no subscription yet
        with running(tmp_path, name, broker.port) as said:
            until(lambda: "failed; a message is tried five times" in said.read_text(), said.read_text)
            (tmp_path / folder).rmdir()
            person.wait(lambda got: answer in got, said)


@pytest.mark.req("B1", "B5")
def test_sleeping_board_keeps_unsent_readings(tmp_path):
    with Broker(tmp_path / "broker") as broker, Person(broker.port) as person:
        port = broker.port
        with running(tmp_path, "deep_sleep", 1, changes=[("AWAKE_MS = 20_000", "AWAKE_MS = 300")]) as said:
            person.wait(lambda got: "left" in said.read_text(), said)
        assert "left 2" in said.read_text() or "left 3" in said.read_text()
        with running(tmp_path, "deep_sleep", port) as said:
            person.wait(lambda got: "left 0" in said.read_text(), said)
        assert sum(topic == "meadow-1/load" for topic, _, _ in person.got) == 2


@pytest.mark.req("B1")
def test_home_assistant_gets_sensor_configuration_and_offline_status(tmp_path):
    broker = Broker(tmp_path / "broker", kind="mosquitto")
    broker.directory.mkdir()
    broker._extra = accounts(tmp_path, "board", "person")
    with broker, Person(broker.port, "person") as person:
        with running(tmp_path, "home_assistant", broker.port) as said:
            person.wait(lambda got: any(topic == "greenhouse-1/load" for topic, _, _ in got), said)
            topics = {topic for topic, _, _ in person.got}
            assert {"homeassistant/sensor/greenhouse-1/load/config", "greenhouse-1/status"} <= topics
        person.wait(lambda got: ("greenhouse-1/status", b"offline", 1) in got, said)


@pytest.mark.req("B1")
def test_one_megabyte_file_is_sent_and_received_in_pieces(tmp_path):
    content = os.urandom(BIG)
    (tmp_path / "picture.bin").write_bytes(content)
    with Broker(tmp_path / "broker") as broker, Person(broker.port) as person:
        with running(tmp_path, "file_out", broker.port) as said:
            person.wait(lambda got: f"sent {BIG}" in said.read_text(), said)
            person.wait(lambda got: len({topic for topic, _, _ in got}) == BIG // 1024, said)
        parts = {int(topic.rpartition("/")[2]): payload for topic, payload, _ in person.got}
        assert b"".join(parts[at] for at in sorted(parts)) == content
        (tmp_path / "picture.bin").unlink()
        with running(tmp_path, "file_in", broker.port) as said:
            person.publish("display-1/picture", content, 1, retain=True)
            person.wait(lambda got: ("display-1/picture/got", b"%d" % BIG, 1) in got, said)
        assert (tmp_path / "picture.bin").read_bytes() == content


@pytest.mark.req("B1", "S5")
def test_file_goes_out_through_a_journal_of_16_sectors_and_the_next_file_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setitem(FLASH, "FLASHMQTT_FLASH_BYTES", str(16 * 4096))
    with Broker(tmp_path / "broker") as broker, Person(broker.port) as person:
        for size in (100 * 1024, 70 * 1024):
            content = os.urandom(size)
            (tmp_path / "picture.bin").write_bytes(content)
            # The position file of an interrupted program, for a file of another size.
            (tmp_path / "picture.bin.at").write_text("65536 66000")
            with running(tmp_path, "file_out", broker.port, changes=[("region(64)", "region(16)")]) as said:
                person.wait(lambda got: f"sent {size}" in said.read_text(), said)  # noqa: B023 - called at once
                person.wait(lambda got: sum(f"/{size}/" in topic for topic, _, _ in got) == size // 1024, said)  # noqa: B023
            parts = {int(topic.rpartition("/")[2]): payload for topic, payload, _ in person.got if f"/{size}/" in topic}
            assert b"".join(parts[at] for at in sorted(parts)) == content
            assert not (tmp_path / "picture.bin.at").exists()


@pytest.mark.req("B1")
@pytest.mark.parametrize("name", ["tls_ca", "tls_mutual"])
def test_readings_arrive_over_tls(tmp_path, made, name):
    with_tls(tmp_path, made)
    broker = Broker(tmp_path / "broker", kind="mosquitto")
    broker.directory.mkdir()
    broker._extra = accounts(tmp_path, "greenhouse-1", "person") if name == "tls_ca" else ""
    with (
        broker,
        Person(broker.port, "person") as person,
        Front(made, broker.port, client_certificate=name == "tls_mutual") as front,
        running(tmp_path, name, front.port) as said,
    ):
        person.wait(lambda got: any(topic == "greenhouse-1/load" for topic, _, _ in got), said)


def signed(connect: bytes) -> bool:
    """Return whether a CONNECT has a SAS token that Azure IoT Hub would accept."""
    found = re.search(rb"SharedAccessSignature sr=([^&]+)&sig=([^&]+)&se=(\d+)", connect)
    if not found or b"localhost/greenhouse-1/?api-version=" not in connect:
        return False
    resource, signature, expiry = (part.decode() for part in found.groups())
    text = f"{resource}\n{expiry}".encode()
    right = base64.b64encode(hmac.new(KEY, text, hashlib.sha256).digest()).decode()
    return (
        urllib.parse.unquote(signature) == right
        and urllib.parse.unquote(resource) == "localhost/devices/greenhouse-1"
        and time.time() < int(expiry) < time.time() + 366 * 86400
    )


# Each cloud's requirements, as far as mosquitto can enforce them: accounts, ACL rules (None: no rules), further lines; then the
# topic and QoS of the expected message.
CLOUDS = {
    "hivemq_cloud": (("board",), None, "", "greenhouse-1/load", 2),
    "aws_iot": ((), "topic write dt/greenhouse-1/#\n", "max_qos 1", "dt/greenhouse-1/load", 1),
    "azure_iot_hub": (
        (),
        "pattern write devices/greenhouse-1/messages/events/\n",
        "max_qos 1",
        "devices/greenhouse-1/messages/events/",
        1,
    ),
    "adafruit_io": (
        ("me",),
        "user me\ntopic write me/feeds/+\ntopic read me/errors\ntopic read me/throttle\n",
        "max_qos 1\nretain_available false",
        "me/feeds/load",
        1,
    ),
}


@pytest.mark.req("B1")
@pytest.mark.parametrize("name", CLOUDS)
def test_readings_arrive_under_each_clouds_requirements(tmp_path, made, name):
    users, rules, lines, topic, qos = CLOUDS[name]
    with_tls(tmp_path, made)
    broker = Broker(tmp_path / "broker", kind="mosquitto")
    broker.directory.mkdir()
    broker._extra = lines + "\n"
    if users:
        broker._extra += accounts(tmp_path, *users, "person")
    if rules is not None:
        (tmp_path / "acl").write_text(rules + "user person\ntopic read #\n")
        broker._extra += f"acl_file {tmp_path}/acl\n"
    changes = [('KEY = "aio_0123456789"', 'KEY = "its password"')] if name == "adafruit_io" else []
    with (
        broker,
        Person(broker.port, "person") as person,
        Front(
            made, broker.port, name == "aws_iot", signed if name == "azure_iot_hub" else lambda connect: True
        ) as front,
        running(tmp_path, name, front.port, changes=changes) as said,
    ):
        person.wait(lambda got: any(one == topic and how == qos for one, _, how in got), said)
    assert set(front.names) == {"localhost"}
