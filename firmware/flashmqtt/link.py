"""The link to the broker: opens sockets, pumps the connection, and opens them again; it never waits.

`step` goes as far as it can without waiting, but not for ever, and returns the next event; the faces wait, each in its own way,
for `sock` to become ready or for `wait_ms` to pass. Every state has a deadline. The name is looked up afresh for every attempt,
and the addresses it has are tried in turn. Only a name lookup can block, for as long as the system's resolver does: a board's
is bounded (lwIP gives up after 7 s for each name server), and a numeric address needs none. TLS's handshake goes by steps,
between which the caller has its turn; one step may take seconds on a slow chip (TLS.md). It knows no packets and no handlers.
"""

import socket

from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff
from .connection import (
    CLOSED,
    CLOSING,
    CONNECTED,
    DELIVERED,
    DISCONNECTED,
    MESSAGE,
    NOTHING,
    OPEN,
    OUTPUT,
    RESTART,
)
from .errors import (
    CLOSED_BY_PEER,
    ConnectionLost,
    ConnectRefused,
    DeadlineExpired,
    MalformedPacket,
    ProtocolError,
)

try:
    from errno import EINPROGRESS
except ImportError:  # some ports leave it out
    EINPROGRESS = 115  # type: ignore[misc]

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_HOSTED = not hasattr(socket.socket, "readinto")

