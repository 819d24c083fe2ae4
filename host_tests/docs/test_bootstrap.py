"""Set-up on incomplete machines, concurrently, and after an interruption: its messages, and that it continues."""

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tools import bootstrap
from tools.bootstrap import ROOT


@pytest.fixture
def unprepared(monkeypatch, tmp_path):
    """A checkout without a .venv."""
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "stamp")
    steps = []
    for name in ("make_venv", "install_packages", "provide_broker", "provide_java"):
        monkeypatch.setattr(bootstrap, name, lambda name=name: steps.append(name))
    return steps


def test_second_setup_does_nothing(unprepared):
    assert bootstrap.main() == bootstrap.main() == 0
    assert unprepared == ["make_venv", "install_packages", "provide_broker", "provide_java"]


def test_concurrent_setups_wait_for_each_other(unprepared, capsys):
    done = threading.Event()
    second = threading.Thread(target=lambda: (bootstrap.main(), done.set()))
    with bootstrap.setup_lock():
        second.start()
        assert not done.wait(0.2)
        bootstrap.STAMP.write_text(bootstrap.fingerprint())
    second.join(60)
    assert done.is_set() and unprepared == []
    assert "another set-up is running" in capsys.readouterr().out


def test_interrupted_setup_continues_on_the_next_call(unprepared, monkeypatch, capsys):
    with monkeypatch.context() as now:
        now.setattr(bootstrap, "provide_java", Mock(side_effect=KeyboardInterrupt))
        assert bootstrap.main() == 130
    assert "continues from here" in capsys.readouterr().err
    assert bootstrap.main() == 0
    assert unprepared[-1] == "provide_java"


def test_folder_that_can_not_be_written_to_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / "file" / "venv")
    monkeypatch.setattr(bootstrap, "PYTHON", tmp_path / "file" / "venv" / "bin" / "python")
    with pytest.raises(bootstrap.SetupFailed, match=r"(?s)file/venv can't be made:.*Not a directory"):
        bootstrap.make_venv()


def test_full_disk_is_one_line(unprepared, monkeypatch, capsys):
    def full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "setup.log")

    monkeypatch.setattr(bootstrap, "provide_broker", full)
    assert bootstrap.main() == 1
    assert capsys.readouterr().err == "setup: [Errno 28] No space left on device: 'setup.log'\n"


def test_setup_switches_to_a_newer_python_or_requires_one(unprepared, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(bootstrap.os, "execv", lambda path, words: (started.append(path), sys.exit(0)))
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/x/{name}" if name == "python3.12" else None)
    with pytest.raises(SystemExit):
        bootstrap.main()
    assert started == ["/x/python3.12"]
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    assert bootstrap.main() == 2
    assert "3.11 or newer" in capsys.readouterr().err and unprepared == []


def test_make_finds_a_python_with_only_a_versioned_name(tmp_path):
    (tmp_path / "python3.11").symlink_to(sys.executable)
    shown = subprocess.run(
        [shutil.which("make") or "make", "-n", "setup"],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout.startswith(f"{tmp_path}/python3.11 tools/bootstrap.py"), shown.stderr


PIP = """
import time
print("Collecting pyspark==4.0.0")
print("  Downloading pyspark-4.0.0.tar.gz (434.1 MB)")
print("Collecting py4j")
print("  Downloading py4j-0.10.whl (203 kB)", flush=True)
time.sleep(0.5)
print("Installing collected packages: py4j, pyspark", flush=True)
time.sleep(0.5)
print("  Running setup.py install for pyspark: started")
print("  Running setup.py install for pyspark: finished with status 'done'", flush=True)
time.sleep(0.5)
print("Successfully installed py4j-0.10 pyspark-4.0.0", flush=True)
time.sleep(0.5)
"""


def test_long_installation_prints_its_progress(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bootstrap, "PROGRESS_INTERVAL_S", 0.05)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "setup.log")
    bootstrap.run([sys.executable, "-c", PIP], "why")
    said = capsys.readouterr().out
    assert re.search(r"setup:   [0-9]+ s: Downloading py4j-0.10.whl \(203 kB\)\n", said)
    assert ": Installing collected packages: py4j, pyspark\n" in said
    assert "Collecting py4j\n" in (tmp_path / "setup.log").read_text()
    with pytest.raises(bootstrap.SetupFailed, match=r"^why\nNo module") as failed:
        bootstrap.run([sys.executable, "-c", "print('No module'); raise SystemExit(1)"], "why")
    assert str(failed.value) == "why\nNo module"


def test_unreachable_package_index_is_named(monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    with pytest.raises(bootstrap.SetupFailed, match="can't be reached"):
        bootstrap.pip("--dry-run", "no-such-package==1", why="no wheel")


@pytest.mark.parametrize("there", [(), ("mosquitto",), ("mosquitto", "mosquitto_sub")])
def test_mosquitto_clients_are_installed_with_the_broker(monkeypatch, there):
    found = set(there)
    asked: list[str] = []

    def install(*names):
        asked.extend(names)
        found.update({"mosquitto", "mosquitto_sub"} if "mosquitto" in names else {"mosquitto_sub"})
        return True

    monkeypatch.setattr(bootstrap, "install_debian_package", install)
    monkeypatch.setattr(bootstrap, "may_install_debian_packages", lambda: True)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name, path="": name if name in found else None)
    bootstrap.provide_broker()
    assert found == {"mosquitto", "mosquitto_sub"}
    assert asked == {0: ["mosquitto", "mosquitto-clients"], 1: ["mosquitto-clients"], 2: []}[len(there)]


LONG = "Collecting " + "x" * 100 + " (from -r requirements.txt (line 5))"


def print_slowly(text: str) -> list[str]:
    """Return a command that prints a line and ends a second later."""
    return [sys.executable, "-c", f"import time; print({text!r}, flush=True); time.sleep(1)"]


def test_progress_line_is_whole_where_the_output_is_no_terminal(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / "none")
    monkeypatch.setattr(bootstrap, "PROGRESS_INTERVAL_S", 0.4)
    bootstrap.run(print_slowly(LONG), "failed")
    assert re.search(rf"^setup:   \d s: {re.escape(LONG)}$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_progress_line_fits_a_terminal_of_any_width_and_shows_that_it_is_cut(monkeypatch, tmp_path, capsys, columns):
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / "none")
    monkeypatch.setattr(bootstrap, "PROGRESS_INTERVAL_S", 0.4)
    monkeypatch.setattr(bootstrap.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    monkeypatch.setattr(bootstrap.sys.stdout, "isatty", lambda: True)
    bootstrap.run(print_slowly(LONG), "failed")
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.startswith("setup: ") and len(line) <= columns for line in lines)
    assert (LONG in lines[-1]) == (columns == 200) and lines[-1].endswith("..." if columns < 200 else "5))")


def test_the_repository_holds_only_the_fixed_top_level_and_no_binary():
    """The only files that are not text are the images of journals."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: there is no list of the tracked files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    tracked = [Path(name) for name in listed.decode().split("\0")[:-1]]
    requirements = {path.parts[0] for path in tracked if path.match("requirements*.txt")}
    fixed = {"firmware", "boards", "host_tests", "tools", "Makefile", "README.md", "LICENSE", "pyproject.toml"}
    dotted = {".ci", ".github", ".gitignore"}
    assert {path.parts[0] for path in tracked} == fixed | dotted | requirements
    texts = [path for path in tracked if not path.is_relative_to("host_tests/journal/images")]
    assert [str(path) for path in texts if b"\0" in (ROOT / path).read_bytes()] == []
