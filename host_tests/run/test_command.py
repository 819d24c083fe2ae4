"""Errors on a command line are reported in one line, without a traceback; progress output."""

import argparse
import errno
import importlib
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tools import command
from tools.bootstrap import ROOT
from tools.command import exit_status, file, folder, number, progress_bar
from tools.pipeline.tables.commits import Output


@pytest.mark.parametrize(
    ("kind", "least", "most", "text", "value"),
    [
        *((int, 1, 10, "1", 1), (int, 1, 10, "10", 10), (float, 0.01, 60, "0.5", 0.5), (int, 0, 5, "0", 0)),
        *((int, 1, 10, wrong, None) for wrong in ("0", "11", "x", "", "1.5")),
        *((int, 1, float("inf"), digits * "9", None) for digits in (400, 5000)),
        *((float, 0.01, float("inf"), wrong, None) for wrong in ("nan", "inf", "-inf", "0", "x")),
    ],
)
def test_number_outside_its_bounds_is_refused(kind, least, most, text, value):
    if value is None:
        with pytest.raises(argparse.ArgumentTypeError, match=f"not '{text}'"):
            number(kind, least, most)(text)
    else:
        read = number(kind, least, most)(text)
        assert read == value and type(read) is kind


def test_folder_argument_may_be_missing_but_not_a_file(tmp_path):
    assert folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"file is no folder"):
            folder(str(wrong))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for wrong, why in ((tmp_path / "loop", "loop"), (tmp_path / ("a" * 300), "name too long")):
        with pytest.raises(argparse.ArgumentTypeError, match=why):
            folder(str(wrong))


def test_file_argument_may_be_missing_but_its_folder_has_to_take_it(tmp_path):
    assert file(str(tmp_path / "a.json")) == tmp_path / "a.json"
    (tmp_path / "file").write_text("")
    for wrong, why in ((tmp_path, "is a folder; give a file"), (tmp_path / "file/a", "file is no folder that can be")):
        with pytest.raises(argparse.ArgumentTypeError, match=why):
            file(str(wrong))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ENOENT])
def test_full_disk_is_one_line_and_a_mistake_of_the_program_is_a_traceback(capsys, code):
    def write() -> int:
        raise OSError(code, os.strerror(code), "/results/bench.json")

    saved = signal.getsignal(signal.SIGTERM)
    try:
        if code == errno.ENOENT:
            with pytest.raises(FileNotFoundError):
                exit_status(write)
        else:
            assert exit_status(write) == 2
            assert capsys.readouterr().err.startswith(f"\n/results/bench.json: {os.strerror(code)}")
    finally:
        signal.signal(signal.SIGTERM, saved)


