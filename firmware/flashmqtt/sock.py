"""The object that represents umqtt's socket in `MQTTClient.sock`; loaded when a program reads that attribute.

The client's own socket never blocks. So `setblocking` and `settimeout` apply to the next `wait_msg`: after `setblocking(False)`
it checks once without waiting, after `settimeout(t)` it raises OSError(ETIMEDOUT) if no message has come for t seconds. This
module knows `simple` and the link.
"""

import sys
from errno import ETIMEDOUT
from io import IOBase
from select import poll

from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff, ticks_ms

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_POLL = const(3)  # ioctl's request


class Sock(IOBase if sys.implementation.name == "micropython" else object):  # type: ignore[misc]  # a poller takes no other
    """The socket of a connection; other attributes are those of the real socket."""

    def __init__(self, client: "Any", sock: "Any") -> None:
        self._client = client
        self._sock = sock

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._sock, name)

    def setblocking(self, flag: bool) -> None:
        """Let the next `wait_msg` wait (True), or check once (False)."""
        self._client._limit_ms = None if flag else 0

    def settimeout(self, timeout: "float | None") -> None:
        """Let `wait_msg` wait for this many seconds; None: without a limit."""
        self._client._limit_ms = None if timeout is None else int(timeout * 1000)

    def close(self) -> None:
        """Close the connection without a DISCONNECT: the broker publishes the will."""
        self._client._client.link.stop()

    def ioctl(self, request: int, argument: int) -> int:
        """Answer a MicroPython poller."""
        if request != _POLL:
            return -1
        poller = poll()
        poller.register(self._sock, argument)
        ready = poller.poll(0)
        return ready[0][1] if ready else 0


def sock(client: "Any") -> "Any":
    """Return the object for the current connection, always the same one, because a poller compares objects."""
    under = client._client.link.sock
    if not client._sock or client._sock._sock is not under:
        client._sock = Sock(client, under)
    return client._sock


def wait(client: "Any") -> "int | None":
    """Do what `wait_msg` does after `setblocking` or `settimeout`."""
    limit = client._limit_ms
    deadline = ticks_add(ticks_ms(), limit)
    while True:
        left = ticks_diff(deadline, ticks_ms())
        op = client._take(left if left < 200 else 200)
        if op != 0 or not limit:
            client._limit_ms = None
            return op or None
        if left <= 0:
            raise OSError(ETIMEDOUT, "no message for %d ms" % limit)
