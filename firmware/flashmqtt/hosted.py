"""CPython's sockets with MicroPython's stream methods, so that `link.py` serves both. Never imported on a board.

MicroPython's streams have `readinto(buf)` and `write(buf, offset, n)`; both return None if they would block.
"""

import select
import socket
import ssl
from time import sleep

from .compat import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_POLLIN = 1
_POLLOUT = 4


class HostedSocket:
    """A non-blocking socket, plain or TLS, with MicroPython's interface."""

    def __init__(self, family: "Any") -> None:
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self.shaking = self.moved = False  # these and `wants`: see `handshake.Steps`
        self.wants = _POLLIN | _POLLOUT
        self.wake = None  # wakes the task that waits for this socket: see `ready`

    def connect(self, address: "Any") -> None:
        """Begin to connect."""
        try:
            self._socket.connect(address)
        except BlockingIOError:  # it goes on; the error's number differs between systems
            pass

    def setsockopt(self, *arguments: "Any") -> None:
        """Call the socket's `setsockopt`."""
        self._socket.setsockopt(*arguments)

    def wrap(self, context: "Any", server_name: "Any") -> "Any":
        """Add TLS; the handshake runs with the first reads and writes."""
        self._socket = context.wrap_socket(self._socket, server_hostname=server_name, do_handshake_on_connect=False)
        self.shaking = True
        return self

    def fileno(self) -> "Any":
        """Return the descriptor, for poll()."""
        return self._socket.fileno()

    def readinto(self, buf: "bytearray | memoryview") -> "Any":
        """Return how many bytes were read, 0 at the end of the stream, None if there are none yet."""
        try:
            return self._try(self._socket.recv_into, buf)
        except ssl.SSLEOFError:
            return 0

    def write(self, buf: "bytearray | memoryview", start: int, n: int) -> "Any":
        """Return how many of the n bytes from `start` were written, None if none can be written now."""
        try:
            return self._try(self._socket.send, memoryview(buf)[start : start + n])
        except ssl.SSLEOFError:
            self._try(self._socket.recv_into, bytearray(1))  # read the peer's alert: it tells why the peer closed
            raise

    def _try(self, operation: "Any", argument: "Any") -> "Any":
        try:
            if self.shaking:
                self._socket.do_handshake()  # type: ignore[attr-defined]
                self.shaking = False
                self.moved = True
            return operation(argument)
        except ssl.SSLWantReadError:
            self.wants = _POLLIN
            return None
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.wants = _POLLOUT
            return None

    def close(self) -> None:
        """Close at once; wake the task that waits for the socket."""
        if self.wake:
            self.wake()
        self._socket.close()


class Poller:
    """A poller that a signal's handler may interrupt, to call `disconnect` of the client that waits."""

    def __init__(self) -> None:
        self._poll = select.poll()

    def register(self, sock: "Any", events: int) -> None:
        """Wait for this socket."""
        try:
            self._poll.register(sock, events)
        except ValueError:  # the handler has closed it
            pass

    def poll(self, ms: int) -> None:
        """Wait."""
        try:
            self._poll.poll(ms)
        except RuntimeError:  # the handler waits during a wait
            sleep_ms(1)


poll = Poller


def sleep_ms(ms: int) -> None:
    """Sleep."""
    sleep(ms / 1000)


def is_async(handler: "Any") -> bool:
    """Return whether a handler is an `async def` function, as far as that can be told before it is called."""
    code = getattr(handler, "__code__", None)
    return code is not None and code.co_flags & 0x80 > 0


async def ready(sock: "Any", writing: "Any") -> None:
    """Wait until the socket can be read (or written), as MicroPython's asyncio does by itself."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()
    descriptor = sock.fileno()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)

    def wake() -> None:
        """Unregister the descriptor: after close, its number may belong to another file."""
        sock.wake = None
        remove(descriptor)
        if not future.done():
            future.set_result(None)

    sock.wake = wake
    add(descriptor, wake)
    try:
        await future
    finally:
        if sock.wake:
            wake()


async def wait_for_ms(awaitable: "Any", ms: int) -> None:
    """Wait as MicroPython's `wait_for_ms` does. (`asyncio.wait_for` of CPython 3.11 can lose a cancellation.)"""
    import asyncio

    async with asyncio.timeout(ms / 1000):
        await awaitable


def load_chain(tls: "Any", certificates: "Any", key: "Any", label: str, der: "Any", password: "Any") -> None:
    """Load this client's certificates and key. CPython reads them from files only: data in memory goes into a temporary file.

    Args:
        tls: an SSLContext.
        certificates: as DER, the client's own first.
        key: the name of the file with the key, or its bytes. label, der: the key's PEM label and its DER bytes.
        password: of the key, or None.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:  # readable by this user only
        chain = directory + "/chain.pem"
        with open(chain, "w") as file:
            for certificate in certificates:
                file.write(ssl.DER_cert_to_PEM_cert(bytes(certificate)))
        if label == "DER" or not isinstance(key, str):
            text = _pem_key(der) if label == "DER" else key
            key = directory + "/key.pem"
            with open(key, "wb") as file:
                file.write(text)
        tls.load_cert_chain(chain, key, password or "")  # without a password OpenSSL would ask the terminal for one


def _pem_key(der: "Any") -> "Any":
    """Return a DER key as PEM. The PEM label depends on the kind of key."""
    from binascii import b2a_base64

    at = 2 + (der[1] & 0x7F if der[1] & 0x80 else 0)  # the first element of the sequence
    second = der[at + 3]  # the tag after a version number of one byte
    if der[at] == 0x30:
        kind = b"ENCRYPTED PRIVATE KEY"
    else:
        kind = {0x02: b"RSA PRIVATE KEY", 0x04: b"EC PRIVATE KEY"}.get(second, b"PRIVATE KEY")
    return b"-----BEGIN %s-----\n%s-----END %s-----\n" % (kind, b2a_base64(der), kind)
