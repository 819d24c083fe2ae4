"""The virtual board on its serial port, under the real mpremote: as a Pico W on a USB cable behaves."""

import contextlib
import errno
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from host_tests.deploy.device import Device
from host_tests.waiting import until
from tools.bootstrap import ROOT
from tools.command import Failure
from tools.deploy.link import Link
from tools.virtual_board import device as virtual_board

PATIENCE_S = 60  # on a busy machine
MPREMOTE = str(Path(sys.executable).parent / "mpremote")


def mpremote(device: Device, *words: str, timeout_s: float = 90) -> str:
    ran = subprocess.run(
        [MPREMOTE, "connect", device.path, *words], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert ran.returncode == 0, ran.stderr or ran.stdout
    return ran.stdout


def wait_for_reset(device: Device, how: str) -> None:
    """Wait until the board starts again for this reason."""
    until(lambda: device.resets[-1] == how, lambda: device.resets)


def put_main(device: Device, folder: Path, text: str) -> None:
    """Put a main.py on the board."""
    (folder / "main.py").write_text(text)
    mpremote(device, "fs", "cp", str(folder / "main.py"), ":main.py")


@pytest.mark.parametrize(
    ("board", "port", "name"),
    [("pico_w", "rp2", "Raspberry Pi Pico W with RP2040"), ("esp32", "esp32", "Generic ESP32 module with ESP32")],
)
@pytest.mark.req("B3")
def test_new_board_has_its_modules_an_empty_file_system_and_no_time_zone(tmp_path, monkeypatch, board, port, name):
    monkeypatch.setenv("TZ", "Asia/Kolkata")  # this machine's
    with Device(tmp_path, board) as device:
        script = (
            f"import sys, os, time, machine, network, {port}\n"
            "print(sys.platform, sys.implementation._machine, os.listdir('/'), sep='|')\n"
            "print(time.mktime((2026, 1, 1, 0, 0, 0, 0, 0)))"
        )
        assert mpremote(device, "exec", script).split("\n") == [f"{port}|{name}|[]", "1767225600", ""]


@pytest.mark.req("B3")
def test_port_works_on_after_a_power_cut_that_closed_a_watched_pty(tmp_path, monkeypatch):
    with Device(tmp_path) as device:
        wait, closed = select.select, []

        def just_closed(descriptors, *others):
            if len(descriptors) == 2 and not closed:
                closed.append(descriptors)
                raise OSError(errno.EBADF, "Bad file descriptor")
            return wait(descriptors, *others)

        monkeypatch.setattr(select, "select", just_closed)
        until(lambda: closed)
        assert mpremote(device, "exec", "print(6 * 7)", timeout_s=20).strip() == "42"


@pytest.mark.req("B3")
def test_power_cut_works_although_somebody_has_read_only_a_part_of_the_output(tmp_path):
    with Device(tmp_path) as device:
        put_main(device, tmp_path, "while True:\n    print('x' * 997)\n")
        device.power_cut()
        until(lambda: len(device.console) > 20_000, lambda: len(device.console))
        port = os.open(device.path, os.O_RDWR | os.O_NOCTTY)
        os.read(port, 300)
        time.sleep(0.3)  # the board writes into the room for 300 bytes
        cut = threading.Thread(target=device.power_cut, daemon=True)
        cut.start()
        cut.join(PATIENCE_S / 3)
        waits = cut.is_alive()
        os.read(port, 100_000)
        os.close(port)
        assert not waits


@pytest.mark.req("B3")
def test_files_survive_resets_and_reset_cause_is_reported(tmp_path):
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 40)
    with Device(tmp_path / "board") as device:
        mpremote(device, "fs", "cp", str(tmp_path / "a.txt"), ":a.txt")
        mpremote(device, "reset")
        wait_for_reset(device, "hard")
        device.wait_for(b">>> ", since=device.started_at)
        mpremote(device, "fs", "cp", ":a.txt", str(tmp_path / "b.txt"))
        assert (tmp_path / "b.txt").read_bytes() == (tmp_path / "a.txt").read_bytes()
        assert mpremote(device, "exec", "import machine; print(machine.reset_cause())").strip() == "3"
        since = len(device.console)
        assert not device.power_cut()
        device.wait_for(b">>> ", since=since)
        assert mpremote(device, "exec", "import machine; print(machine.reset_cause())").strip() == "1"
        assert "a.txt" in mpremote(device, "fs", "ls")


@pytest.mark.req("B3")
def test_main_runs_at_startup_and_can_be_interrupted(tmp_path):
    with Device(tmp_path / "board") as device:
        put_main(device, tmp_path, "import time\nprint('main runs')\nwhile True:\n    time.sleep_ms(20)\n")
        since = len(device.console)
        mpremote(device, "reset")
        device.wait_for(b"main runs", since=since)
        assert mpremote(device, "exec", "print(6 * 7)").strip() == "42"


