"""The TLS handshake in steps: a socket wrapper for mbedTLS that returns to the caller between two records of the handshake.

Without it, one call would do all of a handshake that needs no waiting: on a Pico W up to 7 seconds of arithmetic, without feeding
the watchdog. mbedTLS reads a record in two calls, first its header of five bytes, and writes each record with one call. So the
wrapper answers the first read of each header, and the first try of each write, with "would block"; the next call continues. The
work between two records remains one step: checking the certificate chain or a signature, or the key exchange. MicroPython only;
loaded with TLS. It knows no MQTT.
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

    shaking     the handshake is running
    wants       the events to poll the socket for
    moved       set when bytes were transferred: the handshake makes progress
    """

    def __init__(self, sock: "Any") -> None:
        self._sock = sock
        self._stopped = False  # was "would block" already returned for this record?
        self._failed = 0  # the errno of a failed write
        self.shaking = self.moved = True
        self.wants = _POLLOUT

    def readinto(self, buf: "bytearray | memoryview") -> "Any":
        """Read like a socket; return None if nothing has arrived, or to stop the handshake here."""
        if self.shaking:
            self.wants = _POLLIN
            if len(buf) == _HEADER and not self._stopped:
                self._stopped = True
                return None
        try:
            n = self._sock.readinto(buf)
        except OSError as error:  # an exception must not pass through mbedTLS
            return -(error.errno or _EIO)
        if n == 0 and self._failed:
            return -self._failed
        if n is not None and self.shaking:
            self._stopped = False
            self.moved = True
        return n

    def write(self, buf: "bytearray | memoryview") -> "int | None":
        """Write like a socket; return None if nothing can be written, or to stop the handshake here."""
        if self.shaking:
            self.wants = _POLLOUT
            if not self._stopped:
                self._stopped = True
                return None
        try:
            n = self._sock.write(buf)
        except OSError as error:
            self._failed = error.errno or _EIO
            # A peer that refuses the handshake sends an alert and closes. Pretend success, so that mbedTLS reads that alert next.
            n = len(buf) if self.shaking else -self._failed
        if n is not None and self.shaking:
            self._stopped = False
            self.moved = True
        return n

    def ioctl(self, _request: "Any", _argument: "Any") -> int:
        """Return 0 for all requests: the link polls and closes the plain socket itself."""
        return 0
