"""`make deploy` against the virtual board: real mpremote, a real broker, a delivered reading; and its failures."""

import contextlib
import errno
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import serial

from host_tests.deploy import shrunk
from host_tests.deploy.device import Device
from host_tests.waiting import until
from tools.bootstrap import ROOT
from tools.command import Failure
from tools.deploy import __main__ as deploy
from tools.deploy import build, ports, romfs
from tools.deploy import link as link_module
from tools.deploy.link import BoardSaid, Link
from tools.journal import image as journal_image
from tools.journal.report import report
from tools.proof.broker import Broker
from tools.virtual_board import device as virtual

PASSWORD = "hunter2-hunter2"
WIFI = f"home:{PASSWORD}"
OUR_MODULES = {path: source for path, source in build.sources("pico_w").items() if path.endswith(".mpy")}


@pytest.fixture(scope="module", autouse=True)
def no_secrets_in_environment():
    saved = {name: os.environ.pop(name, None) for name in ("FLASHMQTT_WIFI_PASSWORD", "FLASHMQTT_BROKER_PASSWORD")}
    yield
    os.environ.update({name: value for name, value in saved.items() if value is not None})


def write_configuration(folder: Path, port: int, **readings) -> Path:
    folder.mkdir(exist_ok=True)
    extra = "".join(f"{key} = {json.dumps(value)}\n" for key, value in readings.items())
    (folder / "config.toml").write_text(
        f'[wifi]\nssid = "home"\n[broker]\nhost = "127.0.0.1"\nport = {port}\n[device]\nstatus_s = 0.2\nwatchdog_s = 8\n'
        f"[journal]\nkib = 64\n[readings]\ninterval_s = 0.5\n{extra}"
    )
    (folder / "config.local.toml").write_text(f'[wifi]\npassword = "{PASSWORD}"\n')
    return folder


def run(*words: str) -> tuple[int, str, str]:
    """Run the tool in this process; return its status, standard output and error output."""
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        status = deploy.main(list(words))
    assert PASSWORD not in printed.getvalue() + complaints.getvalue()
    return status, printed.getvalue(), complaints.getvalue()


def put(device: Device, files: dict[str, bytes]) -> None:
    with Link(device.path) as link:
        for path, content in files.items():
            link.put(path, content)


TICKS = b"import time\nn = 0\nwhile True:\n    print('tick', n)\n    n += 1\n    time.sleep_ms(50)\n"


def start_ticks(device: Device) -> None:
    """Let a board start a program that prints."""
    put(device, {"/main.py": TICKS})
    device.power_cut()
    device.wait_for(b"tick 2")


def listing(device: Device) -> list[str]:
    """Return the names in the root of a board's file system, sorted."""
    with Link(device.path) as link:
        return sorted(link.literal("import os; print(os.listdir('/'))"))


@pytest.mark.req("B3")
def test_empty_board_is_deployed_redeployed_backed_up_and_wiped(tmp_path):
    with Broker(tmp_path / "broker") as broker, Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout", "120")

        status, printed, complaints = run(*words, "--dry-run")
        assert status == 0, complaints
        assert "copy /main.py" in printed and "nothing was changed" in printed and "(hidden)" in printed
        assert listing(device) == []

        status, printed, complaints = run(*words)
        assert status == 0, printed + complaints
        assert "delivered" in printed and "pinned in the file system" in printed
        # Not "watchdog", by which a Pico resets itself.
        assert b"boot=1 stored=0 cause=reset" in bytes(device.console)
        files = len(build.image("pico_w", "x64")) + 1
        assert f"{files}: {files} new, 0 changed" in printed

        # Again: nothing to copy, the journal stays, and the board continues with boot 2 or later.
        status, printed, complaints = run(*words)
        assert status == 0, printed + complaints
        assert f"{files} as they are; 0.0 KB to copy" in printed and "delivered" in printed
        # The board's first lines were read, so that an older message is not taken for the first reading.
        found = re.search(r"^boot +device=\S+ boot=\d+ stored=(\d+) ", printed, re.MULTILINE)
        assert found, printed
        delivered = re.search(r"^delivered +message (\d+),", printed, re.MULTILINE)
        assert delivered is None or int(delivered[1]) > int(found[1]), printed

        # One setting more: one file changes.
        write_configuration(tmp_path / "config", broker.port, health_s=1)
        status, printed, complaints = run(*words)
        assert status == 0, printed + complaints
        assert "0 new, 1 changed" in printed

        listening = len(device.console)
        device.wait_for(b"status stored=", since=listening)
        assert PASSWORD.encode() not in bytes(device.console[listening:])

        status, printed, complaints = run("backup", "--port", device.path, "--output", str(tmp_path / "kept"))
        assert status == 0, complaints
        assert "secrets are in config.json: keep" in printed
        (kept,) = (tmp_path / "kept").iterdir()
        assert (kept / "main.py").read_bytes() == build.sources("pico_w")["/main.py"].read_bytes()
        sizes = [path.stat().st_size for path in (kept / "journal").iterdir() if path.name != "map"]
        assert sizes == [4096] * 16 and kept.stat().st_mode & 0o077 == 0

        status, printed, complaints = run("wipe", "--port", device.path, "--yes")
        assert status == 0, complaints
        assert listing(device) == ["journal", "lib"]
        status, printed, complaints = run("wipe", "--port", device.path, "--yes", "--journal")
        assert listing(device) == ["lib"]


@pytest.mark.req("S3", "B3")
def test_journal_of_a_deployed_board_is_shown_and_the_application_starts_again(tmp_path):
    with Broker(tmp_path / "broker") as broker, Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout", "120")
        status, printed, complaints = run(*words)
        assert status == 0, printed + complaints

        since = len(device.console)
        content, sector_bytes = journal_image.from_board(device.path)
        text, found = report(content, sector_bytes)
        assert found and (len(content), sector_bytes) == (16 * 4096, 4096), text
        device.wait_for(b"boot=2 ", since=since)

        since = len(device.console)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal_image, "READ_REGION", "raise OSError(28)")
            with pytest.raises(Failure, match="OSError"):
                journal_image.from_board(device.path)
        device.wait_for(b"boot=3 ", since=since)

        with Link(device.path) as link, pytest.raises(BoardSaid, match="MemoryError"):
            link.run("kept = None\nwhile True: kept = kept, bytearray(100)")
        since = len(device.console)
        assert len(journal_image.from_board(device.path)[0]) == 16 * 4096
        device.wait_for(b"boot=", since=since)
        assert "watchdog" not in device.resets