@pytest.mark.req("B3")
def test_next_command_interrupts_a_running_program(tmp_path):
    program = tmp_path / "first.py"
    program.write_text("import time\nprint('it runs')\nwhile True:\n    time.sleep_ms(20)\n")
    with Device(tmp_path / "board") as device:
        left = subprocess.Popen([MPREMOTE, "connect", device.path, "run", str(program)], stdout=subprocess.PIPE)
        try:
            assert left.stdout is not None and left.stdout.readline().strip() == b"it runs"
        finally:
            left.kill()  # as Ctrl-C in the terminal does: the board is not notified
            left.wait()
        assert mpremote(device, "exec", "print('ours')", timeout_s=90).strip() == "ours"


@pytest.mark.req("B4")
def test_watchdog_resets_a_hanging_program(tmp_path):
    program = (
        "import machine\nprint('cause', machine.reset_cause())\nif machine.reset_cause() == 1:\n"
        "    w = machine.WDT(timeout=1000)\n    w.feed()\n    while True:\n        pass\n"
    )
    with Device(tmp_path / "board") as device:
        put_main(device, tmp_path, program)
        device.power_cut()
        device.wait_for(b"cause 3")
        assert device.resets[-1] == "watchdog"


@pytest.mark.req("B4")
def test_reset_stops_the_watchdog(tmp_path):
    program = (
        "import machine\nprint('cause', machine.reset_cause())\nif machine.reset_cause() == 1:\n"
        "    machine.WDT(timeout=3000)\n    machine.reset()\n"
    )
    with Device(tmp_path / "board") as device:
        put_main(device, tmp_path, program)
        device.power_cut()
        device.wait_for(b"cause 3")
        time.sleep(3.5)  # a running watchdog would have reset the board
        assert device.resets[-1] == "hard"


@pytest.mark.req("B3")
def test_ctrl_c_during_garbage_collection_keeps_the_heap_intact(tmp_path):
    script = (
        "import gc, time\n"
        "for n in range(40):\n"
        "  try:\n"
        "    print('next')\n"
        "    while True:\n"
        "      for i in range(50): gc.collect()\n"
        "      time.sleep_us(1)\n"
        "  except KeyboardInterrupt: kept = bytearray(1000)\n"
        "print('whole', len(kept))"
    )
    with Device(tmp_path / "board") as device:
        put_main(device, tmp_path, script)
        mpremote(device, "reset")
        port = os.open(device.path, os.O_RDWR | os.O_NOCTTY)
        try:
            for n in range(40):
                until(lambda n=n: device.console.count(b"next") > n, lambda: bytes(device.console[-400:]))
                os.write(port, b"\x03")
            device.wait_for(b"whole 1000", PATIENCE_S)
        finally:
            os.close(port)


@pytest.mark.req("B3")
def test_ctrl_c_for_an_ended_board_is_an_ordinary_byte(tmp_path):
    device = Device(tmp_path / "board")
    ended = subprocess.Popen(["true"])  # it is not waited for: it stays in the process table
    while "State:\tZ" not in Path(f"/proc/{ended.pid}/status").read_text():
        time.sleep(0.005)
    device._process = SimpleNamespace(pid=ended.pid, send_signal=lambda _: None)
    assert not device._interrupt()
    ended.wait()
    device._process = None
    device.stop()


@pytest.mark.req("B3")
def test_ctrl_c_during_a_flash_operation_is_delayed_until_its_end(tmp_path):
    script = (
        "import os, rp2, time\n"
        "device = rp2.simulated.device\n"
        "load, left = device._load, 0\n"
        "def interrupted(*arguments):\n"
        "  global left\n"
        "  left -= 1\n"
        "  if left == 0: raise KeyboardInterrupt\n"
        "  load(*arguments)\n"
        "device._load = interrupted\n"
        "outcomes = set()\n"
        "for position in range(1, 13):\n"
        "  try:\n"
        "    left = position\n"
        "    os.mkdir('/%d' % position)\n"
        "    time.sleep(5)\n"
        "    outcomes.add('no Ctrl-C followed')\n"
        "  except KeyboardInterrupt: pass\n"
        "  with open('/kept%d' % position, 'wb') as f: f.write(bytes(600))\n"
        "  kept = [os.stat('/kept%d' % i)[6] for i in range(1, position + 1)]\n"
        "  outcomes.add((left <= 0, kept == position * [600]))\n"
        "print(outcomes)"
    )
    with Device(tmp_path) as device, Link(device.path) as link:
        assert link.literal(script, timeout_s=PATIENCE_S) == {(True, True)}


