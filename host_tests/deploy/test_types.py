"""`mypy --strict` with the installed wheel passes a user's correct program, and refuses wrong arguments by line."""

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tools.deploy import release

MYPY = str(Path(sys.executable).parent / "mypy")
RIGHT = """
import asyncio

from flashmqtt import aio
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.errors import ConnectionLost, Refused, StoreFull
from flashmqtt.flash.file import FileRegion
from flashmqtt.journal.journal import DROP_OLDEST, Journal
from flashmqtt.session.level5 import Level5
from flashmqtt.session.message import Message
from flashmqtt.simple import MQTTClient
from flashmqtt.tls import context


def take(message: Message) -> None:
    print(message.topic.upper(), message.payload.hex(), message.retain)


def blocking() -> bool:
    journal = Journal(FileRegion("journal.bin", 16), DROP_OLDEST)
    client = Client("broker.local", client_id="typed", store=journal, level=5, tls=context(ca=b"..."), five=Level5(),
                    backoff=Backoff(cap_ms=60000), log=print, will=("typed/state", b"gone", 1, True))
    client.on_message = take
    client.on_error = lambda error, message: print(error, message and message.topic)
    try:
        known: bool = client.connect(timeout_s=2.5)
        client.subscribe("commands/#", 2, take)
        handle: int = client.publish("typed/reading", b"21.5", qos=1, properties={2: 60})
        while not client.delivered(handle):
            client.poll(100)
    except (ConnectionLost, Refused, StoreFull) as error:
        print(error.reason)
        return False
    client.disconnect()
    return known


async def several_tasks() -> None:
    journal = Journal(FileRegion("journal.bin", 16))
    async with aio.Client("broker.local", 1883, "typed", journal, keep_alive_s=30, five=Level5(), log=print) as client:
        await client.subscribe("commands/#", 1)
        await client.publish("typed/state", "here", retain=True)
        async for message in client:
            take(message)


def as_umqtt() -> int:
    client = MQTTClient("typed", "broker.local", keepalive=60)
    client.set_callback(lambda topic, message: print(topic.decode(), message))
    client.publish(b"typed", "state", True, 1)
    return client.connect(clean_session=False)


asyncio.run(several_tasks())
"""
WRONG = """
from flashmqtt.aio import Client as Asynchronous
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.flash.file import FileRegion
from flashmqtt.simple import MQTTClient

client = Client(1883, "broker.local")  # wrong
Asynchronous(1883, "broker.local")  # wrong
Asynchronous("broker.local", keepalive=60)  # wrong
client.publish("topic", 21.5)  # wrong
client.publish("topic", b"", qos="1")  # wrong
client.subscribe("topic", handler=lambda: None)  # wrong
client.on_message = lambda topic, payload: None  # wrong
text: str = client.publish("topic", b"")  # wrong
Backoff(cap_ms="1 min")  # wrong
FileRegion(16)  # wrong
MQTTClient("typed", "broker.local").publish("topic", 1)  # wrong


async def main() -> None:
    await Asynchronous("broker.local").publish("topic", None)  # wrong
    await Asynchronous("broker.local").subscribe("topic", "1")  # wrong
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A Python with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("typed")
    release.write_python_packages(folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "python", with_pip=False)
    (site,) = (folder / "python").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    return folder


def checked(installed, program):
    (installed / "program.py").write_text(program)
    words = ["--strict", "--config-file=", "--python-executable", str(installed / "python/bin/python"), "program.py"]
    ran = subprocess.run([MYPY, *words], cwd=installed, env={"PATH": ""}, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.req("B1")
def test_typed_program_passes_mypy_strict_with_the_installed_wheel(installed):
    assert checked(installed, RIGHT)[0] == 0, checked(installed, RIGHT)[1]


@pytest.mark.req("B1")
def test_wrong_types_are_refused_with_their_lines(installed):
    status, said = checked(installed, WRONG)
    wrong = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")]
    assert status == 1
    assert sorted({int(found) for found in re.findall(r"^program\.py:(\d+): error", said, re.MULTILINE)}) == wrong, said
