"""The link to the broker: opens sockets, moves bytes between socket and connection, and reconnects. It never waits.

`step` does all work that needs no waiting, up to a limit, and returns the next event. The clients wait until `sock` is ready or
`wait_ms` has passed. Every state has a deadline. Each attempt looks the name up again and tries the next of its addresses. Only
the name lookup can block, on a board for 7 s per name server (lwIP). A step of the TLS handshake
may take seconds (TLS.md). It knows no packets and no handlers.
"""

import socket

from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff
from .connection import (
    CLOSING,
    CONNECTED,
    DELIVERED,
    DISCONNECTED,
    OPEN,
    OUTPUT,
    RESTART,
)
from .errors import (
    CLOSED_BY_PEER,
    ConnectionLost,
    ConnectRefused,
    DeadlineExpired,
    FlashMqttError,
    MalformedPacket,
    ProtocolError,
)

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_HOSTED = not hasattr(socket.socket, "readinto")

# What ends the connection.
_WORLD = (OSError, ConnectionLost, MalformedPacket, ProtocolError, ConnectRefused)

# Events: `connection.py`.
_NOTHING = const(0)
_MESSAGE = const(3)

# States.
_STOPPED = const(0)  # not to be connected
_DOWN = const(1)  # waiting for the next attempt
_OPENING = const(2)  # TCP connects
_UP = const(3)  # bytes can flow; TLS and CONNECT may still be under way
_ENDING = const(4)  # DISCONNECT is put

_POLLIN = const(1)
_POLLOUT = const(4)
_IDLE_MS = const(1000)
_READS = const(4)  # reads in one call of `step`
_READ_OUT = const(5)  # the last read emptied the socket
_SENDING_MS = const(5)
_BATCH_MS = const(2)  # delay before refilling the window, to batch writes
_NEAR_MS = const(16000)  # the longest delay while no broker is reached, or it never accepted a connection
_STEP = const(127)  # the step in byte 1 of the session's note
_REFUSED = const(111)  # ECONNREFUSED: the host answered, so the network works