@pytest.mark.req("B3")
def test_ctrl_c_during_a_flash_operation_of_main_ends_main(tmp_path):
    main = (
        "import os, rp2, time\n"
        "device, load = rp2.simulated.device, rp2.simulated.device._load\n"
        "def interrupted(*arguments):\n"
        "  device._load = load\n"
        "  raise KeyboardInterrupt\n"
        "device._load = interrupted\n"
        "os.listdir('/')\n"
        "print('listed')\n"
        "while True: time.sleep_ms(10)\n"
    )
    with Device(tmp_path / "board") as device:
        put_main(device, tmp_path, main)
        mpremote(device, "reset")
        wait_for_reset(device, "hard")
        device.wait_for(b"listed", PATIENCE_S, since=device.started_at)
        device.wait_for(b"KeyboardInterrupt", PATIENCE_S, since=device.started_at)


COMMAND = [sys.executable, "-m", "tools.virtual_board.device"]


@pytest.mark.req("B3")
def test_second_board_in_one_folder_is_refused_and_one_in_another_folder_has_another_id(tmp_path):
    def start(name: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*COMMAND, "--directory", str(tmp_path / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    ids = []
    with start("a") as first, start("b") as second:
        try:
            for board in (first, second):
                found = re.search(r"is on (/dev/\S+);", board.stdout.readline())
                with Link(found[1]) as link:
                    ids.append(link.run("import machine; print(machine.unique_id().hex())").strip())
            words = [*COMMAND, "--directory", str(tmp_path / "a")]
            ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
            assert (ran.stdout, ran.returncode) == ("", 2)
            assert f"{tmp_path / 'a'} is in use by another virtual board" in ran.stderr and "DIR=" in ran.stderr
        finally:
            for board in (first, second):
                board.send_signal(signal.SIGINT)
    assert len(ids[0]) == len(ids[1]) == 16 and ids[0] != ids[1]


@pytest.mark.req("B3")
def test_folder_of_another_kind_of_board_is_named(tmp_path):
    folder = tmp_path / "my board"
    with Device(folder):
        pass
    before = (folder / "flash.bin").read_bytes()
    ran = subprocess.run(
        [sys.executable, "-m", "tools.virtual_board.device", "--board", "esp32", "--directory", str(folder)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"virtual-board: the board in {folder} does not start: ValueError: flash.bin: not ")
    assert "DIR=" in ran.stderr and ran.stderr.count("\n") == 1
    assert (folder / "flash.bin").read_bytes() == before


@pytest.mark.parametrize("wifi", ["home", ":secret12"])
def test_network_without_a_name_or_a_password_is_refused(wifi):
    ran = subprocess.run([*COMMAND, "--wifi", wifi], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert ran.returncode == 2 and "NETWORK:PASSWORD" in ran.stderr and "secret12" not in ran.stderr


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.req("B3")
def test_board_ends_with_its_supervisor_however_that_ends(tmp_path):
    words = [*COMMAND, "--directory", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as supervisor:
        found = re.search(r"is on (/dev/\S+);", supervisor.stdout.readline())
        with Link(found[1]) as link, pytest.raises(Failure):
            link.run("import time\nwhile True: time.sleep(1)", timeout_s=1)
        (board,) = children_of(supervisor.pid)
        supervisor.kill()
    until(lambda: not Path(f"/proc/{board}").exists(), lambda: Path(f"/proc/{board}/status").read_text())


@pytest.mark.req("B3")
def test_sigterm_for_the_shell_of_make_ends_the_virtual_board(tmp_path):
    words = ["make", "-o", "setup", f"VENV={sys.prefix}", "virtual-board", f"DIR={tmp_path}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as make:
        while "is on /dev/" not in make.stdout.readline():
            pass
        (shell,) = children_of(make.pid)
        started = [shell, *children_of(shell)]
        os.kill(shell, signal.SIGTERM)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), lambda: started)


def test_command_that_runs_for_weeks_does_not_keep_what_the_board_has_printed(tmp_path, monkeypatch):
    board = SimpleNamespace(path="/dev/pts/0", console=bytearray())
    kept = []

    def sleep(_):
        if len(kept) == 3:
            raise KeyboardInterrupt
        board.console += b"x" * 100
        kept.append(len(board.console))

    monkeypatch.setattr(virtual_board, "Device", lambda *_: contextlib.nullcontext(board))
    monkeypatch.setattr(virtual_board.time, "sleep", sleep)
    assert virtual_board.main(["--directory", str(tmp_path)]) == 0
    assert kept == [100, 100, 100]
