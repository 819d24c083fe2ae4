"""The link to the broker: opens sockets, pumps the connection, and opens them again; it never waits.

`step` goes as far as it can without waiting, but not for ever, and returns the next event; the faces wait, each in its own way,
for `sock` to become ready or for `wait_ms` to pass. Every state has a deadline. The name is looked up afresh for every attempt,
and the addresses it has are tried in turn. Only a name lookup can block, for as long as the system's resolver does: a board's
is bounded (lwIP gives up after a few seconds), and a numeric address needs none.
"""

import socket

from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff
from .connection import CLOSED, CLOSING, CONNECTED, DELIVERED, NOTHING, OPEN, OUTPUT, RESTART
from .errors import (
    ConnectionLost,
    ConnectRefused,
    DeadlineExpired,
    MalformedPacket,
    PacketTooLarge,
    ProtocolViolation,
)

try:
    from errno import EINPROGRESS
except ImportError:  # some ports leave it out
    EINPROGRESS = 115  # type: ignore[misc]

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_HOSTED = not hasattr(socket.socket, "readinto")

# States.
_STOPPED = const(0)  # not to be connected
_DOWN = const(1)  # waiting for the next attempt
_OPENING = const(2)  # TCP is under way
_UP = const(3)  # bytes can flow; TLS and CONNECT may still be under way

_POLLIN = const(1)
_POLLOUT = const(4)
_IDLE_MS = const(1000)
_READS = const(4)  # so many reads make a turn
_READ_OUT = const(5)  # this one took what there was
_BATCH_MS = const(2)  # for so long after a write, what answers make room for waits to share the next one