@pytest.mark.req("B3")
def test_interrupted_deployment_leaves_a_repl_and_can_be_repeated(tmp_path):
    with Broker(tmp_path / "broker") as broker, Device(tmp_path / "board", "esp32", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        words = ["deploy", "--board", "esp32", "--port", device.path, "--config", str(config), "--timeout", "120"]
        for seed, bytes_sent in enumerate((500, 20_000, 60_000)):  # before the first file, and between files
            heard = device.heard
            process = subprocess.Popen(
                shrunk.command(*words),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while device.heard < heard + bytes_sent:
                assert process.poll() is None, "it ended before it could be cut off"
                time.sleep(0.005)
            process.kill()
            process.wait()
            since = len(device.console)
            device.power_cut(seed)
            device.wait_for(b">>> ", since=since)
            with Link(device.path) as link:  # it answers with any part of the files copied
                assert link.run("print(6 * 7)").strip() == "42"
        status, printed, complaints = run(*words)
        assert status == 0, printed + complaints
        assert "delivered" in printed


@pytest.mark.req("B3")
def test_file_that_an_interrupted_deployment_left_open_is_closed_before_the_next_one_writes(tmp_path):
    with Device(tmp_path / "board") as device:
        with Link(device.path) as link:
            link.run("old = f = open('/main.py.new', 'ab')")  # stopped before the close
        with Link(device.path) as link:
            link.put("/main.py", b"new")
            with pytest.raises(BoardSaid):
                link.run("old.write(b'old')")
            assert link.get("/main.py") == b"new"


@pytest.mark.req("B3")
def test_partial_copies_are_removed_by_deploy_and_wipe(tmp_path):
    with Broker(tmp_path / "broker") as broker, Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        leftovers = ("/lib/flashmqtt/errors.mpy.new", "/app/old.mpy.new", "/config.json.new", "/main.py.new")
        with Link(device.path) as link:
            for path in (*leftovers, "/deploying"):
                link.put(path, PASSWORD.encode())
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout", "120")
        status, printed, complaints = run(*words)
        assert status == 0, printed + complaints
        with Link(device.path) as link:
            left = link.literal(
                f"import os\nprint([p for p in {leftovers!r} if p.split('/')[-1] in os.listdir(p.rpartition('/')[0] or '/')])"
            )
            assert left == []
            for path in leftovers[2:]:
                link.put(path, PASSWORD.encode())
        status, _, complaints = run("wipe", "--port", device.path, "--yes", "--journal")
        assert status == 0, complaints
        assert listing(device) == ["lib"]


@pytest.mark.req("B3")
def test_half_installed_board_reports_it_and_stays_at_its_repl(tmp_path):
    with Device(tmp_path / "board") as device:
        with Link(device.path) as link:
            link.put("/main.py", build.sources("pico_w")["/main.py"].read_bytes())
            link.run("open('/deploying', 'w').close()")
        since = len(device.console)
        device.power_cut()
        device.wait_for(b"deployment: unfinished", since=since)
        device.wait_for(b">>> ", since=since)


@pytest.mark.req("B3")
def test_foreign_main_needs_confirmation_and_is_restored_by_wipe(tmp_path):
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        put(device, {"/main.py": b"print('mine')\n"})
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout", "0.1")
        status, _, complaints = run(*words)
        assert status == 1 and "files that are not flashmqtt's: main.py." in complaints and "YES=1" in complaints
        with Link(device.path) as link:
            assert link.get("/main.py") == b"print('mine')\n"
        status, printed, _ = run(*words, "--yes")
        assert status == 1 and "renamed    /main.py to /main.py.before" in printed  # no broker: nothing is delivered
        assert "copied" in printed
        with Link(device.path) as link:
            assert link.get("/main.py.before") == b"print('mine')\n"
        status, _, complaints = run("wipe", "--port", device.path, "--yes", "--journal")
        assert status == 0, complaints
        with Link(device.path) as link:
            assert link.get("/main.py") == b"print('mine')\n"


@pytest.mark.req("B3")
def test_wipe_keeps_the_files_of_a_program_that_only_uses_the_library(tmp_path):
    """Its main.py begins like a program for umqtt.simple with the import changed."""
    own = {
        "/main.py": b"from flashmqtt.simple import MQTTClient\n",
        "/config.json": b"{}",
        "/app/pump.py": b"#\n",
    }
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        put(device, {**own, "/lib/flashmqtt/errors.py": b"#\n", "/journal/00": b"x"})
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config))
        status, printed, complaints = run(*words, "--dry-run")
        assert status == 0 and "rename /main.py to /main.py.before" in printed, complaints
        status, _, complaints = run(*words)
        assert status == 1 and "not flashmqtt's: main.py, app, config.json" in complaints
        status, printed, complaints = run("wipe", "--port", device.path, "--yes", "--journal")
        assert status == 0 and "flashmqtt's library and the journal" in printed, complaints
        with Link(device.path) as link:
            names = link.literal("import os; print(os.listdir('/') + os.listdir('/lib'))")
            assert sorted(names) == ["app", "config.json", "lib", "main.py"]
            assert {path: link.get(path) for path in own} == own


@pytest.mark.parametrize("main", [{"/main.py": b"print('mine')\n"}, {}], ids=["with main.py", "without main.py"])
@pytest.mark.req("B3")
def test_files_of_another_program_that_have_our_names_are_kept_by_deploy_and_restored_by_wipe(tmp_path, main):
    own = {**main, "/app/pump.py": b"#\n", "/config.json": b"{}", "/state.json": b"[1]", "/tls/ca.pem": b"-"}
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        put(device, own)
        words = ("deploy", "--port", device.path, "--config", str(config), "--timeout", "0.1")
        assert run(*words)[0] == 1
        status, printed, complaints = run("wipe", "--port", device.path, "--yes")
        assert status == 0 and "wiped      nothing: the board has no file of flashmqtt's" in printed, complaints
        with Link(device.path) as link:
            assert {path: link.get(path) for path in own} == own
            if main:
                link.create("/deploying")  # an older version left it when a command was killed
        status, printed, complaints = run(*words, "--yes")
        assert status == 1 and "copied" in printed, complaints  # no broker: nothing is delivered
        assert "as they are; 0.0 KB to copy" in run(*words)[1]  # without a question
        status, _, complaints = run("wipe", "--port", device.path, "--yes", "--journal")
        assert status == 0, complaints
        with Link(device.path) as link:
            assert {path: link.get(path) for path in own} == own
            assert sorted(link.literal("import os; print(os.listdir('/'))")) == sorted(
                {"lib", *(path.split("/")[1] for path in own)}
            )


@pytest.mark.req("B3")
def test_wipe_of_a_board_without_flashmqtt_says_that_nothing_was_there(tmp_path):
    with Device(tmp_path / "board") as device:
        for more in ((), ("--journal",)):
            status, printed, complaints = run("wipe", "--port", device.path, "--yes", *more)
            assert (status, printed) == (0, "wiped      nothing: the board has no file of flashmqtt's\n"), complaints
        with Link(device.path) as link:
            link.put("/journal/map", b"")
            link.put("/main.py", b"print('mine')\n")
        printed = run("wipe", "--port", device.path, "--yes")[1]
        assert (
            "nothing: the board has no file of flashmqtt's; the journal is kept (JOURNAL=1 removes it too)" in printed
        )


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.req("B3")
def test_wipe_after_one_that_was_interrupted_leaves_nothing_of_ours_and_restores_the_users_files(
    tmp_path, monkeypatch, killed
):
    ours = ("/main.py", "/config.json", "/lib/flashmqtt/link.mpy", "/app/application.mpy", "/app/z.mpy", "/tls/key.pem")
    own = {"/main.py": b"print('mine')\n", "/app/pump.py": b"#\n", "/config.json": b"{}"}
    wipe = deploy._WIPE
    with Device(tmp_path / "board") as device:
        words = ("wipe", "--port", device.path, "--yes")
        for most in range(len(ours)):
            with Link(device.path) as link:
                for path, content in own.items():
                    name, *rest = path[1:].split("/")
                    link.put("/".join(["", name + ".before", *rest]), content)
                for path in ours:
                    link.put(path, f'{deploy.MARK}"""\\n'.encode())
            with monkeypatch.context() as patch:
                cut = wipe.replace("os.remove(p)", f"done.append(os.remove(p) if len(done) < {most} else 1 / 0)")
                patch.setattr(deploy, "_WIPE", "done = []\n" + cut)
                if killed:
                    patch.setattr(deploy, "restarted_on_error", lambda *_: contextlib.nullcontext())
                assert "ZeroDivision" in run(*words)[2]
            assert run(*words)[0] == 0
            with Link(device.path) as link:
                assert {path: link.get(path) for path in own} == own, most
                assert sorted(link.literal("import os; print(os.listdir('/'))")) == [
                    "app",
                    "config.json",
                    "lib",
                    "main.py",
                ]
                link.run(
                    "import os\nfor p in ('/main.py', '/app/pump.py', '/config.json'): os.remove(p)\nos.rmdir('/app')"
                )


@pytest.mark.req("B3")
def test_second_program_of_the_users_own_does_not_replace_the_first_one_that_was_kept(tmp_path):
    own = {"/main.py": b"print('second')\n", "/main.py.before": b"print('first')\n"}
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        put(device, own)
        status, _, complaints = run("deploy", "--port", device.path, "--config", str(config), "--yes")
        assert status == 1 and "main.py.before from an earlier time" in complaints
        with Link(device.path) as link:
            assert {path: link.get(path) for path in own} == own


@pytest.mark.parametrize(
    "code",
    [
        "f = open('/main.py', 'wb')\nf.write(bytes([255, 254, 0]))\nf.close()",
        "f = open('/main.py', 'wb')\nfor _ in range(400): f.write(b'#' * 1024)\nf.close()",
        "import os\nos.mkdir('/main.py')",
    ],
    ids=["not UTF-8", "one long line", "a folder"],
)
@pytest.mark.req("B3")
def test_main_that_is_no_text_counts_as_foreign(tmp_path, code):
    with Device(tmp_path / "board") as device, Link(device.path) as link:
        link.run(code)
        assert deploy.foreign_files(link, {"files": ["main.py"]}) == ["main.py"]