def test_progress_without_a_terminal_is_a_line_per_interval(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: now))
    with progress_bar(total=1000, desc="run", unit=" messages") as bar:
        now = command.LINE_S - 1
        bar.update(100)
        bar.refresh()
        assert capsys.readouterr().err == ""
        now = command.LINE_S
        bar.n = 300
        bar.set_postfix_str("power cuts 2")
        bar.refresh()
    printed = capsys.readouterr().err
    assert re.fullmatch(r"run: 300/1000 messages after \d\d:\d\d, power cuts 2\n", printed), printed
    assert list(progress_bar(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_is_a_bar_that_is_removed(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar(total=1000, unit=" messages") as bar:
        bar.n = 300
        bar.refresh()
    shown = capsys.readouterr().err
    assert "300/1000" in shown and "\n" not in shown and shown.endswith("\r")


def test_expected_error_is_one_line_and_others_are_raised(capsys):
    def fail() -> int:
        raise LookupError("There is no broker.")

    saved = signal.getsignal(signal.SIGTERM)
    try:
        assert exit_status(lambda: 7) == 7
        assert exit_status(fail, OSError, LookupError) == 2
        assert capsys.readouterr().err == "\nThere is no broker.\n"
        with pytest.raises(LookupError):
            exit_status(fail, OSError)
    finally:
        signal.signal(signal.SIGTERM, saved)


def main_of(command):
    try:
        return importlib.import_module(f"tools.{command}.__main__").main
    except ModuleNotFoundError:
        return importlib.import_module(f"tools.{command}").main


@pytest.mark.parametrize(
    "line",
    [
        *(f"proof.run --{words}" for words in ("cuts abc", "readings 0", "flash-kib 18", "output /dev/null")),
        *(f"collector --landing x --{words}" for words in ("segment-rows 0", "segment-mb 4096", "segment-seconds nan")),
        *(f"collector --landing x --{words}" for words in ("packet-bytes 1", "drain -1")),
        *("pipeline.verdict --out x --silent-after nan", "pipeline.run --metrics-port 70000"),
        *("proof.soak --minutes nan", "proof.soak --boards 0", "proof.soak --interval-ms 1"),
        *(f"proof.faults --{words}" for words in ("only nothing", "workers 0", "case foo", "case power/x")),
        "proof.faults --hostile --case 4/mpy/connect/x",
        *(f"deploy.image --{words}" for words in ("micropython / --board nano", "board pico --micropython /nothing")),
        *("proof.fuzz --cases 0", "proof.fuzz --cases x", "proof.wakes --wakes 1"),
        *("deploy deploy --board teensy", "deploy monitor --timeout nan", "deploy backup --output /dev/null"),
        *(
            f"proof.powercut --replay {name}"
            for name in ("x", "qos1", "qos1/1/x/1", "qos1@x/1/cut/1", "adversary/x", "lives/x")
        ),
        *("journal dump image --sector-bytes 0", "proof.bench --output /dev"),
        *(f"collector --landing x {words}" for words in ("--port 99999", "--port 0", "--metrics-port 65536")),
        *("proof.run --cuts 99999999999999999999", "proof.run --link-cuts 10001", "pipeline.run --buckets 100000000"),
        *("pipeline.compact --out x --keep-days 99999999999", "pipeline.compact --out x --keep-raw-days 100001"),
        *(
            "pipeline.run --follow 1e300",
            "proof.fleet --landing x --devices 0",
        ),
        *("proof.fleet --landing x --messages -5", "proof.fleet --landing /dev/null"),
        *(f"{name} --unknown x" for name in ("deploy.package", "pipeline.java", "pipeline.archive")),
    ],
)
def test_wrong_argument_is_named(line, capsys):
    command, *words = line.split()
    with pytest.raises(SystemExit) as ended:
        main_of(command)(words)
    assert ended.value.code == 2
    (only,) = capsys.readouterr().err.splitlines()
    name, wrong = words[-2:]
    assert name in only and wrong in only


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["run", "READINGS=-5"],
            "argument --readings: it has to be a whole number, at least 1, not '-5' (make: READINGS=)",
        ),
        (["run", "KILLS=x"], "--collector-kills: it has to be a whole number, from 0 to 10000, not 'x' (make: KILLS=)"),
        (
            ["dashboard", "OUT=x", "PORT=x"],
            "--port: it has to be a whole number, from 0 to 65535, not 'x' (make: PORT=)",
        ),
        (["deploy", "BOARD=x"], "'esp32_c3') (make: BOARD=)"),
        (["collector-kills", "TIMES=0"], "--kills: it has to be a whole number, at least 1, not '0' (make: TIMES=)"),
        (["collect"], "the following arguments are required: --landing (make: ARGS=)"),
        (["collect", "ARGS=--landing x --port 0"], "not '0' (make: ARGS=)"),
        (["collect", "ARGS=--landing ''"], "argument --landing: it is empty (make: ARGS=)"),
        (["collect", "ARGS=--landing x --host ' '"], "argument --host: it is empty (make: ARGS=)"),
    ],
)
def test_wrong_variable_of_make_is_named_in_one_line(words, text):
    command = ["env", "-i", f"PATH={os.environ['PATH']}", "make", "-o", "setup", f"PY={sys.executable}", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    told, ended = ran.stderr.splitlines()
    assert told.startswith("python -m tools.") and told.endswith(text)
    assert ended.startswith("make: ***") and ran.returncode == 2


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("virtual_board.device --directory /proc/x", "virtual-board: /proc/x: No such file or directory"),
        ("journal dump /nothing", "dump: /nothing: No such file or directory: check the path"),
        ("deploy.release --into /proc/x", "release: /proc/x"),
        (
            "landing.parquet --landing /nothing --collector c --number 1",
            "parquet: /nothing/c-000000001.parquet: No such",
        ),
        ("landing.parquet --landing / --collector a/b --number 1", "parquet: collector name 'a/b': use letters"),
        ("proof.soak --output /proc/x", "soak: /proc/x: No such file or directory: check the path"),
        ("proof.run --output /proc/x", "run: /proc/x: No such file or directory: check the path"),
        ("deploy backup --port /dev/null --output x", "backup: /dev/null is not a serial port"),
        ("proof.check.size --runs", "size: FLASHMQTT_FROZEN32: /nothing is not a file; give an interpreter's path"),
    ],
)
def test_failure_is_one_line_that_begins_with_the_commands_name(line, error, capsys, monkeypatch):
    monkeypatch.setenv("FLASHMQTT_FROZEN32", "/nothing")
    module, *words = line.split()
    saved = signal.getsignal(signal.SIGTERM)
    try:
        status = main_of(module)(words)
    finally:
        signal.signal(signal.SIGTERM, saved)
    told = capsys.readouterr().err
    assert status == (1 if module == "deploy" else 2)
    assert told.startswith(error) and told.count("\n") == 1


