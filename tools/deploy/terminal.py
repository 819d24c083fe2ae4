"""Ctrl-C as a normal way to end a command.

A terminal sends SIGINT to all its foreground processes, also to `make`, which then reports an error. Here the terminal sends
Ctrl-C as a byte instead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator

CTRL_C = b"\x03"
_OFF = b"\x00"  # no character has this function
_LOCAL_MODES, _CHARACTERS = 3, 6  # of `tcgetattr`


@contextlib.contextmanager
def ctrl_c_as_a_key() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt after Ctrl-C was pressed; the caller calls it repeatedly.

    Without a terminal, or in the background, nothing changes: SIGINT raises KeyboardInterrupt as usual.
    """
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield lambda: None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
    changed[_CHARACTERS][termios.VINTR] = _OFF
    changed[_CHARACTERS][termios.VMIN] = 1
    changed[_CHARACTERS][termios.VTIME] = 0

    def change(*_: object) -> None:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)

    def check() -> None:
        while select.select([descriptor], [], [], 0)[0]:
            pressed = os.read(descriptor, 64)
            if not pressed or CTRL_C in pressed:  # empty: the terminal was closed
                raise KeyboardInterrupt

    continued = signal.signal(signal.SIGCONT, change)  # after Ctrl-Z and `fg`
    change()
    try:
        yield check
    finally:
        signal.signal(signal.SIGCONT, continued)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