@pytest.mark.req("B3")
def test_module_that_would_be_imported_before_the_deployed_one_is_named(tmp_path):
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        put(device, {"/flashmqtt/__init__.py": b""})  # mpremote cp -r firmware/flashmqtt :
        status, _, complaints = run("deploy", "--port", device.path, "--config", str(config))
        assert status == 1 and "/flashmqtt " in complaints and "mpremote rm -r :flashmqtt" in complaints
        assert listing(device) == ["flashmqtt"]


READ_ONLY = b"import rp2, vfs\nvfs.umount('/')\nvfs.mount(vfs.VfsLfs2(rp2.Flash(), progsize=256), '/', readonly=True)\n"


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("/boot.py", READ_ONLY, "file system is read-only"),
        ("/lib", b"", "/lib/.* a part of this path is a file"),
        ("/deploying/file", b"", "/deploying can't be written: the board has a folder with this name"),
    ],
)
@pytest.mark.req("B3")
def test_board_that_can_not_be_written_to_is_named(tmp_path, path, content, words):
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        put(device, {path: content})
        since = len(device.console)
        device.power_cut()
        device.wait_for(b">>> ", since=since)  # boot.py has ended
        status, _, complaints = run("deploy", "--port", device.path, "--config", str(config))
        assert status == 1 and re.search(words, complaints), complaints


@pytest.mark.req("B3")
def test_board_module_copied_by_hand_is_replaced_without_asking(tmp_path):
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        put(device, {"/board.py": (ROOT / "boards/rp2/board.py").read_bytes()})
        status, printed, complaints = run(
            *("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout", "0.1")
        )
        assert status == 1 and "copied" in printed and "nothing was delivered" in complaints, complaints
        with Link(device.path) as link:
            files = link.literal("import os; print(os.listdir('/'))")
            assert "board.mpy" in files and "board.py" not in files


class Console:
    """Stands for a link to a board that prints these lines."""

    def __init__(self, *lines: str):
        self._lines = lines
        self.listen_until = 0.0

    def lines(self, timeout_s: float) -> tuple[str, ...]:
        return self._lines


@pytest.mark.req("B3")
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("network: wrong password", "sensor: dht22 no answer", "command 5", ">>> "), "network: wrong password"),
        (("broker: not connected: refused", "status stored=1 waiting=1"), "broker: not connected: refused"),
        (("sensor: no sensor of the kind 'dht2'", "sleep 5 s"), "sensor: no sensor of the kind 'dht2'"),
        (
            ("network: joined", "Traceback (most recent call last):", "  File 1", "OSError: 5", "restart: in 10 s"),
            "OSError: 5",
        ),
        (("hello",), ""),
        (
            ("broker: connected, a new session", "refused 1: the broker answers 0x87", "stored 2: t, QoS 1, 9 bytes"),
            "refused 1: the broker answers 0x87",
        ),
        (
            (
                *("boot device=b boot=3 stored=47 cause=reset", "delivered 47"),
                "status stored=47 waiting=0 connects=1 dropped=0",
            ),
            "",
        ),
    ],
)
def test_failed_deployment_ends_with_the_boards_reason(capsys, lines, reason):
    said = f"explains the board's last message: {reason}" if reason else "`make monitor` shows the board's output."
    with pytest.raises(Failure, match=rf"within 9 s\. (\S+\.md )?{re.escape(said)}$"):
        deploy.wait_for_delivery(Console(*lines), 0.0, 9)
    assert reason in capsys.readouterr().out


@pytest.mark.req("B3")
def test_failed_deployment_shows_the_last_lines_that_the_board_printed(capsys):
    lines = (*(f"line {n}" for n in range(30)), "", "network: joined", "soil: no answer on pin 4", "MPY: soft reboot")
    with pytest.raises(Failure, match="nothing was delivered"):
        deploy.wait_for_delivery(Console(*lines), 0.0, 9)
    printed = capsys.readouterr().out.splitlines()
    last = [f"line {n}" for n in range(12, 30)] + ["soil: no answer on pin 4", "MPY: soft reboot"]
    assert printed == [
        "           network: joined",
        f"output     {last[0]}",
        *(f"           {one}" for one in last[1:]),
    ]


@pytest.mark.req("B3", "B4")
def test_deployment_shows_what_a_sensor_printed_before_the_application_started(tmp_path):
    source = (ROOT / "boards/rp2/board.py").read_text()
    hanging = "def sensors():\n    print('soil: waiting for the chip on pin 4')\n    import time\n    time.sleep(600)\n"
    (tmp_path / "my_board.py").write_text(
        source[: source.index("def sensors")] + hanging + source[source.index("def led") :]
    )
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        words = ("--port", device.path, "--config", str(config), "--timeout", "12")
        status, printed, complaints = run("deploy", "--board-file", str(tmp_path / "my_board.py"), "--plain", *words)
        assert status == 1 and "nothing was delivered" in complaints
        assert "soil: waiting for the chip on pin 4" in printed, printed


@pytest.mark.req("B3")
def test_traceback_during_a_deployment_has_the_names_of_the_repository(capsys):
    names = build.shrunk({build.module_name(path): source.read_text() for path, source in OUR_MODULES.items()}).names
    lines = (
        "Traceback (most recent call last):",
        f'  File "app.application", line 1, in {names["turn"]}',
        "OSError: 5",
    )
    with pytest.raises(Failure, match=r"OSError: 5$"):
        deploy.wait_for_delivery(Console(*lines), 0.0, 9)
    assert 'File "app.application", in Application.turn' in capsys.readouterr().out


@pytest.mark.req("B3")
def test_sensor_that_fails_is_shown_once_before_the_delivery(capsys):
    wrong = "sensor: no sensor of the kind 'dht2': no module named 'app.sensors.dht2'"
    deploy.wait_for_delivery(Console(wrong, "broker: connected", wrong, "delivered 10"), time.monotonic(), 9)
    printed = capsys.readouterr().out
    assert printed.count(wrong) == 1
    assert re.search(r"^delivered  message 10, 0\.\d s after the reset$", printed, re.MULTILINE)


@pytest.mark.req("B3")
@pytest.mark.parametrize("new", ["delivered 48", "status stored=48 waiting=0 connects=1 dropped=0"])
def test_deployment_waits_for_a_message_that_was_stored_after_the_reset(capsys, new):
    lines = ("boot device=b boot=3 stored=47 cause=reset", "delivered 46", "delivered 47", new, "delivered 49")
    deploy.wait_for_delivery(Console(*lines), time.monotonic(), 9)
    printed = capsys.readouterr().out
    assert printed.count("delivered") == 1 and ("message 48" in printed or "everything stored" in printed)


@pytest.mark.req("B3")
@pytest.mark.parametrize("dropped", [0, 3])
def test_losses_before_a_deployment_do_not_count_and_those_after_it_do(capsys, dropped):
    earlier, later = f"waiting=0 connects=0 dropped={dropped}", "stored=49 waiting=0 connects=1 dropped="
    lines = ("boot device=b stored=47", f"status stored=47 {earlier}", f"status {later}{dropped + 2}")
    for heard in (lines, lines[2:]):  # all were refused
        with pytest.raises(Failure, match="nothing was delivered"):
            deploy.wait_for_delivery(Console(*heard), time.monotonic(), 9)
    deploy.wait_for_delivery(Console(*lines[:2], f"status {later}{dropped}"), time.monotonic(), 9)
    assert "everything stored" in capsys.readouterr().out


@pytest.mark.req("B3", "S6")
def test_deployment_of_a_program_that_ends_is_not_waited_for():
    lines = ("journal: StoreForeign version 1", 'Type "help()" for more information.', ">>> ", "delivered 1")
    with pytest.raises(
        Failure, match=r"before the program ended\. .*the board's last message: journal: StoreForeign ver"
    ):
        deploy.wait_for_delivery(Console(*lines), time.monotonic(), 9)