class Link:
    """Keeps one connection to host:port.

    Args:
        connection: the MQTT connection.
        host, port: a name or an address.
        backoff: the delays between attempts.
        tls: an SSLContext, or None.
        server_name: the certificate's name, if it is not `host`.
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
        self.output = connection.output
        # Bound: a board looks up a method in 20 us, an attribute in 2 us.
        self._process = connection.process
        self._read_from = connection.decoder.read_from
        self.write_to = connection.output.write_to
        self.host = host
        self.port = port
        self.backoff = backoff
        self.timeout_ms = timeout_ms
        self.feed: "Any" = None  # before long operations: see `Client`
        self.sock: "Any" = None
        self.polled: "Any" = None  # the socket to poll: with TLS, the plain socket
        self.events = 0  # the events to poll for
        self.wait_ms = 0  # `step` has nothing to do for so long, unless `sock` is ready
        self.error: "Exception | None" = None  # of the last attempt or connection
        self.stepped_ms = 0  # when `step` was called last
        self.handling = False  # a handler runs; a step follows
        self.attempts = self.connects = 0
        self._tls = tls and (tls, server_name or host)
        self.shaking: "Any" = None  # the state of the TLS handshake while it runs; then only `write` may write
        self._state = _STOPPED
        self._since_ms = 0  # its begin; for _DOWN, its end; for _UP, when OPEN began
        self._check_ms = 0  # when to call `check`
        self.read_count = 0  # in this `step`; -1: read when the socket is ready
        self._stuck = False
        self._stuck_ms = 0
        self._unproved = False  # this connection has neither delivered a message nor lasted `lasting_ms`
        self.reported = False  # CONNECTED was returned, and DISCONNECTED not yet
        if self._is_known():
            backoff.step = max(backoff.step, self._session.note.octets[1] & _STEP)

    def is_open(self) -> bool:
        """Return whether the broker has accepted the connection."""
        return self.connection.state == OPEN

    def check_expected(self) -> None:
        """Raise an error if no connection is to be expected: a refusal, or the program disconnected."""
        error = self.error
        if isinstance(error, FlashMqttError) and error.refusal:
            raise error
        if self._state == _STOPPED:
            raise ConnectionLost("disconnected meanwhile")

    def start(self, now_ms: int) -> None:
        """Connect at once; after a reboot during an outage, after a random delay."""
        if self._state == _STOPPED:
            self.stepped_ms = now_ms  # 0, or a time 6 days ago, may seem to come
            delay = self.backoff.next_delay_ms(0) if self.backoff.step and not self.attempts else 0
            self._retry_at(ticks_add(now_ms, delay))

    def stop(self) -> None:
        """Close the socket, stay closed [MQTT-3.14.4-1]; 5: [MQTT-3.14.4-2]."""
        self._state = _STOPPED
        self.reported = False
        self._close()

    def fail(self, error: "Any", now_ms: int) -> None:
        """End this connection; the next attempt follows after the backoff's delay."""
        self._session.failed(error)
        connection = self.connection
        state = connection.state
        if self._tls and state < OPEN and isinstance(error, (OSError, ValueError)):
            from .tls import explained

            error = explained(error)
        self.error = error
        if self._state == _STOPPED:  # a handler stopped the link and then failed
            return
        if self._unproved and self._session.proved:
            self._prove()
        up = self._state == _UP
        backoff = self.backoff
        # Without a socket (no network), no broker has any load. Before the first connection, a person may wait.
        near = self._state == _DOWN and error.args[:1] != (_REFUSED,)
        if near or not (self.connects or self._is_known()):
            while backoff.step and backoff.limit_ms() > _NEAR_MS:
                backoff.step -= 1
        delay = backoff.next_delay_ms(ticks_diff(now_ms, self._since_ms) if state >= OPEN else 0)
        self._retry_at(ticks_add(now_ms, delay))  # first: memory or store may fail
        try:
            if up:
                connection.put_error_disconnect(error)
            if connection.state == CLOSING:
                self.write(now_ms)
        except (OSError, ConnectionLost):
            pass
        finally:
            self._close()
        if not near:
            self._keep_step()

    def step(self, now_ms: int) -> "Any":
        """Advance; return the next event, or NOTHING until `sock` is ready or `wait_ms` is over.

        The caller passes every error to `ended`. (A `try` here would take 25 us and a frame a message.)
        """
        session = self._session
        session.busy = True
        output = self.output
        self.stepped_ms = now_ms
        if self._state != _UP:
            event = self._connect(now_ms)
        else:
            n = self.read_count
            # If the socket was emptied, no received packet is left: read first.
            event = _NOTHING if n < 0 else self._process(now_ms)
            while event != _MESSAGE:
                if event == _NOTHING:
                    # What `write` and `has_more` do first: a call takes 20 us.
                    if (
                        output.end
                        and (
                            (self.events == _POLLIN and not self.shaking and self.write_to(self.sock, now_ms))
                            or self.write(now_ms)
                        )
                        and (session.cursor != session.store.next_seq or session.partial or session.wants_request)
                        and session.has_more()
                    ):
                        event = self._process(now_ms)
                        continue  # the window exceeds the output buffer: send the rest
                    if n >= _READS or self.shaking:  # the write of CONNECT advances the handshake
                        wait = ticks_diff(self._check_ms, now_ms)
                        if wait <= 0 or (self._unproved and session.proved):
                            wait = self._check(now_ms)
                        if session.reported:
                            session.reported = 0
                            n = _READS  # more reports may wait
                        self.wait_ms = 0 if n == _READS else wait
                        self.read_count = -1 if n == _READ_OUT else 0
                        break
                    event = self._read_from(self.sock)
                    if event:
                        self.connection.received_ms = now_ms
                        # A short read has emptied the socket. With TLS more may be decrypted, unseen by poll.
                        self.read_count = n = n + 1 if event == 2 or self._tls else _READ_OUT
                        event = self._process(now_ms)
                    elif event is None:
                        event = n < 0  # the received packets are not processed yet
                        self.read_count = n = _READ_OUT
                        event = self._process(now_ms) if event else _NOTHING
                    else:
                        raise ConnectionLost(CLOSED_BY_PEER)
                elif event == DELIVERED:
                    if ticks_diff(now_ms, output.sent_ms) >= _BATCH_MS and session.has_more():
                        self.flush(now_ms)  # refill the window now: the other answers take time
                    break
                elif event == OUTPUT:
                    if not self.write(now_ms):
                        self.events = _POLLOUT  # nothing is read now
                        self.wait_ms = _IDLE_MS
                    elif not (output.limit or session.partial):  # a QoS 0 message is sent in pieces: `Sending`
                        self.wait_ms = _SENDING_MS
                    else:
                        event = self._process(now_ms)
                        continue
                    event = _NOTHING
                    break
                elif event == RESTART:
                    self._state = _ENDING
                    event = self._connect(now_ms)  # at once
                    break
                else:
                    session.reported += 1
                    if event == CONNECTED:
                        self._since_ms = now_ms
                        self._unproved = True
                        self.error = None
                        self.reported = True
                        self.connects += 1
                    break
        session.busy = event != _NOTHING  # until the caller handles it: a timer must not make the next step before
        return event

    def ended(self, error: "Any", now_ms: int) -> None:
        """Process what `step` raised. An error of network or peer ends the connection; others are raised."""
        session = self._session
        session.busy = False
        # MicroPython raises ValueError for a refused certificate.
        if not isinstance(error, _WORLD) and not (self._tls and isinstance(error, ValueError)):
            if not isinstance(error, Exception):
                self.interrupted()
            elif isinstance(error, MemoryError) and not (session.handed or session.urgent):  # a packet is lost
                self.fail(error, now_ms)
            raise error
        self.fail(error, now_ms)

    def interrupted(self) -> None:
        """Reconnect: Ctrl-C ended some work."""
        self._session.handed = 0
        self.output.interrupted()
        if self._state > _DOWN:
            self._state = _ENDING

    def flush(self, now_ms: int) -> None:
        """Put and write packets. A network error ends the connection."""
        if self._state == _UP:
            try:
                while True:
                    self.connection.pump(now_ms)
                    if not self.output.end or not self.write(now_ms) or not self._session.has_more():
                        return  # else the window exceeds the output buffer
            except (OSError, ConnectionLost) as error:
                self.fail(error, now_ms)

    def write(self, now_ms: int) -> bool:
        """Write the output; return whether it is empty."""
        output = self.output
        while output.end:
            start = output.start
            if not self.write_to(self.sock, now_ms) and output.end:
                if output.start == start:
                    self.events = _POLLIN | _POLLOUT
                    if self.shaking:
                        if self.feed:  # the last step of the handshake may have taken seconds
                            self.feed()
                        self.events = self.shaking.wants
                        if self.shaking.moved:
                            self.shaking.moved = False
                            self._stuck_ms = now_ms
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
            if self.shaking:
                self.shaking.shaking = False
                self.shaking = None
        return True

    def disconnect(self, code: int, properties: "Any", now_ms: int) -> bool:
        """Write the output and DISCONNECT if CONNECT was sent; return whether the broker has closed, or had time to.

        If the client closes first, arriving bytes reset the connection, and the broker misses the rest.
        """
        connection = self.connection
        if connection.state < OPEN:  # else the broker would publish the will
            if not connection.state or self.output.end:
                return True
            self.output.open()
        while self.write(now_ms):
            if connection.state > OPEN:
                self.wait_ms = _IDLE_MS - ticks_diff(now_ms, self.output.sent_ms)
                try:  # the input buffer may hold a handler's message
                    return self.sock.readinto(self.output.buf) == 0 or self.wait_ms <= 0
                except OSError:
                    return True
            if self._session.partial:
                self._session.pump(now_ms)  # DISCONNECT can't be sent in the middle of a message
            elif not connection.disconnect(code, properties):
                return False  # a task is sending a long QoS 0 message
        return False

    def _connect(self, now_ms: int) -> "Any":
        """Advance the connection attempt."""
        state = self._state
        if self.reported:
            self.reported = False
            return DISCONNECTED
        # Now: the power may fail before there is a connection.
        session = self._session
        event = session.report()
        if event:
            session.reported += 1
            return event
        session.reported = 0
        if state == _STOPPED:
            self.wait_ms = _IDLE_MS
        elif state == _DOWN:
            self.wait_ms = ticks_diff(self._since_ms, now_ms)
            if self.wait_ms <= 0:
                self._open(now_ms)
        elif state == _OPENING:
            self._try_open(now_ms)
        elif self.disconnect(0, None, now_ms):
            self._retry_at(now_ms)
            self._close()
        return _NOTHING

    def _check(self, now_ms: int) -> "Any":
        """Do what is due; return the ms to the next check."""
        wait = ticks_diff(self._check_ms, now_ms)
        if wait <= 0:  # not earlier: events can only delay what is due
            wait = min(self.connection.check(now_ms), _IDLE_MS)
            if self.output.end and not self._stuck:
                self.write(now_ms)
            self._check_ms = ticks_add(now_ms, wait)
        if self._unproved and (self._session.proved or ticks_diff(now_ms, self._since_ms) >= self.backoff.lasting_ms):
            self._prove()
        return wait

    def _open(self, now_ms: int) -> None:
        self.attempts += 1
        if self.feed:
            from .guard import look_up

            addresses = look_up(self.feed, socket.getaddrinfo, self.host, self.port, socket.SOCK_STREAM)
        else:
            addresses = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)
        if not addresses:
            raise ConnectionLost("no address for %s" % self.host)
        # Servers may rotate them.
        family, _, _, _, address = sorted(addresses)[(self.attempts - 1) % len(addresses)]
        if _HOSTED:
            from .hosted import HostedSocket

            self.sock = HostedSocket(family)
        else:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
        self.polled = self.sock
        try:
            self.sock.setsockopt(6, 1, 1)  # TCP_NODELAY; some ports lack it
        except OSError:
            pass
        try:
            self.sock.connect(address)
        except OSError as error:
            if error.errno != 115 and error.errno != 119:  # EINPROGRESS: 119 in some ESP32 images, else 115
                raise
        self._state = _OPENING
        self._since_ms = now_ms
        self.events = _POLLOUT
        self.wait_ms = self.timeout_ms

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
                self.shaking = self.sock.wrap(*self._tls)
            else:
                from .handshake import Steps

                self.shaking = steps = Steps(self.sock)
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
        """It has lasted or delivered a message: the next delay is the shortest."""
        self._unproved = False
        self.backoff.step = 0
        self._keep_step()

    def _is_known(self) -> "Any":
        """Return whether the note is for this client and broker."""
        note = self._session.note
        return note.remember and note.is_of(self.connection.client_id, self.connection.broker)

    def _keep_step(self) -> None:
        """Keep the step across a reboot. Steps 1 and 2 are not worth a write."""
        if self._is_known():
            step = self.backoff.step
            self._session.note.keep_step(step if step > 2 else 0)

    def _close(self) -> None:
        self._unproved = self._stuck = False
        self.read_count = 0
        self.events = 0
        self.shaking = None
        try:
            self.connection.close()  # first, for Ctrl-C
        finally:
            socks = self.sock, self.polled  # 2 with TLS
            self.sock = self.polled = None
            for sock in socks:
                try:
                    if sock:
                        sock.close()
                except OSError:
                    pass
