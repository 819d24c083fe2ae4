"""What the documents show works: their programs run on MicroPython, their commands exist."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.broker import Broker
from tools.virtual_board.image import build

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "firmware").glob("*.md")), *sorted((ROOT / "boards").rglob("*.md"))]
README = DOCUMENTS[0].read_text()
HOST = '"broker.local"'


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


PROGRAMS = {
    f"{document.name}-{number}": block
    for document in DOCUMENTS
    for number, block in enumerate(blocks(document, "python"), 1)
    if HOST in block
}


def test_each_document_for_newcomers_shows_a_program():
    shown = {name.rpartition("-")[0] for name in PROGRAMS}
    assert {"README.md", "MOVING_FROM_UMQTT_SIMPLE.md", "MOVING_FROM_MQTT_AS.md"} <= shown


async def messages(port: int, count: int, seconds: float) -> list[tuple[str, int]]:
    """Return topic and QoS of the first messages that any client publishes, by mosquitto's own client or paho."""
    import paho.mqtt.client as paho

    got: list[tuple[str, int]] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: got.append((message.topic, message.qos))
    client.connect("127.0.0.1", port)
    client.subscribe("#", 2)
    client.loop_start()
    for _ in range(int(seconds / 0.05)):
        if len(got) >= count:
            break
        await asyncio.sleep(0.05)
    client.loop_stop()
    return got


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_delivers_its_readings(program, tmp_path):
    with Broker(tmp_path / "broker") as broker:
        (tmp_path / "program.py").write_text(
            "import gc\ngc.threshold(4096)\n" + program.replace(HOST, f'"127.0.0.1", {broker.port}')
        )
        image = build()
        with (tmp_path / "console").open("w") as console:
            board = subprocess.Popen(
                [str(Path(sys.executable).parent / "micropython"), "-X", "heapsize=192K", "program.py"],
                cwd=tmp_path,
                env={**os.environ, "MICROPYPATH": f".frozen:{image}", "FLASHMQTT_FLASH_TIME": "0"},
                stdout=console,
                stderr=console,
            )
        try:
            got = asyncio.run(messages(broker.port, 2, 20))
        finally:
            board.kill()
            board.wait()
    topics = {topic for topic, _ in got}
    assert len(topics) >= 2, (tmp_path / "console").read_text()
    assert all(topic.startswith("greenhouse-1/") for topic in topics)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_leads_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


def code(document: Path) -> str:
    """Return what stands in code blocks and between backticks, line by line."""
    text = document.read_text()
    fenced = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join(fenced + re.findall(r"`[^`\n]+`", text))


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_make_target_that_a_document_names_exists():
    named = {name for document in DOCUMENTS for name in re.findall(r"`?\bmake ([a-z][a-z-]*)\b", code(document))}
    assert {"run", "test", "help"} <= named
    assert named <= make_targets()


def test_help_lists_every_target():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert make_targets() == set(re.findall(r"^  make ([a-z-]+)", listed, re.MULTILINE))