def console_of(monkeypatch, *pieces: tuple[float, bytes]) -> Link:
    """Return a link to a port that prints these pieces, each at its time of a clock that only a sleep advances."""
    coming = list(pieces)
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    def read(_: int) -> bytes:
        return coming.pop(0)[1] if coming and coming[0][0] <= clock.now else b""

    clock.sleep = sleep
    for module in (link_module, deploy):
        monkeypatch.setattr(module, "time", clock)
    port = SimpleNamespace(read=read, inWaiting=lambda: bool(coming) and coming[0][0] <= clock.now)
    link = Link("")
    link._transport = SimpleNamespace(serial=port)
    return link


@pytest.mark.req("B3")
def test_deployment_waits_longer_if_older_messages_are_delivered_first(monkeypatch, capsys):
    older = [(n / 10, b"delivered %d\n" % n) for n in range(1, 10)]
    link = console_of(monkeypatch, (0, b"boot stored=9\n"), *older, (1.0, b"delivered 10\n"))
    deploy.wait_for_delivery(link, 0.0, 0.3)
    assert "delivered  message 10, 1.0 s after" in capsys.readouterr().out


@pytest.mark.parametrize("delivered_s", [1.5, 1.7])
@pytest.mark.req("B3")
def test_deployment_waits_longer_if_the_board_waits_before_it_connects(monkeypatch, capsys, delivered_s):
    pause = b"broker: connecting in 1.2 s, as there was no connection before the restart\r\n"
    link = console_of(monkeypatch, (0, pause), (delivered_s, b"delivered 4\r\n"))
    with contextlib.nullcontext() if delivered_s < 1.6 else pytest.raises(Failure, match="within 2 s"):
        deploy.wait_for_delivery(link, 0.0, 0.4)
    assert ("delivered  message 4" in capsys.readouterr().out) == (delivered_s < 1.6)


@pytest.mark.req("B3", "B4")
def test_wrong_wifi_password_is_named_at_the_end_of_a_deployment(tmp_path):
    with Device(tmp_path / "board", wifi="home:another-word") as device:
        config = write_configuration(tmp_path / "config", 1)
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config))
        for patience_s in ("2", "4", "8", "16", "32", "64", "128"):  # each deployment waits until its timeout
            status, printed, complaints = run(*words, "--timeout", patience_s)
            assert status == 1
            if "network: wrong password" in printed + complaints:
                return
        pytest.fail(printed + complaints)


@pytest.mark.parametrize(
    ("configured", "words"),
    [
        (b'{"broker": "b", "port": 0}', b"configuration: port: 0 is not allowed"),
        (b'"' + b"a" * 300_000 + b'"', b"configuration: config.json is not JSON, or too long"),
    ],
    ids=["a value", "a file too long for the heap"],
)
@pytest.mark.req("B3", "B4")
def test_invalid_configuration_on_the_board_is_named_on_its_console(tmp_path, configured, words):
    with Device(tmp_path / "board") as device:
        with Link(device.path) as link:
            for path, content in build.image("pico_w", "x64").items():
                if path.startswith(("/app/__init__", "/app/configuration", "/main", "/board")) or "errors" in path:
                    link.put(path, content)
            link.put("/config.json", configured)
        since = len(device.console)
        device.power_cut()
        device.wait_for(words, since=since)
        device.wait_for(b">>> ", since=since)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"name": "circuitpython"}, "not MicroPython"),
        ({"platform": "esp32", "machine": "Generic ESP32 module with ESP32"}, "BOARD=esp32"),
        ({"machine": "Raspberry Pi Pico with RP2040"}, "not a pico_w"),
        ({"version": (1, 23, 0)}, "too old: 1.24"),
    ],
)
@pytest.mark.req("B3")
def test_wrong_board_is_named(found, words):
    good = {
        "name": "micropython",
        "platform": "rp2",
        "machine": "Raspberry Pi Pico W with RP2040",
        "version": (1, 24, 1),
    }
    assert deploy.which_board(good, "pico_w", "/dev/x") == deploy.which_board(good, "auto", "/dev/x") == "pico_w"
    with pytest.raises(Failure) as failed:
        deploy.which_board({**good, **found}, "pico_w", "/dev/x")
    assert words in str(failed.value)


@pytest.mark.parametrize(
    ("found", "words"), [({"name": "circuitpython"}, "not MicroPython"), ({"version": (1, 23, 0)}, "too old: 1.24")]
)
@pytest.mark.req("B3")
def test_wrong_micropython_is_named_for_a_board_of_the_users_own(found, words):
    good = {"name": "micropython", "platform": "stm32", "machine": "PYBD", "version": (1, 24, 1)}
    assert deploy.which_board(good, "", "/dev/x") == ""
    with pytest.raises(Failure, match=words):
        deploy.which_board({**good, **found}, "", "/dev/x")


@pytest.mark.parametrize(
    ("platform", "machine", "board"),
    [
        ("rp2", "Raspberry Pi Pico W with RP2040", "pico_w"),
        ("rp2", "Raspberry Pi Pico 2 W with RP2350", "pico2_w"),
        ("rp2", "W5500-EVB-Pico with RP2040", "w5500_evb_pico"),
        ("esp32", "Generic ESP32 module with ESP32", "esp32"),
        ("esp32", "Generic ESP32 module with SPIRAM with ESP32", "esp32"),
        ("esp32", "Generic ESP32S3 module with Octal-SPIRAM with ESP32S3", "esp32_s3"),
        ("esp32", "Generic ESP32C3 module with ESP32C3", "esp32_c3"),
        ("rp2", "Raspberry Pi Pico with RP2040", None),  # no network
        ("esp8266", "ESP module with ESP8266", None),
    ],
)
@pytest.mark.req("B3")
def test_deployment_detects_the_board(platform, machine, board):
    found = {"name": "micropython", "platform": platform, "machine": machine, "version": (1, 25, 0)}
    if board:
        assert deploy.which_board(found, "auto", "/dev/x") == board
    else:
        with pytest.raises(Failure, match="not a known board"):
            deploy.which_board(found, "auto", "/dev/x")