# What ends the connection.
_WORLD = (OSError, ConnectionLost, MalformedPacket, ProtocolError, ConnectRefused)

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
_SENDING_MS = const(5)
_BATCH_MS = const(2)  # delay before refilling the window after a write, to batch writes
_NEAR_MS = const(16000)  # the longest delay while no broker can feel our attempts, or this one never took us
_REFUSED = const(111)  # ECONNREFUSED: a host's own answer, so the network is there


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

    def __init__(
        self,
        connection: "Any",
        host: "Any",
        port: int,
        backoff: "Any",
        tls: "Any" = None,
        server_name: "Any" = None,
        timeout_ms: "Any" = 10000,
    ) -> None:
        self.connection = connection
        self._session = connection.session
        self._output = connection.output
        # Bound once: to look a method up in an object with many attributes takes a board 20 us, an attribute 2.
        self._process = connection.process
        self._read_from = connection.decoder.read_from
        self.host = host
        self.port = port
        self.backoff = backoff
        self.timeout_ms = timeout_ms
        self.feed: "Any" = None  # called before what may take long: see `Client`
        self.sock: "Any" = None
        self.polled: "Any" = None  # what to poll: with TLS, the socket below it
        self.events = 0  # for what
        self.wait_ms = 0  # for how long `step` has nothing to do if `sock` does not become ready
        self.error: "Exception | None" = None  # why the last attempt or connection ended
        self.stepped_ms = 0  # when `step` was called last
        self.handling = False  # the face's: one of its handlers runs now, and a step will follow
        self.attempts = self.connects = 0
        self._tls = tls and (tls, server_name or host)  # None where there is none
        self._shaking: "Any" = None  # knows how far TLS's handshake is, while it lasts
        self._state = _STOPPED
        self._since_ms = 0  # when this state began, or (_DOWN) when it ends
        self._opened_ms = 0
        self._check_ms = 0  # when `connection.check` is due
        self._reads = 0  # how often something was read in this turn, which ends, however much the broker sends
        self.drained = False  # the last read took what there was: the socket need not be read before it is ready
        self._stuck = False
        self._stuck_ms = 0
        self._unproved = False  # this connection has yet to show that it works
        self.reported = False  # CONNECTED was returned, and DISCONNECTED not yet
        if self._is_known():
            backoff.step = max(backoff.step, self._session.kept_step())

    def is_open(self) -> bool:
        """Return whether the broker has accepted the connection and it still stands."""
        return self.connection.state == OPEN

    def start(self, now_ms: int) -> None:
        """Connect as soon as possible: at once, but after a reboot in the middle of an outage not before a random delay."""
        if self._state == _STOPPED:
            delay = self.backoff.ended(0) if self.backoff.step and not self.attempts else 0
            self._retry_at(ticks_add(now_ms, delay))

    def stop(self) -> None:
        """Close the socket and stay closed [MQTT-3.14.4-1]; 5: [MQTT-3.14.4-2]."""
        self._state = _STOPPED
        self.reported = False
        self._close()

    def fail(self, error: "Any", now_ms: int) -> None:
        """End this connection; the next attempt follows after the backoff's delay."""
        self._session.failed(error)
        if self._tls and isinstance(error, (OSError, ValueError)):
            from .tls import explained

            error = explained(error)
        self.error = error
        if self._state == _STOPPED:  # by the handler that failed then
            return
        connection = self.connection
        if self._unproved and self._session.proved:
            self._prove()
        if self._state == _UP:
            connection.put_error_disconnect(error)
        state = connection.state
        backoff = self.backoff
        # An attempt that ends before a socket is connecting (no network, no such name) reaches no broker. And a person who sets
        # up a client must not wait for minutes, whether the mistake was in the network or at the broker.
        near = self._state == _DOWN and error.args[:1] != (_REFUSED,)
        if near or not (self.connects or self._is_known()):
            while backoff.step and backoff.limit_ms() > _NEAR_MS:
                backoff.step -= 1
        delay = backoff.ended(ticks_diff(now_ms, self._opened_ms) if state >= OPEN else 0)
        self._retry_at(ticks_add(now_ms, delay))  # before what the store may raise: the next step goes on from here
        try:
            if state == CLOSING:
                self.write(now_ms)
        except (OSError, ConnectionLost):
            pass
        finally:
            self._close()
        if not near:
            self._keep_step()

    def step(self, now_ms: int) -> "Any":
        """Advance without waiting; return the next event, NOTHING when there is none until `sock` is ready or time passes.

        What the world or the peer does wrong ends the connection, not this call: see `error`. What the store or the caller
        does wrong is raised.
        """
        session = self._session
        if session.busy:
            session.interrupted()
        self.stepped_ms = now_ms
        session.busy = True
        try:
            if self._state != _UP:
                return self._connect(now_ms)
            process = self._process
            output = self._output
            # Nothing to process is left of the last step: look for more at once.
            event = NOTHING if self.drained else process(now_ms)
            while True:
                if event == NOTHING:
                    if output.end and self.write(now_ms) and session.has_more():
                        event = process(now_ms)
                        continue  # the window holds more than one output did: what is left would wait for the next answer
                    reads = self._reads
                    if reads >= _READS or self._shaking:  # a handshake goes on with the write of CONNECT, by steps
                        # There is nothing to read, or enough was read: the caller has its turn.
                        wait = ticks_diff(self._check_ms, now_ms)
                        if wait <= 0 or (self._unproved and session.proved):
                            wait = self._check(now_ms)
                        self.wait_ms = 0 if reads == _READS else wait
                        self.drained = reads == _READ_OUT
                        self._reads = 0
                        return NOTHING
                    got = self._read_from(self.sock)
                    if got:
                        self.connection.received_ms = now_ms
                    elif got is not None:
                        raise ConnectionLost(CLOSED_BY_PEER)
                    # Less than there was room for was all there is; only TLS may hold back more, which no poller sees.
                    self._reads = reads + 1 if got == 2 or (got and self._tls) else _READ_OUT
                    if got or self.drained:
                        self.drained = False
                        event = process(now_ms)
                elif event == DELIVERED or event == MESSAGE:
                    if event == DELIVERED and ticks_diff(now_ms, output.sent_ms) >= _BATCH_MS and session.has_more():
                        self.flush(now_ms)  # the window moved, and the rest of a batch of answers takes a while
                    return event
                elif event == OUTPUT:
                    if not self.write(now_ms):
                        self.wait_ms = _IDLE_MS
                        return NOTHING
                    if not (output.limit or session.partial):  # a QoS 0 message is half-way out: `Sending`
                        self.wait_ms = _SENDING_MS
                        return NOTHING
                    event = process(now_ms)
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
                        self.reported = True
                        self.connects += 1
                    return event
        except _WORLD as error:
            self.fail(error, now_ms)
        except ValueError as error:  # MicroPython's word for a certificate that it refuses
            if not self._tls:
                raise
            self.fail(error, now_ms)
        finally:
            session.busy = False
        return NOTHING

    def flush(self, now_ms: int) -> None:
        """Put what may go out and write it, as far as that needs no waiting; what fails ends the connection, not this call."""
        if self._state == _UP:
            try:
                while True:
                    self.connection.pump(now_ms)
                    if not self._output.end or not self.write(now_ms) or not self._session.has_more():
                        return  # or else the window holds more than one output does
            except (OSError, ConnectionLost) as error:
                self.fail(error, now_ms)

    def write(self, now_ms: int) -> bool:
        """Write what is in the output; return whether all of it left."""
        output = self._output
        while output.end:
            left = output.end - output.start
            if not output.write_to(self.sock, now_ms):
                if output.end and output.end - output.start == left:
                    self.events = self._shake(now_ms) if self._shaking else _POLLIN | _POLLOUT
                    if not self._stuck:
                        self._stuck = True
                        self._stuck_ms = now_ms
                    elif ticks_diff(now_ms, self._stuck_ms) >= self.timeout_ms:
                        raise DeadlineExpired("nothing could be written for %d ms" % self.timeout_ms)
                    return False
                self._stuck = False
        if self._stuck or self.events != _POLLIN:
            self._stuck = False
            self.events = _POLLIN
            if self._shaking:
                self._shaking.shaking = False
                self._shaking = None
        return True

    def _shake(self, now_ms: int) -> "Any":
        """A step of TLS's handshake is done, which may have taken seconds: return what to poll for, for the next one."""
        if self.feed:
            self.feed()
        shaking = self._shaking
        if shaking.moved:
            shaking.moved = False
            self._stuck_ms = now_ms
        return shaking.wants

    def _connect(self, now_ms: int) -> "Any":
        """Advance the connection attempt."""
        state = self._state
        if self.reported:
            self.reported = False
            return DISCONNECTED
        if state == _STOPPED:
            self.wait_ms = _IDLE_MS
        elif state == _DOWN:
            self.wait_ms = ticks_diff(self._since_ms, now_ms)
            if self.wait_ms <= 0:
                self._open(now_ms)
        else:
            self._try_open(now_ms)
        return NOTHING

    def _check(self, now_ms: int) -> "Any":
        """Do what is due; return for how long nothing will be."""
        if self._unproved and self._session.proved:
            self._prove()
        wait = ticks_diff(self._check_ms, now_ms)
        if wait <= 0:  # nothing is due before: what happened since can only have put it off
            wait = min(self.connection.check(now_ms), _IDLE_MS)
            if self._output.end and not self._stuck:
                self.write(now_ms)
            self._check_ms = ticks_add(now_ms, wait)
            if self._unproved and ticks_diff(now_ms, self._opened_ms) >= self.backoff.lasting_ms:
                self._prove()
        return wait

    def _open(self, now_ms: int) -> None:
        self.attempts += 1
        guard = self._guard() if self.feed and not self.host.replace(".", "").isdigit() else None
        try:
            addresses = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)
        finally:
            if guard:
                guard.end()
        if not addresses:
            raise ConnectionLost("no address for %s" % self.host)
        family, _, _, _, address = addresses[self.attempts % len(addresses)]
        if _HOSTED:
            from .hosted import HostedSocket

            self.sock = HostedSocket(family)
        else:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
        self.polled = self.sock
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

    def _guard(self) -> "Any":
        """Feed, and have a timer feed on while a name is looked up, where there is such a timer."""
        self.feed()
        try:
            from .guard import Guard

            return Guard(self.feed)
        except (ImportError, ValueError, OSError):
            return None

    def _try_open(self, now_ms: int) -> None:
        from select import poll

        poller = poll()
        poller.register(self.sock, _POLLOUT)
        ready = poller.poll(0)
        if not ready:
            self.wait_ms = self.timeout_ms - ticks_diff(now_ms, self._since_ms)
            if self.wait_ms <= 0:
                raise DeadlineExpired("connecting to %s took %d ms" % (self.host, self.timeout_ms))
            return
        if ready[0][1] & ~_POLLOUT:
            raise ConnectionLost("no answer from %s:%d" % (self.host, self.port))
        if self._tls:
            if _HOSTED:
                self._shaking = self.sock.wrap(*self._tls)
            else:
                from .handshake import Steps

                self._shaking = steps = Steps(self.sock)
                context, name = self._tls
                self.sock = context.wrap_socket(steps, server_hostname=name, do_handshake_on_connect=False)
        self.connection.start(now_ms)
        self._check_ms = now_ms
        self._state = _UP
        self.events = _POLLIN | _POLLOUT
        self.wait_ms = 0

    def _retry_at(self, at_ms: int) -> None:
        self._state = _DOWN
        self._since_ms = at_ms
        self.wait_ms = 0

    def _prove(self) -> None:
        """This connection works, as it lasts or got a message through: the next outage begins with the shortest delay."""
        self._unproved = False
        self.backoff.step = 0
        self._keep_step()

    def _is_known(self) -> "Any":
        """Return whether the store's note is about this client id at this broker: the step in it is only good for these."""
        session = self._session
        return session.remember and session.has_note(self.connection.client_id, self.connection.broker)

    def _keep_step(self) -> None:
        """Keep the step over a reboot. Its first values are not worth a write: such an outage is over in seconds."""
        if self._is_known():
            step = self.backoff.step
            self._session.keep_step(step if step > 2 else 0)

    def _close(self) -> None:
        self._unproved = self._stuck = False
        self._reads = 0
        self.drained = False
        self.events = 0
        self._shaking = None
        for sock in (self.sock, self.polled):  # with TLS these are two
            try:
                if sock:
                    sock.close()
            except OSError:
                pass
        self.sock = self.polled = None
        if self.connection.state != CLOSED:
            self.connection.close()
