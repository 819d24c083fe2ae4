"""Shared by the commands of `tools`: numbers and folders as arguments, tables, progress, exit status, one-line errors.

parser.add_argument("--boards", type=number(int, 1, 100), default=10)
...
sys.exit(ended(main, BrokerFailed, BoardFailed))
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)
STOPPED = "stopped; everything that was started has been ended"


def number(kind: type[Number], least: float, most: float = math.inf) -> Callable[[str], Number]:
    """Return what argparse takes as the `type` of a number from `least` to `most`; infinity and NaN are refused."""
    bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not math.isfinite(value) or not least <= value <= most:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"it has to be {what}, {bounds}, not {text!r}")
        return value

    return read


def columns(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """Return the lines of a table; `alignment` has one of < and > for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True)).rstrip()
        for row in rows
    ]


def progress_bar(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """Return tqdm's progress bar as all commands show it: on a terminal only, as wide as the terminal, removed at the end."""
    from tqdm import tqdm  # not at the top: Spark's tasks import this module, too

    return tqdm(iterable, **{"disable": None, "leave": False, "dynamic_ncols": True, **options})


def folder(text: str) -> Path:
    """Return an absolute path: argparse's `type` of a folder to write into. The folder may not exist yet."""
    path = Path(text).resolve()
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} is no folder that can be written to")
    return path


def ended(act: Callable[[], int], *failures: type[Exception], stopped: str = STOPPED) -> int:
    """Run a command; return its exit status: the one that `act` returns, 2 for `failures`, 130 for Ctrl-C and SIGTERM.

    Args:
        act: does the work. It gets SIGTERM as KeyboardInterrupt, like Ctrl-C, so that its `with` and `finally` blocks run.
        failures: errors with a cause outside the program, such as a wrong argument: only their text is printed.
        stopped: what is printed after Ctrl-C.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return act()
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        return 130
    except failures as failed:
        print(f"\n{failed}", file=sys.stderr)
        return 2