def template() -> str:
    """Return the `board.py` of boards/README.md."""
    page = (ROOT / "boards/README.md").read_text()
    (found,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return found


@pytest.mark.req("B1", "B3")
def test_custom_board_from_the_template_delivers_a_reading(tmp_path):
    own = tmp_path / "my_board.py"
    own.write_text(template())
    with Broker(tmp_path / "broker") as broker, Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        words = ("--board-file", str(own), "--port", device.path, "--config", str(config), "--timeout", "120")
        status, printed, complaints = run("deploy", *words)
        assert status == 0 and "delivered" in printed, printed + complaints


@pytest.mark.req("B5")
def test_custom_board_from_the_template_feeds_the_watchdog_during_a_sleep(monkeypatch):
    did: list = []
    monkeypatch.setitem(
        sys.modules, "network", SimpleNamespace(WLAN=lambda _: SimpleNamespace(active=did.append), STA_IF=0)
    )
    watchdog = SimpleNamespace(feed=lambda: did.append("fed"))
    machine = SimpleNamespace(WDT=lambda timeout: watchdog, lightsleep=did.append, reset=lambda: did.append("reset"))
    monkeypatch.setitem(sys.modules, "machine", machine)
    for name in ("ticks_ms", "ticks_diff"):
        monkeypatch.setattr(time, name, None, raising=False)
    board: dict = {}
    exec(template(), board)
    board["watchdog"](30_000)
    board["sleep"](5000)
    assert did == [False, "fed", 2000, "fed", 2000, "fed", 1000, "reset"]


@pytest.mark.req("B1")
def test_custom_board_from_the_template_joins_again_if_an_attempt_fails(monkeypatch):
    now, calls, joined = [1000], [], [False]
    wlan = SimpleNamespace(
        active=lambda on: calls.append(on), connect=lambda *words: calls.append(words), isconnected=lambda: joined[0]
    )
    network = SimpleNamespace(WLAN=lambda _: wlan, STA_IF=0)
    monkeypatch.setitem(sys.modules, "network", network)
    monkeypatch.setitem(sys.modules, "machine", SimpleNamespace(WDT=None))
    monkeypatch.setattr(time, "ticks_ms", lambda: now[0], raising=False)
    monkeypatch.setattr(time, "ticks_diff", lambda a, b: a - b, raising=False)
    board: dict = {}
    exec(template(), board)
    logged: list[str] = []

    def up() -> bool:
        return board["network_up"]("home", "secret", "AT", logged.append)

    assert not board["network_up"]("", "", "") and calls == []
    assert not up() and calls[-1] == ("home", "secret") and logged == ["network: joining home"]
    attempts = len(calls)
    now[0] += 19_000
    assert not up() and len(calls) == attempts
    now[0] += 2_000
    assert not up() and calls[attempts:] == [False, True, ("home", "secret")]  # a connect() during an attempt may raise
    joined[0] = True
    assert up()
    now[0] += 60_000
    joined[0] = False
    attempts = len(calls)
    assert not up() and calls[attempts:] == [False, True, ("home", "secret")]
    board["network_down"]()
    attempts = len(calls)
    assert not up() and len(calls) > attempts


def check_contract(port, *commands):
    for words in (*commands, ("run", str(ROOT / "boards/check.py"))):
        ran = subprocess.run(
            [str(Path(sys.executable).parent / "mpremote"), "connect", port, *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == "the board keeps the contract", ran.stdout


@pytest.mark.parametrize("board", ["pico_w", "esp32"])
@pytest.mark.req("B1")
def test_contract_check_passes_on_a_board_with_the_library_from_mip(tmp_path, board):
    with Device(tmp_path / "board", board) as device:
        source = str(ROOT / f"boards/{build.BOARDS[board][0]}/board.py")
        check_contract(
            device.path, ("mip", "install", str(ROOT / "firmware/package.json")), ("cp", source, ":board.py")
        )


@pytest.mark.req("B1")
def test_contract_check_lists_everything_that_a_board_lacks(capsys):
    found: dict = {"__name__": "check"}
    exec((ROOT / "boards/check.py").read_text(), found)
    found["check"](SimpleNamespace(MODEL="mine", led=lambda on: None, reset=5))
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("led ") and "ok" in line]
    wrong = {line.split()[0] for line in said if "WRONG" in line and line.endswith(": it has to be a function")}
    contract = set(re.findall(r"^def (\w+)", (ROOT / "boards/board.pyi").read_text(), re.MULTILINE))
    assert wrong == contract - {"led"}


@pytest.mark.parametrize(
    ("sensor", "wrong"),
    [
        (SimpleNamespace(name="soil", unit="", read=lambda: 4.5), []),
        (SimpleNamespace(name="soil", unit="", read=lambda: None), []),
        (SimpleNamespace(name="soil", unit="", read=lambda: float("nan")), ["sensor soil"]),
        (SimpleNamespace(name="soil", unit="", read=lambda: True), ["sensor soil"]),
        (SimpleNamespace(name="soil", unit="", read=lambda: sys.exit("no chip")), ["sensor soil"]),
        (SimpleNamespace(name="soil 1", unit="", read=lambda: 1), ["its name"]),
        (SimpleNamespace(name="_soil", read=lambda: 1), ["its name", "its unit"]),
        (SimpleNamespace(read=lambda: 1), ["its name", "its unit"]),
        (5, ["sensor None", "its name", "its unit"]),
    ],
)
@pytest.mark.req("B1")
def test_contract_check_names_what_the_application_would_refuse_in_a_sensor(capsys, sensor, wrong):
    found: dict = {"__name__": "check"}
    exec((ROOT / "boards/check.py").read_text(), found)
    found["check_sensor"](sensor)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" WRONG")[0].strip() for line in said if "WRONG" in line] == wrong


def test_every_board_is_in_the_documents():
    for board in build.BOARDS:
        for page in ("boards/README.md", "boards/IMAGES.md"):
            assert f"`{board}`" in (ROOT / page).read_text(), (page, board)