def run_unread(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python; its standard output is a pipe whose reading end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize("lines", [100_000, 3])  # more than the buffers hold; and few lines, written at the end
def test_command_ends_quietly_if_its_output_pipe_is_closed(lines):
    program = f"import sys\nfrom tools.command import exit_status\nsys.exit(exit_status(lambda: print('line\\n' * {lines}) or 0))"
    ran = run_unread("-c", program)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.parametrize("status", [0, 1])
def test_command_without_a_standard_output_keeps_its_exit_status(status):
    program = (
        f"import sys\nfrom tools.command import exit_status\nsys.exit(exit_status(lambda: print('line') or {status}))"
    )
    words = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program]
    ran = subprocess.run(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (status, "")


SLEEPER = """
import asyncio, os, signal, sys
from tools.command import exit_status

async def main():
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("finished")

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(exit_status(lambda: asyncio.run(main())))
"""


def test_sigterm_under_asyncio_ends_the_main_task_in_order():
    ran = subprocess.run(
        [sys.executable, "-c", SLEEPER], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (
        130,
        "finished\n",
        "\nstopped; everything that was started has been ended\n",
    )


def test_broken_pipe_of_a_connection_is_raised():
    def fail() -> int:
        raise BrokenPipeError("the broker's connection")

    saved = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(BrokenPipeError):
            exit_status(fail)
    finally:
        signal.signal(signal.SIGTERM, saved)


def test_journal_dump_ends_quietly_if_its_output_pipe_is_closed():
    image = ROOT / "host_tests" / "journal" / "images" / "example.bin"
    ran = run_unread("-m", "tools.journal", "dump", str(image), "--sector-bytes", "1024", "--all")
    assert (ran.returncode, ran.stderr) == (141, "")


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("locale", [{}, ASCII])
@pytest.mark.parametrize("name", ["journal", "deploy", "pipeline.run"])
def test_command_needs_no_pythonpath_and_no_utf_8_locale(name, locale):
    environment = {variable: value for variable, value in os.environ.items() if variable != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-m", f"tools.{name}", "--help"],
        cwd=ROOT,
        env=environment | locale,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0 and "usage:" in ran.stdout, ran.stderr


NOT_FOUND = "No such file or directory: check the path"
NO_FOLDER = "Not a directory: a part of this path is a file; check the path"
A_FOLDER = "Is a directory: give a file"


@pytest.mark.parametrize(
    ("module", "arguments", "text"),
    [
        ("pipeline.verdict", ["--out", "tables", "--expected", "none"], f"none: {NOT_FOUND}"),
        ("pipeline.verdict", ["--out", "tables", "--expected", "file/x"], f"file/x: {NO_FOLDER}"),
        ("pipeline.verdict", ["--out", "tables", "--expected", "folder"], f"folder: {A_FOLDER}"),
        ("pipeline.report", ["--out", "tables", "--expected", "none"], f"none: {NOT_FOUND}"),
        ("pipeline.dashboard", ["--out", "tables", "--expected", "none"], f"none: {NOT_FOUND}"),
        ("pipeline.compact", ["--out", "tables", "--retire", "file"], f"file: {NO_FOLDER}"),
        ("pipeline.forget", ["--landing", "file", "--out", "tables", "--device", "x", "--yes"], f"file: {NO_FOLDER}"),
        ("pipeline.forget", ["--landing", "folder", "--out", "tables", "--devices", "none"], f"none: {NOT_FOUND}"),
        ("pipeline.run", ["--landing", "file", "--out", "new"], f"file: {NO_FOLDER}"),
        ("pipeline.run", ["--landing", "folder", "--out", "file"], "file: File exists: give a folder, or another name"),
        ("pipeline.run", ["--landing", "folder", "--out", "file/x"], f"file/x: {NO_FOLDER}"),
        ("pipeline.run", ["--landing", "folder", "--out", "new", "--config", "none"], f"--config none: {NOT_FOUND}"),
        ("pipeline.run", ["--landing", "folder", "--out", "new", "--expected", "folder"], f"folder: {A_FOLDER}"),
        ("pipeline.run", ["--landing", "folder", "--out", "new", "--mapping", "none"], f"none: {NOT_FOUND}"),
        (
            "collector",
            ["--landing", "new", "--host", "h", "--tls", "--ca-file", "none"],
            f"--ca-file none: {NOT_FOUND}",
        ),
        (
            "collector",
            ["--landing", "new", "--host", "h", "--user", "me", "--password-file", "folder"],
            f"--password-file folder: {A_FOLDER}",
        ),
        ("proof.wire", ["--captures", "file", "--out", "new"], "--captures file: this is a file: give the folder"),
    ],
)
def test_wrong_path_is_named_with_the_reason_and_what_to_do(module, arguments, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    Output("tables").prepare(2)
    main = importlib.import_module(
        f"tools.{module}" + (".__main__" if module in {"collector", "proof.wire"} else "")
    ).main
    assert main(arguments) in {1, 2}
    printed = capsys.readouterr().err
    assert text in printed.replace(f"{tmp_path}/", "") and "rrno" not in printed


def test_path_without_permission_is_named_with_what_to_do():
    error = PermissionError(13, "Permission denied", "/data/tables")
    remedy = "Permission denied: change it (chmod, chown), or give another path"
    assert command.explained(error) == f"/data/tables: {remedy}"
    pyarrow = OSError(13, "Failed stat()ing path '/data/x/format.json'. Detail: [errno 13] Permission denied")
    assert command.explained(pyarrow) == f"/data/x/format.json: {remedy}"
    assert command.explained(OSError("the text of a library")) == "the text of a library"
