"""Shared by the commands of `tools`: numbers and folders as arguments, tables, progress, exit status, one-line errors.

parser.add_argument("--boards", type=number(int, 1, 100), default=10)
...
sys.exit(exit_status(main))
"""

import argparse
import errno
import functools
import io
import math
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

Number = TypeVar("Number", int, float)
STOPPED = "stopped; everything that was started has been ended"
LINE_S = 10
Main = Callable[..., int]
LINE = "{desc}{n_fmt}/{total_fmt}{unit} after {elapsed}{postfix}"


class Failure(Exception):
    """A command can't do its work, for a reason outside the program. The text has the reason and what to do."""


REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of this path is a file; check the path",
    errno.EISDIR: "give a file",
    errno.EEXIST: "give a folder, or another name",
    errno.EACCES: "change it (chmod, chown), or give another path",
    errno.EPERM: "change it (chmod, chown), or give another path",
    errno.EROFS: "give a path on another file system",
    errno.ENOSPC: "delete something, or give a path on another disk",
    errno.EDQUOT: "delete something, or give a path on another disk",
}
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # no mistake of a program


def explained(error: OSError, path: Path | str = "") -> str:
    """Return the text of an error of the operating system: the path, the reason, what to do.

    Args:
        error: the error.
        path: of the file, if the error does not have it.
    """
    code, text = error.errno, str(error)
    if code is None or "rrno" not in text:  # a library's own text
        return text
    found = re.search(r"(?:path|file|directory) '([^']+)'", text)  # pyarrow's texts have the path
    path = error.filename or (found[1] if found else path)
    return ": ".join(str(one) for one in (path, os.strerror(code), REMEDIES.get(code)) if one)


def named(command: str, *failures: type[Exception], status: int = 2) -> Callable[[Main], Main]:
    """Return a decorator for a command's `main`: a Failure is printed after the command's name, and gives this status.

    Args:
        failures: further errors that are printed so.
    """
    expected: tuple[type[Exception], ...] = (Failure, OSError, *failures)

    def decorated(main: Main) -> Main:
        @functools.wraps(main)
        def run(argv: Any = None) -> int:
            try:
                return main(argv)
            except BrokenPipeError:
                raise  # see `exit_status`
            except expected as error:
                text = explained(error) if isinstance(error, OSError) else error
                print(f"{command}: {text}", file=sys.stderr)
                return status

        return run

    return decorated


def counted(count: int, what: str) -> str:
    """Return a number with its noun."""
    plural = what.removesuffix("y") + "ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def not_served(error: Exception, what: str, address: str, port: int, remedy: str) -> Failure:
    """Return the failure of a server that can't listen: an OSError, or a UnicodeError if `address` is no host name."""
    reason = getattr(error, "strerror", error)
    return Failure(f"can't serve {what}at {address}:{port}: {reason}; give another {remedy}")


def serve_metrics(registry: Any, port: int, address: str) -> int:
    """Serve metrics for Prometheus at http://address:port/metrics; return the port.

    Raises:
        Failure: the port is in use, or not allowed.
    """
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, address, registry=registry)
    except (OSError, UnicodeError) as error:
        remedy = "--metrics-port or address, or port 0 for none"
        raise not_served(error, "metrics ", address, port, remedy) from error
    return int(server.server_port)


def number(kind: type[Number], least: float, most: float = math.inf) -> Callable[[str], Number]:
    """Return what argparse takes as the `type` of a number from `least` to `most`; infinity and NaN are refused."""
    bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"

    def read(text: str) -> Number:
        try:
            value = kind(text)
            is_right = math.isfinite(value) and least <= value <= most
        except (ValueError, OverflowError):  # the second one: an integer of more than 300 digits
            is_right = False
        if not is_right:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"it has to be {what}, {bounds}, not {text!r}")
        return value

    return read


def filled(given: str) -> str:
    """Return a text that is not empty: argparse's `type`."""
    if not given.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return given


class Parser(argparse.ArgumentParser):
    """A command line. An error is one line; if make runs the command, the line also has make's names of the options."""

    def error(self, message: str) -> NoReturn:
        """Print the message; exit with status 2."""
        makefile = Path(__file__).resolve().parent.parent / "Makefile"
        if "MAKELEVEL" in os.environ and makefile.exists():
            lines = makefile.read_text().splitlines()
            recipe = next((line for line in lines if f"-m {self.prog.removeprefix('python -m ')} " in line), "")
            flag = re.match(r"argument .*?(--[a-z-]+): ", message)
            variables = dict(re.findall(r"(--[a-z-]+)[ =][^A-Z-]*([A-Z_]+)", recipe))
            variable = variables.get(flag[1] if flag else "", "ARGS" if "$(ARGS)" in recipe else "")
            message += f" (make: {variable}=)" if variable else ""
        self.exit(2, f"{self.prog}: error: {message}\n")