@pytest.mark.parametrize("board", ["pico2_w", "w5500_evb_pico", "esp32_s3", "esp32_c3"])
@pytest.mark.req("B1", "B3")
def test_deployment_to_each_board_ends_with_a_delivered_reading_and_keeps_the_contract(tmp_path, board):
    with Broker(tmp_path / "broker") as broker, Device(tmp_path / "board", board, wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        status, printed, complaints = run("deploy", "--port", device.path, "--config", str(config), "--timeout", "120")
        assert status == 0 and "delivered" in printed, printed + complaints
        check_contract(device.path)


@pytest.mark.req("B3")
def test_full_board_is_named_before_anything_is_copied(tmp_path):
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        with Link(device.path) as link:
            link.run("f = open('/big', 'wb')\nfor _ in range(780): f.write(bytes(1024))\nf.close()", timeout_s=60)
        status, _, complaints = run(*("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config)))
        assert status == 1 and "too full" in complaints and "journal" in complaints
        assert listing(device) == ["big"]


@pytest.mark.req("B3")
def test_space_that_replaced_files_need_in_addition_is_missed_before_anything_is_copied(tmp_path):
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        names = [name for name in build.image("pico_w", "x64") if name.startswith("/lib/")]
        folders = sorted({str(folder) for name in names for folder in Path(name).parents})[1:]
        with Link(device.path) as link:
            link.run(
                f"import os\nfor p in {folders}: os.mkdir(p)\nfor p in {names}: open(p, 'w').close()", timeout_s=60
            )
            free = link.literal("import os\ns = os.statvfs('/'); print(s[0] * s[3])")
            kb = (free - 64 * 1024 - 120_000) // 1024  # the library alone has more than 120 KB
            link.run(f"f = open('/big', 'wb')\nfor _ in range({kb}): f.write(bytes(1024))\nf.close()", timeout_s=60)
        status, _, complaints = run("deploy", "--port", device.path, "--config", str(config))
        assert status == 1 and "too full" in complaints, complaints
        assert "main.py" not in listing(device)


@pytest.mark.req("B3")
def test_negative_free_space_is_treated_as_full(tmp_path):
    """MicroPython's littlefs counts a folder's blocks twice, so the number of free blocks may be negative: 2^32 - n."""
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        with Link(device.path) as link:
            link.run(
                "import os\nfor n in range(20): os.mkdir('/d%d' % n)\nf = open('/big', 'wb')\n"
                "for _ in range(640): f.write(bytes(1024))\nf.close()",
                timeout_s=60,
            )
            assert link.literal("import os\ns = os.statvfs('/'); print(s[3] > s[2] or s[3] < 0)")
        status, _, complaints = run(*("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config)))
        assert status == 1 and "too full" in complaints and " 0 KB are free" in complaints


@pytest.mark.req("B3")
def test_space_of_removable_mip_sources_counts_as_free(tmp_path):
    with Device(tmp_path / "board", wifi=WIFI) as device:
        config = write_configuration(tmp_path / "config", 1)
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--dry-run")
        with Link(device.path) as link:
            link.run(
                "import os\nos.mkdir('/lib')\nos.mkdir('/lib/flashmqtt')\nf = open('/lib/flashmqtt/old.py', 'wb')\n"
                "for _ in range(760): f.write(bytes(1024))\nf.close()",
                timeout_s=60,
            )
        status, printed, complaints = run(*words)
        assert status == 0 and "remove /lib/flashmqtt/old.py" in printed, complaints


@pytest.mark.parametrize(
    ("kind", "sectors", "said"),
    [("PinnedFiles", 16, False), ("PinnedFiles", 64, True), ("BlockRegion", 64, False)],
)
@pytest.mark.req("B3")
def test_journal_of_another_size_than_configured_is_reported(capsys, kind, sectors, said):
    class Board:
        def literal(self, code, timeout_s):
            return 16, 4096, kind

    deploy.prepare_journal(Board(), sectors)
    printed = capsys.readouterr().out
    assert "64 KB" in printed and ("make wipe JOURNAL=1" in printed) == said


@pytest.mark.req("B3")
def test_unusable_port_is_named_with_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(Failure, match="There is no port /dev/nowhere"):
        ports.find("/dev/nowhere")
    monkeypatch.setattr(ports.list_ports, "comports", list)
    with pytest.raises(Failure, match="No board found"):
        ports.find()

    class Port:
        def __init__(self, device, vid, pid):
            self.device, self.vid, self.pid = device, vid, pid

    monkeypatch.setattr(ports, "USB", tmp_path)
    for product in ("0003", "000f"):  # a Pico or a Pico 2 without MicroPython: a drive, and no serial port
        pico = tmp_path / f"1-{product}"
        pico.mkdir()
        (pico / "idVendor").write_text("2e8a\n")
        with pytest.raises(Failure, match="Does the cable carry data"):
            ports.find()
        (pico / "idProduct").write_text(f"{product}\n")
        with pytest.raises(Failure, match="BOOTSEL"):
            ports.find()
        (pico / "idVendor").unlink()
    both = [Port("/dev/ttyACM0", 0x2E8A, 5), Port("/dev/ttyUSB0", 0x10C4, 0xEA60)]
    monkeypatch.setattr(ports.list_ports, "comports", lambda: both)
    with pytest.raises(Failure, match="Several boards"):
        ports.find()
    monkeypatch.setattr(ports.list_ports, "comports", lambda: both[:1])
    assert ports.find() == "/dev/ttyACM0"

    assert "/dev/null is not a serial port" in str(ports.why_closed("/dev/null"))
    assert "/dev/null is not a serial port" in run("monitor", "--port", "/dev/null")[2]

    monkeypatch.setattr(ports.os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    group = SimpleNamespace(gr_name="dialout")
    monkeypatch.setattr(ports.grp, "getgrgid", lambda number: group)
    assert "usermod -aG dialout $USER" in str(ports.why_closed("/dev/null"))
    group.gr_name = "root"
    assert str(ports.why_closed("/dev/null")).endswith("sudo chmod a+rw /dev/null")


@pytest.mark.req("B3")
def test_board_on_which_mpremote_mounted_a_folder_and_was_killed_is_deployed_to(tmp_path):
    mpremote = Path(sys.executable).parent / "mpremote"
    with Device(tmp_path / "board") as device:
        program = "import time\nprint('mounted')\nwhile True: time.sleep(1)"
        words = ["connect", device.path, "mount", str(tmp_path), "exec", program]
        mounting = subprocess.Popen([mpremote, *words], stdin=subprocess.DEVNULL)
        device.wait_for(b"mounted\n")
        mounting.kill()
        mounting.wait()
        with Link(device.path) as link:
            assert link.literal("import os; print((os.getcwd(), os.listdir('/')))") == ("/", [])


@pytest.mark.req("B3")
def test_busy_port_is_named(tmp_path):
    with Device(tmp_path / "board") as device:
        with Link(device.path), pytest.raises(Failure, match="busy"):
            Link(device.path).open()
        with Link(device.path) as link:
            assert link.run("print(1)").strip() == "1"


@pytest.mark.req("B3")
def test_reset_that_comes_late_is_neither_cancelled_nor_does_it_lose_the_connection(tmp_path, monkeypatch):
    reset = link_module._RESET
    with Device(tmp_path / "board") as device, Link(device.path) as link:
        for late_ms in (300, 490, 495, 498, 500, 502, 505, 510, 900):  # the port is open again after RESET_S
            monkeypatch.setattr(link_module, "_RESET", reset.replace("sleep_ms(100)", f"sleep_ms({late_ms})"))
            before = len(device.resets)
            link.reset()
            link.stop()
            assert link.run("print('x' * 50)").strip() == "x" * 50, late_ms
            assert device.resets[before:] == ["hard"], late_ms


class LatePrompt(Device):
    """A board whose friendly prompt arrives after the raw REPL's banner, once."""

    late = b"\r\nMPY: soft reboot\r\n>>> "

    def _to_user(self, data: bytes) -> None:
        super()._to_user(data)
        if self.late and self.console.endswith(b"raw REPL; CTRL-B to exit\r\n>"):  # also if it came in pieces
            late, self.late = self.late, b""
            super()._to_user(late)


@pytest.mark.req("B3")
def test_prompt_that_arrives_late_is_not_taken_for_an_answer(tmp_path, capsys):
    with LatePrompt(tmp_path / "board") as device, Link(device.path) as link:
        assert device.late == b""
        assert link.run("print('x' * 50)").strip() == "x" * 50
    assert capsys.readouterr().out == ""


@pytest.mark.req("B3")
def test_silent_port_is_named(monkeypatch):
    import pty

    monkeypatch.setattr("tools.deploy.link.REPL_S", 1)
    monkeypatch.setattr("tools.deploy.link.SILENT_S", 1)
    master, slave = pty.openpty()
    try:
        with pytest.raises(Failure, match="does not answer"):
            Link(os.ttyname(slave)).open()
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.req("B3")
def test_file_system_full_during_copy_keeps_the_old_file(tmp_path):
    with Device(tmp_path / "board") as device, Link(device.path) as link:
        link.put("/main.py", b"print('old')\n")
        link.run("f = open('/big', 'wb')\nfor _ in range(800): f.write(bytes(1024))\nf.close()", timeout_s=60)
        with pytest.raises(Failure, match=r"file system is full: /main\.py does not fit"):
            link.put("/main.py", bytes(60000))
        assert link.get("/main.py") == b"print('old')\n"
        assert sorted(link.literal("import os; print(os.listdir('/'))")) == ["big", "main.py"]
        with pytest.raises(BoardSaid):
            link.run("import os\nfor n in range(99): os.mkdir('/%d' % n)")
        with pytest.raises(Failure, match=r"file system is full: /app/main\.mpy does not fit"):
            link.put("/app/main.mpy", b"")


@pytest.mark.req("B3")
def test_file_damaged_in_transfer_is_refused(tmp_path, monkeypatch):
    with Device(tmp_path / "board") as device, Link(device.path) as link:
        link.put("/a", b"old")
        monkeypatch.setattr(link, "_write", lambda path, content, step: link.run(f"open({path!r}, 'w').write('nwe')"))
        with pytest.raises(Failure, match="did not arrive as it was sent"):
            link.put("/a", b"new")
        assert link.get("/a") == b"old"


@pytest.mark.req("B3")
def test_monitor_shows_the_console_and_leaves_the_board_running(tmp_path):
    with Device(tmp_path / "board") as device:
        start_ticks(device)
        started = list(device.resets)
        words = [sys.executable, "-m", "tools.deploy", "monitor", "--port", device.path]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            said = (int(line.split()[1]) for line in process.stdout if line.startswith("tick "))
            ticks = list(itertools.islice(said, 5))
            process.send_signal(signal.SIGINT)  # Ctrl-C
            assert process.wait() == 0
        assert ticks == list(range(ticks[0], ticks[0] + 5)) and ticks[0] > 0
        since = len(device.console)
        device.wait_for(b"tick ", since=since)
        assert device.resets == started


class Terminal:
    """A pseudo-terminal that runs a command."""

    def __init__(self, *words: str):
        self._master, slave = os.openpty()
        self.before = termios.tcgetattr(slave)
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *words], stdin=slave, stdout=slave, stderr=slave, cwd=ROOT
        )
        self._slave = slave
        os.set_blocking(self._master, False)
        self.said = ""

    def until(self, text: str) -> None:
        def is_said() -> bool:
            self._read()
            assert text in self.said or self._process.poll() is None, self.said
            return text in self.said

        until(is_said, lambda: self.said)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.said += os.read(self._master, 65536).decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ended(self) -> int:
        """Wait for the command's end; return its status."""
        deadline = time.monotonic() + 60
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read()
            time.sleep(0.02)
        status = self._process.wait(1)
        self._read()
        assert termios.tcgetattr(self._slave) == self.before
        for descriptor in (self._master, self._slave):
            os.close(descriptor)
        return status


RUNNING = b'"""flashmqtt: runs"""\nimport os\nassert "deploying" not in os.listdir()\n' + TICKS


@pytest.mark.parametrize("words", [("backup",), ("wipe",), ("dump",)], ids=lambda words: words[0])
@pytest.mark.req("B3")
def test_board_runs_on_after_a_command_that_was_stopped_or_failed(tmp_path, monkeypatch, words):
    def interrupt(*_):
        raise KeyboardInterrupt

    with Device(tmp_path / "board") as device:
        with Link(device.path) as link:
            link.put("/main.py", RUNNING)
            if words == ("dump",):
                link.put("/board.py", b"def journal_region(sectors):\n    while True: print('-')\n")
        real = Link.run

        def run_or_stop(link: Link, script: str, timeout_s: float = 30) -> str:
            if script == journal_image.READ_REGION:  # Ctrl-C while the board prints
                link._board.exec_raw_no_follow(script)
                time.sleep(0.3)
                raise KeyboardInterrupt
            return real(link, script, timeout_s)

        monkeypatch.setattr(Link, "run", run_or_stop)
        monkeypatch.setattr(Link, "get", interrupt)
        monkeypatch.setattr(deploy, "ask", interrupt)
        since = len(device.console)
        if words == ("dump",):
            with pytest.raises(KeyboardInterrupt):
                journal_image.from_board(device.path)
        else:
            more = ("--output", str(tmp_path / "kept")) if words == ("backup",) else ()
            assert run(*words, "--port", device.path, *more)[0] == 130
        device.wait_for(b"tick 2", since=since)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP], ids=["killed", "terminal closed"])
@pytest.mark.req("B3")
def test_board_starts_its_program_after_a_backup_that_was_ended(tmp_path, how):
    with Device(tmp_path / "board") as device:
        put(device, {"/main.py": RUNNING, "/read_when_ended": bytes(range(256)) * 250})
        words = ("backup", "--port", device.path, "--output", str(tmp_path / "kept"))
        process = subprocess.Popen([sys.executable, "-m", "tools.deploy", *words], cwd=ROOT)
        while not list((tmp_path / "kept").glob("*/*")):
            assert process.poll() is None
            time.sleep(0.005)
        since = len(device.console)
        process.send_signal(how)
        process.wait()
        if how == signal.SIGKILL:
            device.power_cut()
        device.wait_for(b"tick 2", since=since)


@pytest.mark.parametrize("first_line", [RUNNING.splitlines(keepends=True)[0], b""], ids=["flashmqtt's", "another one"])
@pytest.mark.req("B3")
def test_board_runs_on_after_ctrl_c_while_its_program_is_stopped(tmp_path, monkeypatch, first_line):
    program = first_line + RUNNING.split(b"\n", 1)[1]

    def reset_and_stop(link: Link, real=Link.reset) -> None:
        real(link)
        monkeypatch.undo()
        raise KeyboardInterrupt

    with Device(tmp_path / "board") as device:
        put(device, {"/main.py": program})
        monkeypatch.setattr(Link, "reset", reset_and_stop)
        assert run("backup", "--port", device.path, "--output", str(tmp_path / "kept"))[0] == 130
        device.wait_for(b"tick 2", since=len(device.console))
        assert listing(device) == ["main.py"]


@pytest.mark.req("B3")
def test_board_that_was_unplugged_while_its_own_program_was_stopped_runs_on_after_the_next_command(
    tmp_path, monkeypatch
):
    own = {"/main.py": TICKS, "/app/pump.py": b"#\n", "/config.json": b"{}"}
    words = ("backup", "--port")

    def unplugged(*_):
        raise Failure("unplugged")

    with Device(tmp_path / "board") as device:
        put(device, own)
        for renamed in (["main.py"], ["main.py", "app"]):  # by `backup`; by a `deploy`, in part
            with monkeypatch.context() as patch:
                patch.setattr(Link, "reset", unplugged)
                patch.setattr(deploy, "allow_start", unplugged)
                assert run(*words, device.path, "--output", str(tmp_path / "kept"))[0] == 1
            with Link(device.path) as link:
                link.run(deploy.set_aside(renamed))
                assert "main.py" not in link.literal("import os; print(os.listdir('/'))")
            since = len(device.console)
            assert run(*words, device.path, "--output", str(tmp_path / "kept"))[0] == 0
            device.wait_for(b"tick 2", since=since)
            with Link(device.path) as link:
                assert {path: link.get(path) for path in own} == own


@pytest.mark.req("B3")
def test_question_answered_by_the_end_of_the_input_counts_as_no(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, readline=lambda: ""))
    assert deploy.ask("Remove it?", False) is False


@pytest.mark.req("B3")
def test_board_that_does_not_come_back_after_a_reset_is_named(tmp_path, monkeypatch):
    def away(link: Link) -> None:
        link.close()
        raise Failure("it is gone")

    with Device(tmp_path / "board") as device:
        put(device, {"/main.py": RUNNING})
        monkeypatch.setattr(Link, "reset", away)
        assert run("backup", "--port", device.path)[::2] == (1, "backup: it is gone\n")


@pytest.mark.req("B3")
def test_backup_of_a_hostile_board_writes_only_into_its_folder(tmp_path, monkeypatch):
    with Device(tmp_path / "board") as device:
        put(device, {"/one": b"1"})
        monkeypatch.setattr(Link, "get", lambda link, path: b"evil")
        monkeypatch.setattr(deploy, "present", lambda *_, **__: {"/one": "", "/../../evil": ""})
        status, _, complaints = run("backup", "--port", device.path, "--output", str(tmp_path / "kept"))
        assert status == 1 and "/../../evil, which would be written outside" in complaints
    assert not list(tmp_path.rglob("evil")) and not (tmp_path / "kept").exists()


@pytest.mark.req("B3")
def test_backup_that_was_stopped_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    with Device(tmp_path / "board") as device:
        put(device, {"/one": b"1"})
        monkeypatch.setattr(Link, "get", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        status, _, complaints = run("backup", "--port", device.path, "--output", str(tmp_path / "kept"))
        assert status == 1 and complaints.startswith("backup: ") and "No space left on device" in complaints
        assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.parametrize("command", ["backup", "dump", "deploy --dry-run", "wipe"])
@pytest.mark.req("B3")
def test_unfinished_deployment_stays_marked_until_it_is_finished(tmp_path, monkeypatch, command):
    config = write_configuration(tmp_path / "config", 1)
    with Device(tmp_path / "board") as device:
        with Link(device.path) as link:
            link.put("/main.py", build.sources("pico_w")["/main.py"].read_bytes())
            link.put("/board.py", (ROOT / "boards/rp2/board.py").read_bytes())
            link.run("open('/deploying', 'w').close()")
        since = len(device.console)
        if command == "dump":
            monkeypatch.setattr(journal_image, "READ_REGION", "print(4096)")
            assert journal_image.from_board(device.path) == (b"", 4096)
        else:
            monkeypatch.setattr(deploy, "ask", lambda *_: False)
            more = {"backup": ["--output", str(tmp_path / "kept")], "wipe": []}.get(command, ["--config", str(config)])
            run(*command.split(), "--port", device.path, *more)
        device.wait_for(b"deployment: unfinished", since=since)
        time.sleep(0.2)
        assert "deploying" in listing(device)


@pytest.mark.req("B3")
def test_ctrl_c_in_a_terminal_ends_only_the_monitor(tmp_path):
    with Device(tmp_path / "board") as device:
        start_ticks(device)
        started = list(device.resets)
        terminal = Terminal(sys.executable, "-m", "tools.deploy", "monitor", "--port", device.path)
        terminal.until("tick ")
        terminal.press(b"x\x03")
        assert terminal.ended() == 0
        assert not re.search("Traceback|Error|Interrupt|Stopped", terminal.said), terminal.said
        device.wait_for(b"tick ", since=len(device.console))
        assert device.resets == started


@pytest.mark.req("B3")
def test_monitor_names_an_unplugged_board_and_waits_until_ctrl_c(tmp_path):
    with Device(tmp_path / "board") as device:
        start_ticks(device)
        terminal = Terminal(sys.executable, "-m", "tools.deploy", "monitor", "--port", device.path)
        terminal.until("tick ")
        path = device.path
    terminal.until(f"monitor: {path} has disappeared: the board sleeps or was unplugged; waiting for it")
    terminal.press(b"\x03")
    assert terminal.ended() == 0 and "Traceback" not in terminal.said, terminal.said


@pytest.mark.req("B3")
def test_monitor_whose_time_is_up_while_the_port_is_away_ends_without_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(link_module, "RESET_S", 0.05)
    with Device(tmp_path / "board") as device:
        threading.Timer(0.5, device.stop).start()
        status, printed, complaints = run("monitor", "--port", device.path, "--timeout", "2")
    assert status == 0 and "has disappeared" in complaints, printed + complaints


@pytest.mark.req("B3", "B5")
def test_console_of_a_board_continues_however_long_it_slept(tmp_path, monkeypatch):
    monkeypatch.setattr(link_module, "REOPEN_S", 0.1)
    port = tmp_path / "port"
    with Device(tmp_path / "asleep") as first, Device(tmp_path / "awake") as second:
        for device in (first, second):
            start_ticks(device)

        def wake():
            port.unlink()
            port.symlink_to(second.path)

        timer = threading.Timer(1, wake)
        port.symlink_to(first.path)
        link = Link(str(port))
        link.reopen()
        lines = link.lines(0, timer.start)
        next(lines)
        first.stop()
        assert any("tick " in line for line in itertools.islice(lines, 1000) if timer.finished.is_set())
        link.close()


@pytest.mark.req("B3")
def test_monitor_leaves_an_idle_board_at_its_prompt(tmp_path):
    with Device(tmp_path / "board") as device:
        started = list(device.resets)
        status, printed, complaints = run("monitor", "--port", device.path, "--timeout", "0.3")
        assert (status, complaints) == (0, ""), printed
        since = len(device.console)
        port = serial.Serial(device.path)
        port.write(b"print(6 * 7)\r\n")
        device.wait_for(b"42", since=since)
        port.close()
        assert device.resets == started


@pytest.mark.req("B3")
def test_monitor_continues_after_a_reset(tmp_path):
    with Device(tmp_path / "board") as device:
        put(device, {"/main.py": b"import machine, time\nfor n in range(3):\n    print('tick', n)\nmachine.reset()\n"})
        device.power_cut()
        words = [sys.executable, "-m", "tools.deploy", "monitor", "--port", device.path]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            ends = sum(line.startswith("tick 2") for line in itertools.islice(process.stdout, 40))
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
        assert ends > 1


@pytest.mark.req("B3", "B4")
def test_watchdog_reset_during_a_command_is_retried(tmp_path):
    program = (
        "import machine, time\nif machine.reset_cause() != 3: machine.WDT(timeout=500)\n"
        "while True:\n    print('flashmqtt runs')\n    time.sleep_ms(20)\n"
    )
    with Device(tmp_path / "board") as device:
        put(device, {"/main.py": program.encode()})
        device.power_cut()
        device.wait_for(b"flashmqtt runs")
        with Link(device.path) as link:
            with pytest.raises(Failure, match=r"stopped answering.*run the command again"):
                link.run("import time\nwhile True: time.sleep_ms(10)", timeout_s=1)
            assert deploy.retry_after_reset(link, lambda: link.run("print(6 * 7)", timeout_s=20)).strip() == "42"
        assert "watchdog" in device.resets


@pytest.mark.req("B3")
def test_watchdog_of_another_program_does_not_reset_the_board_during_a_command(tmp_path):
    program = b"import machine, time\nw = machine.WDT(timeout=500)\nwhile True:\n    w.feed()\n    time.sleep_ms(20)\n"
    with Device(tmp_path / "board") as device:
        put(device, {"/main.py": program})
        device.power_cut()
        with Link(device.path) as link:
            deploy.stop_program(link, deploy.probe(link))
            resets = len(device.resets)
            time.sleep(1)
            assert link.get("/main.py") == program
        assert device.resets[resets:] == []


@pytest.mark.req("B3")
def test_board_that_is_unplugged_during_a_command_is_named_with_what_to_do(tmp_path):
    with Device(tmp_path / "board") as device, Link(device.path) as link:
        device.stop()
        for act in (lambda: link.run("print(1)"), lambda: link.put("/a", b"a")):
            with pytest.raises(Failure, match=r"stopped answering.*unplugged.*run the command again"):
                act()


WHERE = """
import sys
sys.path.append('/lib')
import app.configuration as a, flashmqtt.errors as e
print((a.__file__, e.__file__))
"""


@pytest.fixture
def with_romfs(tmp_path, monkeypatch):
    """Return a function that makes a virtual board with a number of KB of ROMFS, allocated in its heap."""
    monkeypatch.setattr(virtual, "HEAP", "1024K")

    def make(kib: int) -> Device:
        (tmp_path / "board").mkdir()
        (tmp_path / "board" / "romfs.bin").write_bytes(b"\xff" * (kib * 1024))
        return Device(tmp_path / "board", wifi=WIFI)

    return make


@pytest.mark.req("B3")
def test_modules_are_written_to_romfs_and_run_from_there(tmp_path, with_romfs):
    with Broker(tmp_path / "broker") as broker, with_romfs(256) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout", "120")
        modules = len(romfs.part(build.image("pico_w", "x64")))
        rom = tmp_path / "board" / "romfs.bin"

        # An older deployment, without ROMFS; somebody's own module in it, not mounted yet.
        with Link(device.path) as link:
            link.put("/lib/flashmqtt/errors.mpy", b"old")
            link.put("/app/application.mpy", b"old")
            romfs.write(link, romfs.packed({"/rom/lib/own.py": b"print('mine')"}), 4096)
        before = rom.read_bytes()
        status, printed, complaints = run(*words, "--dry-run")
        assert status == 0 and "write ROMFS (" in printed and "remove /app/application.mpy" in printed, complaints
        assert rom.read_bytes() == before

        status, printed, complaints = run(*words)
        assert status == 0 and "delivered" in printed, printed + complaints
        assert f"{modules} modules of the library and the application" in printed and "KB written" in printed
        with Link(device.path) as link:
            assert link.literal(WHERE) == ("/rom/app/configuration.mpy", "/rom/lib/flashmqtt/errors.mpy")
            assert {"app", "tls"}.isdisjoint(link.literal("import os; print(os.listdir('/'))"))
            assert link.get("/rom/lib/own.py") == b"print('mine')"

        before = rom.stat().st_mtime_ns
        status, printed, complaints = run(*words)
        assert status == 0 and "delivered" in printed, printed + complaints
        assert "; as it is" in printed and "0.0 KB to copy" in printed and rom.stat().st_mtime_ns == before

        status, printed, complaints = run("wipe", "--port", device.path, "--yes")
        assert status == 0, printed + complaints
        with Link(device.path) as link:
            assert link.literal("import os; print(os.listdir('/rom') + os.listdir('/rom/lib'))") == ["lib", "own.py"]


@pytest.mark.req("B3")
def test_romfs_too_small_is_reported_and_files_are_copied(tmp_path, with_romfs):
    with Broker(tmp_path / "broker") as broker, with_romfs(16) as device:
        config = write_configuration(tmp_path / "config", broker.port)
        words = ("deploy", "--board", "pico_w", "--port", device.path, "--config", str(config), "--timeout", "120")
        with Link(device.path) as link:  # it would be imported instead of the file
            romfs.write(link, romfs.packed({"/rom/lib/flashmqtt/errors.mpy": b"old"}), 4096)
        device.power_cut()
        status, printed, complaints = run(*words)
        assert status == 0 and "delivered" in printed, printed + complaints
        assert "the partition has 16: the modules stay files" in printed
        with Link(device.path) as link:
            assert link.literal(WHERE) == ("app/configuration.mpy", "/lib/flashmqtt/errors.mpy")


@pytest.mark.req("B3")
def test_interrupted_romfs_write_leaves_nothing_mounted(with_romfs, monkeypatch):
    class CutOff(Exception):
        pass

    def cut(count):
        raise CutOff

    with with_romfs(64) as device:
        with Link(device.path) as link:
            romfs.write(link, romfs.packed({"/rom/a": bytes(10000)}), 4096)
            with pytest.raises(CutOff):
                romfs.write(link, romfs.packed({"/rom/b": b"new" * 4000}), 4096, cut)
        device.power_cut()
        with Link(device.path) as link:
            assert "rom" not in link.literal("import os; print(os.listdir('/'))")
            monkeypatch.setattr(romfs, "_HASH", "print('%d')")
            with pytest.raises(Failure, match="did not arrive"):
                romfs.write(link, romfs.packed({"/rom/b": b"new"}), 4096)


@pytest.mark.req("B3")
def test_board_that_prints_endlessly_is_refused_and_does_not_hang(monkeypatch):
    import pty
    import threading
    import tty

    monkeypatch.setattr("tools.deploy.link.REPL_S", 1)
    master, slave = pty.openpty()
    tty.setraw(slave)
    ended = threading.Event()

    def print_on() -> None:
        while not ended.wait(0.02):
            os.write(master, b"stored\r\n")

    printer = threading.Thread(target=print_on)
    printer.start()
    try:
        with pytest.raises(Failure, match="does not answer with MicroPython's REPL"):
            Link(os.ttyname(slave)).open()
    finally:
        ended.set()
        printer.join()
        os.close(master)
        os.close(slave)
