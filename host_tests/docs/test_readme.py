"""The documents are correct: their programs run, their commands and files exist, their figures are the committed ones."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from flashmqtt.client import Client
from flashmqtt.errors import StoreFull
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from host_tests.docs import reference
from tools.bootstrap import ROOT
from tools.deploy.build import image
from tools.proof.bench import figures
from tools.proof.broker import Broker, find_mosquitto
from tools.proof.program import board_image
from tools.virtual_board.device import Device

DOCUMENTS = figures.documents()
README = (ROOT / "README.md").read_text()
CONTRIBUTING = ROOT / ".github/CONTRIBUTING.md"
# Folders that a path in a document may be relative to.
PLACES = [ROOT, ROOT / "firmware", ROOT / "firmware/flashmqtt", ROOT / "tools/pipeline", ROOT / "boards"]
HOST = '"broker.local"'


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


PROGRAMS = {
    f"{document.name}-{number}": block
    for document in DOCUMENTS
    for number, block in enumerate(blocks(document, "python"), 1)
    if HOST in block
}


def test_documents_for_newcomers_contain_a_program():
    shown = {name.rpartition("-")[0] for name in PROGRAMS}
    assert {"README.md", "PROGRAMS.md", "MOVING_FROM_UMQTT_SIMPLE.md", "MOVING_FROM_MQTT_AS.md"} <= shown


@contextlib.contextmanager
def listening(port: int):
    """Subscribe to everything before the block begins; yield the list of (topic, QoS) of received messages."""
    import paho.mqtt.client as paho

    got: list[tuple[str, int]] = []
    subscribed = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: got.append((message.topic, message.qos))
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.subscribe("#", 2)
    client.loop_start()
    try:
        assert subscribed.wait(60)
        yield got
    finally:
        client.loop_stop()


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_program_in_a_document_delivers_its_readings(program, tmp_path):
    with (
        Broker(tmp_path / "broker") as broker,
        listening(broker.port) as got,
        (tmp_path / "console").open("w") as console,
    ):
        (tmp_path / "program.py").write_text(program.replace(HOST, f'"127.0.0.1", {broker.port}'))
        board = subprocess.Popen(
            [str(Path(sys.executable).parent / "micropython"), "-X", "heapsize=192K", "program.py"],
            cwd=tmp_path,
            env={**os.environ, "MICROPYPATH": f".frozen:{board_image()}", "FLASHMQTT_FLASH_TIME": "0"},
            stdout=console,
            stderr=console,
        )
        try:
            for _ in range(1200):
                if len({topic for topic, _ in got}) >= 2:
                    break
                time.sleep(0.05)
        finally:
            board.kill()
            board.wait()
    topics = {topic for topic, _ in got}
    assert len(topics) >= 2, (tmp_path / "console").read_text()
    assert all(topic.startswith("greenhouse-1/") for topic in topics)


@pytest.mark.req("B1")
def test_program_for_a_pc_delivers_its_message(tmp_path):
    (program,) = blocks(ROOT / "firmware/INSTALLING.md", "python")
    with Broker(tmp_path / "broker") as broker, listening(broker.port) as got:
        ran = subprocess.run(
            [sys.executable, "-c", program.replace('"localhost"', f'"127.0.0.1", {broker.port}')],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "firmware")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        for _ in range(200):
            if got:
                break
            time.sleep(0.05)
    assert got == [("pc-1/greeting", 2)]
    assert "delivered 1" in ran.stdout


@pytest.mark.req("B1", "B3")
def test_first_program_runs_on_a_board_by_the_shown_commands(tmp_path):
    commands = next(block for block in blocks(ROOT / "README.md", "sh") if "mip install" in block)
    words = [shlex.split(line, comments=True) for line in commands.splitlines() if "/mpremote " in line]
    assert [line[1] for line in words] == ["mip", "cp", "run"]
    mpremote = str(Path(sys.executable).parent / "mpremote")
    (tmp_path / "first.py").write_text(PROGRAMS["README.md-1"].replace(HOST, '"127.0.0.1", %d'))
    with (
        Broker(tmp_path / "broker") as broker,
        listening(broker.port) as got,
        Device(tmp_path / "board", wifi="my Wi-Fi:its password") as device,
    ):
        program = (tmp_path / "first.py").read_text() % broker.port
        (tmp_path / "first.py").write_text(program)
        for _, *line in [*words[:-1], ["", "cp", str(tmp_path / "first.py"), ":main.py"]]:
            ran = subprocess.run([mpremote, "connect", device.path, *line], cwd=ROOT, capture_output=True, check=False)
            assert ran.returncode == 0, ran.stdout + ran.stderr
        command = [mpremote, "connect", device.path, *words[-1][1:]]
        with (tmp_path / "console").open("w") as console:
            running = subprocess.Popen(command, cwd=tmp_path, stdout=console, stderr=console)
        try:
            for _ in range(1200):
                if "delivered" in (tmp_path / "console").read_text() or running.poll() is not None:
                    break
                time.sleep(0.05)
        finally:
            running.kill()
            running.wait()
    said = (tmp_path / "console").read_text()
    assert got, said
    assert got[0] == ("greenhouse-1/chip_temperature", 2)
    shown = shown_lines().replace("192.168.1.17", "127.0.0.1").replace("broker.local:1883", f"127.0.0.1:{broker.port}")
    assert [
        line for line in said.splitlines() if re.match("stored|network:|broker:|delivered", line)
    ] == shown.splitlines()


def shown_lines(number: int = 0) -> str:
    """Return the output of the first program as the README shows it; with 1, the output when it can't connect."""
    return re.findall(r"^```\n(.*?)^```", README[README.index("`log=print` makes") :], re.MULTILINE | re.DOTALL)[number]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of a Pico W with the library, installed by mip, and its board module."""
    folder = tmp_path_factory.mktemp("installed")
    with Device(folder) as device:
        for words in (
            ("mip", "install", str(ROOT / "firmware/package.json")),
            ("cp", str(ROOT / "boards/rp2/board.py"), ":board.py"),
        ):
            mpremote = str(Path(sys.executable).parent / "mpremote")
            subprocess.run([mpremote, "connect", device.path, *words], check=True, capture_output=True, cwd=ROOT)
    return folder


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("README.md-1", "another"),
        ("README.md-1", "its password"),
        ("PROGRAMS.md-1", "another"),
        ("PROGRAMS.md-2", "its password"),
    ],
)
def test_first_programs_report_why_they_do_not_connect(name, password, tmp_path, installed):
    wrong, away = shown_lines(1).splitlines()
    with Broker(tmp_path / "broker") as broker:
        port = broker.port
    (tmp_path / "first.py").write_text(PROGRAMS[name].replace(HOST, f'"127.0.0.1", {port}'))
    mpremote = str(Path(sys.executable).parent / "mpremote")
    expected = wrong if password == "another" else away
    expected = expected.replace("broker.local:1883", f"127.0.0.1:{port}")
    pattern = re.sub("[0-9.]+ s$", "[0-9.]+ s", re.escape(expected).replace("\\ ", " ").replace("\\.", "."))
    shutil.copytree(installed, tmp_path / password)
    with Device(tmp_path / password, wifi=f"my Wi-Fi:{password}") as device:
        with subprocess.Popen(
            [mpremote, "connect", device.path, "run", str(tmp_path / "first.py")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as running:
            try:
                for _ in range(1200):
                    if re.search(pattern, device.console.decode(errors="replace")):
                        break
                    time.sleep(0.05)
            finally:
                running.kill()
        assert re.search(pattern, device.console.decode(errors="replace")), device.console


def test_journal_capacity_equals_the_number_in_the_readme():
    client = Client("broker.local", client_id="greenhouse-1", store=Journal(RamRegion(16, page_bytes=256)))
    with pytest.raises(StoreFull):
        for n in range(10_000):
            client.publish("greenhouse-1/chip_temperature", str(20 + n % 100 / 10), qos=2)
    assert f"{n // 100 * 100:,}" in README


def test_application_size_agrees_with_the_pico_w_flash_map():
    told = re.search(r"at most ([0-9]+) KB in whole blocks", (ROOT / "boards/rp2/README.md").read_text())
    assert told is not None
    blocks = sum(-(-len(content) // 4096) for content in image("pico_w", "armv6m").values())
    assert 4 * blocks <= int(told[1]) <= 4 * blocks + 20


def test_mosquitto_configuration_in_the_readme_is_the_tested_one(tmp_path):
    shown = re.search(r"^```\n(listener .*?)^```", README, re.MULTILINE | re.DOTALL)
    assert shown is not None
    listener, *further = shown[1].splitlines()
    assert listener == "listener 1883"
    if find_mosquitto() is None:
        pytest.skip("needs mosquitto")
    own = Broker(tmp_path / "own")
    own.directory.mkdir()
    own._mosquitto()
    assert set(further) <= set((own.directory / "mosquitto.conf").read_text().splitlines())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_local_link_has_a_target(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


def code(document: Path) -> str:
    """Return the text in code blocks and between backticks, line by line."""
    text = document.read_text()
    fenced = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join(fenced + re.findall(r"`[^`\n]+`", text))


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_for_a_board_starts_its_network(name):
    program = PROGRAMS[name]
    assert "import board\n" not in program or "board.network_up(" in program or "MOVING_FROM_UMQTT" in name


def test_program_runs_with_the_micropython_command_of_the_contributing_page(tmp_path):
    command = re.search(
        r"^(MICROPYPATH=\S+) \.venv/bin/(micropython program\.py)$", CONTRIBUTING.read_text(), re.MULTILINE
    )
    program = tmp_path / "program.py"
    program.write_text("import asyncio, sys\nfrom flashmqtt import aio, client\nprint(sys.implementation.name)\n")
    line = f"{command[1]} {shlex.quote(str(Path(sys.executable).parent))}/{command[2]}"
    ran = subprocess.run(
        line.replace("program.py", shlex.quote(str(program))), cwd=ROOT, shell=True, capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == ("micropython\n", "")


def test_every_make_target_in_the_documents_exists():
    named = {name for document in DOCUMENTS for name in re.findall(r"`?\bmake ([a-z][a-z-]*)\b", code(document))}
    assert {"run", "test", "help"} <= named
    assert named <= make_targets()


def test_help_lists_every_target():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert make_targets() == set(re.findall(r"^  make ([a-z-]+)", listed, re.MULTILINE))


def test_make_in_another_folder_says_what_to_do(tmp_path):
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # these tests may run below make
    ran = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "setup"], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert ran.returncode == 2 and "use `make -C FOLDER TARGET`" in ran.stderr and ran.stdout == "", ran


def test_help_names_every_variable_of_a_target():
    rules = re.findall(r"^([a-z-]+):.* ## (.*)\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {target for target, _, _ in rules} == make_targets()
    for target, text, recipe in rules:
        taken = set(re.findall(r"\$(?:\$|\((?:if \$\()?)([A-Z_]+)\b", recipe)) - {
            "PY",
            "PYTHON",
            "VENV",
            "MAKEFILE_LIST",
        }
        assert [name for name in sorted(taken) if f"{name}=" not in text] == [], target


def test_make_passes_any_value_as_one_word_and_an_empty_variable_as_its_default(tmp_path):
    show = tmp_path / "show"  # no Python program: a hundred of these start
    show.write_text("printf '%s\\037' \"$@\"\nprintf '\\036'\n")

    def recipes(*words):
        """Return the arguments of the command of each target."""
        command = [
            "env",
            "-i",
            f"PATH={os.environ['PATH']}",
            "make",
            "-o",
            "setup",
            f"PY=sh {show}",
            *words,
        ]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found = [line.split("\x1f")[:-1] for line in ran.stdout.split("\x1e")[:-1]]
        assert len(found) == sum("=" not in word for word in words)
        return found

    for value in ("my tables", "it's", '5" pipe', "`id`", "a;id", "x\\y", "$$HOME", "$$(id)", "#1", "a\nb", "-x"):
        meant = value.replace("$$", "$")  # make's own way to write a dollar sign
        targets = ("report", "dashboard", "verdict", "check-tables", "sink", "compact", "forget")
        for given in recipes(*targets, f"OUT={value}"):
            assert meant in given
        forget, deploy = recipes("forget", "deploy", f"DEVICE={value}", f"BOARD_FILE={value}")
        assert f"--device={meant}" in forget and meant in deploy
    targets = ("deploy", "monitor", "backup", "wipe", "dump")
    assert recipes(*targets, "PORT=") == recipes(*targets)
    for given in recipes(*targets, "PORT=/dev/x y"):
        assert "/dev/x y" in given
    for given in recipes("deploy", "virtual-board", "BOARD=pico w"):
        assert "pico w" in given
    assert recipes("run", "READINGS=", "SEED=") == recipes("run") == [["-m", "tools.proof.run"]]
    assert recipes("run", "READINGS=7", "CUTS=0")[0][2:] == ["--readings", "7", "--cuts", "0"]


def test_every_make_variable_in_the_documents_exists():
    given = {
        variable
        for document in DOCUMENTS
        for line in re.findall(r"\bmake [a-z][^\n`#]*", code(document))
        for variable in re.findall(r"\b([A-Z][A-Z_]*)=", line)
    }
    assert {"BOARD_FILE", "ONLY", "OUT"} <= given
    makefile = (ROOT / "Makefile").read_text()
    assert [
        variable for variable in given if f"$({variable})" not in makefile and f"$${variable}" not in makefile
    ] == []


def test_every_module_and_flag_in_the_documents_exists():
    for document in DOCUMENTS:
        for module, rest in re.findall(r"python3? -m (tools[\w.]*)((?:[^\n`#]|\\\n)*)", document.read_text()):
            found = find_spec(module)
            assert found is not None, f"{document.name}: {module}"
            package = Path(found.origin).parent if found.submodule_search_locations else None
            source = (
                "".join(path.read_text() for path in package.glob("*.py"))
                if package
                else Path(found.origin).read_text()
            )
            if "options.parser(" in source:  # the options that several commands of the pipeline have
                source += (ROOT / "tools/pipeline/options.py").read_text()
            assert [flag for flag in re.findall(r" (--[a-z][\w-]+)", rest) if f'"{flag}"' not in source] == [], (
                document.name
            )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_file_named_in_a_document_exists(document):
    named = set(re.findall(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|pyi|md|toml|json|jsonl|csv|sh))`", document.read_text()))
    places = [*PLACES, document.parent]
    assert [path for path in sorted(named) if not any((place / path).exists() for place in places)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_figures_in_a_document_equal_the_committed_results(document):
    complaints = figures.complaints(document.read_text(), figures.committed())
    assert complaints == [], "run: python -m tools.proof.bench.figures --write"


def test_page_of_figures_has_goals_and_says_when_it_was_measured():
    kinds = {match[1] for match in figures.MARK.finditer((ROOT / "tools/proof/bench/README.md").read_text())}
    assert kinds == {"=", "goal", "measured"}


def test_readme_has_at_most_200_lines():
    assert len(README.splitlines()) <= 200


def test_committed_results_contain_no_host_name_or_path():
    text = figures.RESULTS.read_text()
    assert os.uname().nodename not in text
    assert str(ROOT) not in text and str(Path.home()) not in text


def test_api_reference_is_current():
    assert reference.PAGE.read_text() == reference.page(), f"run: {reference.WRITE}"


def test_both_clients_have_the_same_constructor_arguments():
    page = reference.page()
    blocking, asynchronous = re.findall(r"^Client\(host:.*?\)\n```$", page, re.MULTILINE | re.DOTALL)
    assert blocking == asynchronous


def test_api_reference_names_every_argument():
    assert list(reference.unmentioned()) == []


def test_docstring_is_converted_to_markdown():
    docstring = """Do it.

    At once.

    Args:
        one: the first, and
            what follows it.
        two, three: more.

    field     what it is
    other     what else
    """
    assert reference.markdown(docstring) == [
        "Do it.",
        "",
        "At once.",
        "",
        "*Arguments*",
        "",
        "- `one`: the first, and what follows it.",
        "- `two, three`: more.",
        "",
        "```text",
        "field     what it is",
        "other     what else",
        "```",
    ]
