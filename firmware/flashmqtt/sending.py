"""A QoS 0 message that is longer than the output's free room: it is sent in pieces, and not stored.

It knows the clients' link and how the blocking client waits. While a part of the packet is in the output, the output's
limit is 0, so that no other packet gets in between.
"""

from .codec.encode import put_publish_head
from .compat import TYPE_CHECKING, const, ticks_ms
from .errors import ConnectionLost
from .fast import copy

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_IDLE_MS = const(1000)
_POLLOUT = const(4)
_TURN = const(16)  # how many buffers one call of `step` fills


def send(
    client: "Any",
    topic: "bytes | bytearray | memoryview",
    payload: "bytes | bytearray | memoryview",
    retain: bool,
    properties: "Any",
) -> None:
    """Send a QoS 0 message that does not fit in the output's free room in pieces, and wait for each."""
    deadline = client._deadline(None)
    sending = Sending(client, topic, payload, retain, properties)
    try:
        while not sending.step(ticks_ms()):
            if not sending.moved:
                client.link.wait_ms = _IDLE_MS
                client.link.events = _POLLOUT  # received bytes are not read now: they must not end the wait
                client._wait(client._left(deadline, "write"))
    except BaseException as error:
        sending.failed(error)


class Sending:
    """A QoS 0 message that is sent in pieces: the caller waits for room and calls `step` until it returns True."""

    def __init__(
        self,
        client: "Any",
        topic: "bytes | bytearray | memoryview",
        payload: "bytes | bytearray | memoryview",
        retain: bool,
        properties: "Any",
    ) -> None:
        self._session = client.session
        self._link = client.link
        self._connects = client.link.connects
        self._message = (topic, payload, retain, properties)
        self._at = -1  # how many bytes of the payload were put, -1: not even the head
        self.moved = True  # the last step put something

    def step(self, now_ms: int) -> bool:
        """Put and write as much as has room; return whether all was put, or the connection is gone."""
        output = self._session.output
        topic, payload, retain, properties = self._message
        n = len(payload)
        self.moved = False
        for _ in range(_TURN):
            if self._link.connects != self._connects or not self._link.is_open():
                return True
            if not self._link.write(now_ms):
                return False
            if self._at >= 0:
                room = min(len(output.buf), n - self._at)
                output.put(_put_piece, payload, self._at, room)
                self._at += room
            elif output.room() > 0:
                if self._session.put_unstored(topic, payload, retain, properties):
                    return True  # it fits by now; or the level 5 server would refuse it, and it is dropped
                output.put(put_publish_head, topic, n, 0, retain, False, 0, self._session.level, properties)
                output.limit = 0
                self._at = 0
            else:  # a stored message is partly in the output
                self._session.pump(now_ms)
            self.moved = output.end > 0
            if self._at == n:
                output.open()
                return True
        return False

    def failed(self, error: "Any") -> None:
        """Handle an error of a step or of the wait between two: raise it again, unless it is a network error."""
        of_network = isinstance(error, (OSError, ConnectionLost))
        if (
            of_network or self._at >= 0 or isinstance(error, KeyboardInterrupt)
        ) and self._link.connects == self._connects:
            self._link.fail(error, ticks_ms())  # an incomplete packet must not be followed by another one
        if not of_network:
            raise error


def _put_piece(
    buf: "bytearray | memoryview", pos: int, payload: "bytes | bytearray | memoryview", at: int, n: int
) -> int:
    copy(buf, pos, payload, at, n)
    return pos + n
