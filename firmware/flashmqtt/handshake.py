"""TLS on a board in steps: the socket as mbedTLS sees it, which gives the control back between two records of the handshake.

All of a handshake that needs no waiting would else be done in one call: on a Pico W up to 7 seconds of arithmetic, in which
nobody feeds the watchdog. mbedTLS reads a record in two calls, its five bytes of header first, and writes each record by a call
of its own. So each header, and each write, is answered "not now" once, and the next call goes on. What is between two records
stays one step: the check of the certificate chain, of one signature, or the key exchange. MicroPython only; loaded with TLS. It
knows no MQTT.
"""

from io import IOBase

from .compat import TYPE_CHECKING, const

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_POLLIN = const(1)
_POLLOUT = const(4)
_HEADER = const(5)  # of a TLS record
_EIO = const(5)


class Steps(IOBase):
    """A non-blocking socket that stops between records while `shaking` is set.

    shaking     the handshake is under way
    wants       what to poll the socket for
    moved       set where bytes moved: the handshake makes progress
    """

    def __init__(self, sock: "Any") -> None:
        self._sock = sock
        self._stopped = False  # is this record's refusal behind us?
        self._failed = 0  # what a write ended with
        self.shaking = self.moved = True
        self.wants = _POLLOUT

    def readinto(self, buf: "bytearray | memoryview") -> "Any":
        """Read like a socket; None where nothing has come, or the handshake is to stop here."""
        if self.shaking:
            self.wants = _POLLIN
            if len(buf) == _HEADER and not self._stopped:
                self._stopped = True
                return None
        try:
            n = self._sock.readinto(buf)
        except OSError as error:  # an exception must not fly through mbedTLS
            return -(error.errno or _EIO)
        if n == 0 and self._failed:
            return -self._failed
        if n is not None and self.shaking:
            self._stopped = False
            self.moved = True
        return n

    def write(self, buf: "bytearray | memoryview") -> "int | None":
        """Write like a socket; None where nothing can be written, or the handshake is to stop here."""
        if self.shaking:
            self.wants = _POLLOUT
            if not self._stopped:
                self._stopped = True
                return None
        try:
            n = self._sock.write(buf)
        except OSError as error:
            self._failed = error.errno or _EIO
            # A peer that refuses the handshake says why, and closes: the reason lies before us, and is read next.
            n = len(buf) if self.shaking else -self._failed
        if n is not None and self.shaking:
            self._stopped = False
            self.moved = True
        return n

    def ioctl(self, _request: "Any", _argument: "Any") -> int:
        """Say yes: who waits polls the socket itself, and closes it."""
        return 0
