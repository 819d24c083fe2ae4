"""Commands that start processes leave no process behind, however they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from host_tests.waiting import until
from tools.bootstrap import ROOT
from tools.children import bound_to_this_process
from tools.proof.broker import find_mosquitto

DEADLINE_S = 120
RUN = ["tools.proof.run", "--readings", "100000"]
SOAK = ["tools.proof.soak", "--minutes", "60", "--boards", "2"]
COMMANDS = [RUN, SOAK] if find_mosquitto() else [RUN]


def start(output: Path, command: list[str]) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
    return subprocess.Popen(
        [sys.executable, "-m", *command, "--output", str(output)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the processes with this folder in their arguments, or with a working directory in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            works_in = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(folder) in command or works_in.startswith(str(folder)):
            found.append(command)
    return found


def wait_for_boards(process: subprocess.Popen, output: Path) -> None:
    """Wait until a board reports that it stores messages."""

    def stores() -> bool:
        assert process.poll() is None, process.communicate()
        return any("stored=" in console.read_text() for console in output.glob("board*/console.log"))

    until(stores)
    assert len(processes_of(output)) > 2


def wait_until_no_process_is_left(output: Path) -> None:
    """Wait until no process works in a folder: a killed process ends only when the machine schedules it."""
    until(lambda: not processes_of(output), lambda: processes_of(output))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_ctrl_c_and_sigterm_leave_no_process_and_no_traceback(command, tmp_path):
    output = tmp_path / "out"
    process = start(output, command)
    wait_for_boards(process, output)
    process.send_signal(signal.SIGTERM if command is RUN else signal.SIGINT)
    _, complaints = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in complaints
    wait_until_no_process_is_left(output)


def marked(mark: str) -> list[str]:
    """Return the command lines of the processes that have this mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass
    return found


@pytest.mark.parametrize(
    "command",
    [
        *("tools.proof.faults --hostile", "tools.proof.faults --short", "tools.proof.fuzz", "tools.proof.wakes"),
        *("tools.proof.powercut", "tools.proof.powercut --script adversary"),
    ],
)
def test_ctrl_c_ends_a_long_command_in_one_line(command, tmp_path):
    mark = f"FLASHMQTT_TEST={tmp_path}"
    process = subprocess.Popen(
        [sys.executable, "-m", *command.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}", "FLASHMQTT_TEST": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: len(marked(mark)) >= 3 or process.poll() is not None)  # the command and two processes that it started
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes of the group
    _, complaints = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, complaints
    assert "Traceback" not in complaints and complaints.splitlines()[-1].startswith("stopped")
    until(lambda: not marked(mark), lambda: marked(mark))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed process")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_sigkill_leaves_no_process_behind(command, tmp_path):
    output = tmp_path / "out"
    process = start(output, command)
    wait_for_boards(process, output)
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_until_no_process_is_left(output)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed process")
def test_child_of_an_ended_parent_does_not_start():
    program = (
        "import os, sys\n"
        "from tools.children import bound_to_this_process\n"
        "bind = bound_to_this_process()\n"
        "os.getppid = lambda: 1\n"  # the child's view if its parent was killed before `bind`
        "bind()\n"
        "print('began')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")


def test_bound_child_runs_normally():
    ran = subprocess.run(["true"], preexec_fn=bound_to_this_process(), check=False)
    assert ran.returncode == 0


def test_ctrl_c_while_pytest_collects_ends_in_one_line_even_where_pytest_cannot_show_it(tmp_path):
    (tmp_path / "host_tests").mkdir()
    (tmp_path / "host_tests" / "test_slow.py").write_text("raise KeyboardInterrupt\n")
    program = (
        "import pathlib, sys, pytest\n"
        "from tools.command import exit_status\n"
        "from tools.proof.check import proved\n"
        "def without_line_number(*_, **__): raise TypeError('its traceback has a line that is None')\n"
        "pytest.ExceptionInfo.getrepr = without_line_number\n"
        "proved.ROOT = pathlib.Path()\n"
        "sys.exit(exit_status(lambda: len(proved.collect('req')), stopped='stopped'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "\nstopped\n")


def test_ctrl_c_while_a_command_imports_its_modules_ends_without_a_traceback(tmp_path):
    (tmp_path / "tomllib.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(20)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "tools.deploy", "monitor"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "") and process.returncode == -signal.SIGINT


POOL = """
import time
from tools.children import pool
from tools.command import exit_status

def main():
    with pool(2) as workers:
        print(workers.map(abs, [-1, -2]), flush=True)
        while True:  # not signal.pause: a signal that comes just before it does not end it
            time.sleep(0.05)

raise SystemExit(exit_status(main))
"""


def test_sigterm_to_all_processes_ends_a_pool():
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout.readline() == "[1, 2]\n"
        os.killpg(process.pid, signal.SIGTERM)
        try:
            assert process.wait(20) == 130
        finally:
            process.kill()