def parser_of(module: str, doc: str | None, **options: Any) -> Parser:
    """Return the parser of a module that is run with `python -m`; the first paragraph of `doc` describes it."""
    return Parser(prog=f"python -m {module}", description=(doc or "").split("\n\n")[0], **options)


def report_line(kind: str, text: str) -> None:
    """Print one line of a report."""
    print(f"{kind:10} {text}", flush=True)


def table(rows: Sequence[Sequence[object]], alignment: str) -> list[str]:
    """Return the lines of a table: the headings, which are the first row, a rule, and the other rows.

    `alignment` has one of < and > for each column. Numbers get commas.
    """
    texts = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    first, *others = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True)).rstrip()
        for row in texts
    ]
    return [first, "-" * max(map(len, [first, *others])), *others]


def progress_bar(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """Return tqdm's progress bar as all commands show it.

    On a terminal it is as wide as the terminal, and removed at the end. Elsewhere (a log, CI) it is a line of text after
    LINE_S seconds, and again whenever LINE_S seconds or a tenth of the time so far have passed, whichever is longer.
    """
    from tqdm import tqdm  # not at the top: Spark's tasks import this module, too

    class Lines(tqdm):
        """Progress as lines of text."""

        monitor_interval = 0  # no thread

        def __init__(self, *arguments: Any, **options: Any):
            self._begun = time.monotonic()
            self._due = self._begun + LINE_S
            super().__init__(*arguments, file=io.StringIO(), **options)

        def display(self, msg: str | None = None, pos: int | None = None) -> None:  # type: ignore[override]
            """Print a line if it is due."""
            now = time.monotonic()
            if msg is None and now >= self._due:
                self._due = now + max(LINE_S, (now - self._begun) / 10)
                print(self, file=sys.stderr, flush=True)

    if sys.stderr.isatty():
        return tqdm(iterable, dynamic_ncols=True, leave=False, **options)
    if "desc" in options:
        options["desc"] += ": "
    return Lines(iterable, **{"leave": False, **options, "bar_format": LINE})


def folder(text: str) -> Path:
    """Return an absolute path: argparse's `type` of a folder to write into. The folder may not exist yet."""
    try:
        there = path = Path(text).resolve()
        while not _exists(there):
            there = there.parent
    except OSError as error:  # a name that is too long; no permission
        raise argparse.ArgumentTypeError(explained(error)) from error
    except (RuntimeError, ValueError) as error:  # a loop of links; a NUL
        raise argparse.ArgumentTypeError(str(error)) from error
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} is no folder that can be written to")
    return path


def _exists(path: Path) -> bool:
    """Do what `Path.exists` does before 3.14: raise OSError if the name is too long, or the path may not be seen."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def file(text: str) -> Path:
    """Return an absolute path: argparse's `type` of a file to write. The file may not exist yet."""
    path = Path(text).absolute()
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; give a file")
    return folder(str(path.parent)) / path.name


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does now: raise KeyboardInterrupt, or, under asyncio, cancel the main task."""
    handler = signal.getsignal(signal.SIGINT)
    # A shell script starts its background jobs with SIGINT ignored.
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def exit_status(act: Callable[[], int], *failures: type[Exception], stopped: str = STOPPED) -> int:
    """Run a command; return its exit status.

    The status is the one that `act` returns, 2 for a Failure, a full disk and for `failures`, 130 for Ctrl-C and SIGTERM, and
    141 if nobody reads the output to its end (`| head`).

    Args:
        act: does the work. It gets SIGTERM as it gets Ctrl-C, so that its `with` and `finally` blocks run.
        failures: other errors with a cause outside the program, such as a wrong argument: only their text is printed.
        stopped: what is printed after Ctrl-C.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see tools/__init__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a device's name may have characters that the locale's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    reported: tuple[type[Exception], ...] = (Failure, *failures)
    try:
        status = act()
        print(end="", flush=True)  # if the standard output is closed, sys.stdout is None
        return status
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        output = select.poll()
        output.register(1, 0)
        if not output.poll(0):  # no POLLERR: another pipe broke, or a connection
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes its standard output once more at its end
        return 141
    except reported as failed:
        print(f"\n{failed}", file=sys.stderr)
        return 2
    except OSError as failed:
        if failed.errno not in DISK:
            raise
        print(f"\n{explained(failed)}", file=sys.stderr)
        return 2
