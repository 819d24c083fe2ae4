"""CPython's sockets in MicroPython's words, so that `link.py` is written once. Never imported on a board.

MicroPython's streams have `readinto(buf)` and `write(buf, offset, n)`; both return None where they would have to wait.
"""

import socket
import ssl


class HostedSocket:
    """A non-blocking socket, plain or TLS, as MicroPython presents one."""

    def __init__(self, family):
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._shaking_hands = False
        self.wake = None  # wakes the task that waits for this socket, see `ready`

    def connect(self, address):
        """Begin to connect."""
        self._socket.connect(address)

    def setsockopt(self, *arguments):
        """Pass on."""
        self._socket.setsockopt(*arguments)

    def wrap(self, context, server_name):
        """Put TLS on top; the handshake happens with the first reads and writes."""
        self._socket = context.wrap_socket(self._socket, server_hostname=server_name, do_handshake_on_connect=False)
        self._shaking_hands = True
        return self

    def fileno(self):
        """Return the descriptor, for poll()."""
        return self._socket.fileno()

    def readinto(self, buf):
        """Return how many bytes came, 0 at the end of the stream, None when there are none yet."""
        return self._try(self._socket.recv_into, buf)

    def write(self, buf, start, n):
        """Return how many of the n bytes from `start` were taken, None when none can be taken now."""
        return self._try(self._socket.send, memoryview(buf)[start : start + n])

    def _try(self, operation, argument):
        try:
            if self._shaking_hands:
                self._socket.do_handshake()  # type: ignore[attr-defined]
                self._shaking_hands = False
            return operation(argument)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return 0

    def close(self):
        """Close at once; who waits for it is woken."""
        if self.wake:
            self.wake()
        self._socket.close()


async def ready(sock, writing):
    """Wait until the socket can be read (or written): what MicroPython's asyncio has built in."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()
    descriptor = sock.fileno()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)

    def wake():
        """Let the loop forget the descriptor: once it is closed, the number may be another's."""
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