class Link:
    """Keeps one connection to host:port.

    Args:
        connection: what is pumped.
        host, port: a name or an address.
        backoff: says how long to wait between attempts.
        tls: an SSLContext, or None for no TLS.
        server_name: the name that the certificate has to carry, where it is not `host`.
        timeout_ms: the deadline for TCP, and for a write without progress.
    """

    def __init__(self, connection, host, port, backoff, tls=None, server_name=None, timeout_ms=10000):
        self.connection = connection
        self._session = connection.session
        self.host = host
        self.port = port
        self.backoff = backoff
        self.timeout_ms = timeout_ms
        self.sock: "Any" = None
        self.events = 0  # what to poll `sock` for
        self.wait_ms = 0  # for how long `step` has nothing to do if `sock` does not become ready
        self.error = None  # why the last attempt or connection ended
        self.stepped_ms = 0  # when `step` was called last
        self.handling = False  # the face's: one of its handlers runs now, and a step will follow
        self.attempts = self.connects = 0
        self._tls = tls
        self._server_name = server_name or host
        self._state = _STOPPED
        self._since_ms = 0  # when this state began, or (_DOWN) when it ends
        self._opened_ms = 0
        self._check_ms = 0  # when `connection.check` is due
        self._reads = 0  # how often something was read in this turn, which ends, however much the broker sends
        self._stuck = False
        self._stuck_ms = 0
        self._unproved = False  # this connection has yet to show that it works
        step = connection.session.kept_step()
        if step:
            backoff.step = step

    def is_open(self):
        """Return whether the broker has accepted the connection and it still stands."""
        return self.connection.state == OPEN

    def start(self, now_ms):
        """Connect as soon as possible: at once, but after a reboot in the middle of an outage not before a random delay."""
        if self._state == _STOPPED:
            delay = self.backoff.ended(0) if self.backoff.step and not self.attempts else 0
            self._retry_at(ticks_add(now_ms, delay))

    def stop(self):
        """Close the socket and stay closed [MQTT-3.14.4-1]; 5: [MQTT-3.14.4-2]."""
        self._state = _STOPPED
        self._close()

    def fail(self, error, now_ms):
        """Give this connection up; the next attempt follows after the backoff's delay."""
        if self._tls and isinstance(error, (OSError, ValueError)):
            from .tls import explained

            error = explained(error)
        self.error = error
        if self._state == _STOPPED:  # by the handler that failed then
            return
        connection = self.connection
        if self._unproved and self._session.acknowledged:
            self._prove()
        if self._state == _UP:
            connection.farewell(error)
        state = connection.state
        delay = self.backoff.ended(ticks_diff(now_ms, self._opened_ms) if state >= OPEN else 0)
        self._retry_at(ticks_add(now_ms, delay))  # before what the store may raise: the next step goes on from here
        try:
            if state == CLOSING:
                self.write(now_ms)
        except (OSError, ConnectionLost):
            pass
        finally:
            self._close()
        self._keep_step()

    def step(self, now_ms):
        """Go on without waiting; return the next event, NOTHING when there is none until `sock` is ready or time passes.

        What the world or the peer does wrong ends the connection, not this call: see `error`. What the store or the caller
        does wrong is raised.
        """
        self.stepped_ms = now_ms
        try:
            return self._pump(now_ms) if self._state == _UP else self._connect(now_ms)
        except (OSError, ConnectionLost, MalformedPacket, PacketTooLarge, ProtocolViolation, ConnectRefused) as error:
            self.fail(error, now_ms)
        except ValueError as error:  # MicroPython's word for a certificate that it refuses
            if not self._tls:
                raise
            self.fail(error, now_ms)
        return NOTHING

    def flush(self, now_ms):
        """Put what may go out and write it, as far as that needs no waiting; what fails ends the connection, not this call."""
        if self._state == _UP:
            try:
                session = self._session
                while session.ready:  # as long as the window holds more than one output does
                    session.pump(now_ms)
                    if not session.out_end or not self.write(now_ms):
                        return
                self.write(now_ms)
            except (OSError, ConnectionLost) as error:
                self.fail(error, now_ms)

    def write(self, now_ms):
        """Write what is in the output; return whether all of it left."""
        session = self._session
        end = session.out_end
        if end:
            connection = self.connection
            if session.promised:
                session.settle()  # what these bytes promise is durable before they leave
            start = connection.output_start
            while start < end:
                n = self.sock.write(session.out, start, end - start)
                if not n:
                    connection.output_start = start
                    if not self._stuck:
                        self._stuck = True
                        self._stuck_ms = now_ms
                    elif ticks_diff(now_ms, self._stuck_ms) >= self.timeout_ms:
                        raise DeadlineExpired("write")
                    self.events = _POLLIN | _POLLOUT
                    return False
                start += n
                self._stuck = False
                connection.sent_ms = now_ms
            connection.output_start = session.out_end = 0
            self.events = _POLLIN
        return True

    def _connect(self, now_ms):
        """Be a step nearer to a connection."""
        state = self._state
        if state == _STOPPED:
            self.wait_ms = _IDLE_MS
        elif state == _DOWN:
            self.wait_ms = ticks_diff(self._since_ms, now_ms)
            if self.wait_ms <= 0:
                self._open(now_ms)
        else:
            self._try_open(now_ms)
        return NOTHING

    def _pump(self, now_ms):
        connection = self.connection
        session = self._session
        while True:
            event = connection.process(now_ms)
            if event == NOTHING:
                some = session.out_end
                if self.write(now_ms) and some and session.ready:
                    continue  # the window holds more than one output did: what is left would wait for the next answer
                if self._reads < _READS:
                    room = connection.decoder.room()
                    n = self.sock.readinto(room)
                    if n is not None:
                        connection.received(n, now_ms)
                        # Less than there was room for was all there is; only TLS may hold back more, which no poller sees.
                        self._reads = _READ_OUT if n < len(room) and not self._tls else self._reads + 1
                        continue
                return self._pause(now_ms)
            if event == OUTPUT:
                if not self.write(now_ms):
                    self.wait_ms = _IDLE_MS
                    return NOTHING
            elif event == RESTART:
                self.write(now_ms)
                self._retry_at(now_ms)
                self._close()
                return NOTHING
            else:
                if event == CONNECTED:
                    self._opened_ms = now_ms
                    self._unproved = True
                    self.error = None
                    self.connects += 1
                elif event == DELIVERED and session.ready and ticks_diff(now_ms, connection.sent_ms) >= _BATCH_MS:
                    self.flush(now_ms)  # the window moved, and the rest of a batch of answers takes a while
                return event

    def _pause(self, now_ms):
        """Do what is due, and let the caller have its turn: there is nothing to read, or enough was read."""
        connection = self.connection
        if self._unproved and self._session.acknowledged:
            self._prove()
        wait = ticks_diff(self._check_ms, now_ms)
        if wait <= 0:  # nothing is due before: what happened since can only have put it off
            wait = min(connection.check(now_ms), _IDLE_MS)
            if connection.output_start < self._session.out_end and not self._stuck:
                self.write(now_ms)
            self._check_ms = ticks_add(now_ms, wait)
            if self._unproved and ticks_diff(now_ms, self._opened_ms) >= self.backoff.lasting_ms:
                self._prove()
        self.wait_ms = 0 if self._reads == _READS else wait
        self._reads = 0
        return NOTHING

    def _open(self, now_ms):
        self.attempts += 1
        addresses = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)
        if not addresses:
            raise ConnectionLost("no address for", self.host)
        family, _, _, _, address = addresses[self.attempts % len(addresses)]
        if _HOSTED:
            from .hosted import HostedSocket

            self.sock = HostedSocket(family)
        else:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
        try:
            self.sock.setsockopt(6, 1, 1)  # TCP_NODELAY, where there is such a thing
        except OSError:
            pass
        try:
            self.sock.connect(address)
        except OSError as error:
            # EINPROGRESS; ESP32 has had 119 for it, the RP2040 115.
            if error.errno not in (EINPROGRESS, 115, 119):
                raise
        self._state = _OPENING
        self._since_ms = now_ms
        self.events = _POLLOUT
        self.wait_ms = self.timeout_ms

    def _try_open(self, now_ms):
        from select import poll

        poller = poll()
        poller.register(self.sock, _POLLOUT)
        ready = poller.poll(0)
        if not ready:
            self.wait_ms = self.timeout_ms - ticks_diff(now_ms, self._since_ms)
            if self.wait_ms <= 0:
                raise DeadlineExpired("connect")
            return
        if ready[0][1] & ~_POLLOUT:
            raise ConnectionLost("no answer from", self.host, self.port)
        if self._tls:
            if _HOSTED:
                self.sock.wrap(self._tls, self._server_name)
            else:
                self.sock = self._tls.wrap_socket(
                    self.sock, server_hostname=self._server_name, do_handshake_on_connect=False
                )
        self.connection.start(now_ms)
        self._check_ms = now_ms
        self._state = _UP
        self.events = _POLLIN | _POLLOUT
        self.wait_ms = 0

    def _retry_at(self, at_ms):
        self._state = _DOWN
        self._since_ms = at_ms
        self.wait_ms = 0

    def _prove(self):
        """This connection works, as it lasts or got a message through: the next outage begins with the shortest delay."""
        self._unproved = False
        self.backoff.step = 0
        self._keep_step()

    def _keep_step(self):
        """Keep the step over a reboot. Its first values are not worth a write: such an outage is over in seconds."""
        step = self.backoff.step
        self.connection.session.keep_step(step if step > 2 else 0)

    def _close(self):
        self._unproved = self._stuck = False
        self._reads = 0
        self.events = 0
        if self.sock:
            try:
                self.sock.close()
            except OSError:
                pass
            self.sock = None
        if self.connection.state != CLOSED:
            self.connection.close()
