"""The asyncio face: the same session for programs with tasks, on MicroPython and CPython.

    async with Client("broker.local", 1883, "me", journal) as client:
        await client.subscribe("commands/#", 1)
        handle = await client.publish("readings", "21.5", qos=1)     # stored when this returns
        await client.delivered(handle)                               # acknowledged when this returns
        async for message in client:                                 # acknowledged when the loop comes back for the next
            print(message.topic, message.payload)

One task of its own reads, answers and reconnects; while the program is busy with a message nothing else is read (RAM stays
bounded), but the broker is kept content. It knows asyncio; the sockets are `link.py`'s.
"""

import asyncio

from .client import Client as _Blocking
from .client import octets
from .compat import ticks_diff, ticks_ms
from .connection import CONNECTED, DELIVERED, IN_DOUBT, MESSAGE, NOTHING, REFUSED
from .errors import (
    CertificateRefused,
    ConnectRefused,
    DeadlineExpired,
    InboundWindowFull,
    NotConnected,
    UsageError,
)

try:
    from asyncio import core as _core  # type: ignore[attr-defined]

    _io_queue = _core._io_queue

    def _ready(sock, writing):
        """Wait until the socket can be read (or written)."""
        queue = _core._io_queue
        yield queue.queue_write(sock) if writing else queue.queue_read(sock)

    _wait_for_ms = asyncio.wait_for_ms  # type: ignore[attr-defined]
    _sleep_ms = asyncio.sleep_ms  # type: ignore[attr-defined]
except (ImportError, AttributeError):  # CPython
    from .hosted import ready as _ready  # type: ignore[assignment]

    async def _wait_for_ms(awaitable, ms):
        await asyncio.wait_for(awaitable, ms / 1000)

    async def _sleep_ms(ms):
        await asyncio.sleep(ms / 1000)


_POLLOUT = 4


class Client:
    """A client of one broker; the arguments are those of the blocking one (`flashmqtt.client.Client`).

    Handlers, each may be None; they are plain functions: `on_connect(session_present)`, `on_delivered(handle)`,
    `on_in_doubt(handle)`, `on_refused(handle, code)`, and a subscription's `handler(message)`.
    """

    def __init__(self, *arguments, **options):
        self._blocking = blocking = _Blocking(*arguments, **options)
        self.session = blocking.session
        self.connection = blocking.connection
        self.link = blocking.link
        self.timeout_s = blocking.timeout_s
        self.on_connect = self.on_delivered = self.on_in_doubt = self.on_refused = None
        self._task: "asyncio.Task | None" = None
        self._stopping = False
        self._failure = None  # what ended the task
        self._progress = asyncio.Event()  # something happened that somebody may wait for
        self._arrived = asyncio.Event()  # a message is there for `async for`
        self._taken = asyncio.Event()  # and the program is done with it
        self._holder = None  # the task that has it
        self._kind = -1  # what `session.untaken` was when it got it
        self._iterated = False

    @property
    def connected(self):
        """Whether there is a connection that the broker accepted."""
        return self.link.is_open()

    @property
    def error(self):
        """Why the last attempt or connection ended."""
        return self.link.error

    @property
    def pending(self):
        """How many messages are stored and not acknowledged."""
        return self.session.pending()

    # --- connecting ---

    async def __aenter__(self):
        await self.connect()
        return self

    async def __aexit__(self, kind, error, trace):
        # A loop that was left in good order is done with its last message.
        await self._stop(kind is None and self._holder is not None)

    def start(self):
        """Connect as soon as that is possible; return at once."""
        self.link.start(ticks_ms())
        if self._task is None:
            self._stopping = False
            self._failure = None
            self._arrived.clear()
            self._task = asyncio.create_task(self._run())

    async def connect(self, timeout_s=None):
        """Connect; return whether the broker still knew the session. From now on the task reconnects by itself.

        Raises:
            ConnectRefused: by the broker; CertificateRefused: by us. The task goes on trying nevertheless.
            ConnectionLost: not within timeout_s (the client's own where None); the task goes on trying.
        """
        self.start()
        self.link.error = None
        await self._until(self.link.is_open, timeout_s, self._connect_failed)
        return self.connection.session_present

    def _connect_failed(self):
        error = self.link.error
        if isinstance(error, (ConnectRefused, CertificateRefused)):
            raise error

    async def disconnect(self):
        """End the connection in good order and stay disconnected; stored messages wait."""
        await self._stop(False)

    async def _stop(self, taken):
        if self._task is not None:
            self._stopping = True
            self._task.cancel()
            try:
                await self._task
            except asyncio.CancelledError:
                pass
            self._task = None
        session = self.session
        try:
            if taken and session.untaken >= 0 and session.has_room():
                session.taken()
            elif taken:
                session.took(self._kind)
        except InboundWindowFull:  # with its acknowledgement put
            pass
        finally:
            self._holder = None
            self._blocking.disconnect(1)

    # --- sending ---

    async def publish(self, topic, payload, qos=0, retain=False, properties=None):
        """Publish; return a handle for `delivered` (0 at QoS 0, and where the store's policy dropped the message).

        At QoS 1 and 2 the message is stored when this returns, connected or not.

        Args:
            topic, payload, qos, retain, properties: as for the blocking client's `publish`, and so are the errors.
        """
        handle = self._blocking.put(octets(topic), octets(payload), qos, retain, properties)
        self.link.flush(ticks_ms())
        await _sleep_ms(0)
        return handle

    async def delivered(self, handle, timeout_s=None):
        """Wait until the broker has acknowledged the message with this handle for good; for ever where no time is given.

        Raises:
            PublishRefused: by the broker (level 5). DeadlineExpired: not within timeout_s.
            UsageError: the loop that calls holds a message, behind which the answer is: wait in another task.
        """
        await self._until(lambda: self._blocking.delivered(handle), timeout_s or 0)

    async def drain(self, timeout_s=0):
        """Wait until every stored message is delivered; for ever where timeout_s is 0.

        Raises:
            DeadlineExpired: not within timeout_s.
        """
        await self._until(lambda: not self.session.pending(), timeout_s)

    # --- receiving ---

    async def subscribe(self, filter_, qos=0, handler=None, timeout_s=None, properties=None):
        """Subscribe; return the QoS granted (None: not connected now, it will be asked for).

        Args:
            filter_, qos, timeout_s, properties: as for the blocking client's `subscribe`, and so are the errors.
            handler: a plain function, handler(message); None leaves what the filter covers to `async for`.
        """
        return await self._ask(self._blocking.want(filter_, qos, handler, properties), timeout_s)

    async def unsubscribe(self, filter_, timeout_s=None):
        """End the subscription of filter_.

        Raises:
            DeadlineExpired: no answer within timeout_s.
        """
        entry = self.session.unsubscribe(octets(filter_))
        if entry:
            await self._ask(entry, timeout_s)

    async def _ask(self, entry, timeout_s):
        if not self.link.is_open():
            return None
        self.link.flush(ticks_ms())
        entries = self.session.subscriptions
        await self._until(
            lambda: entry not in entries or entry.granted() is not None or not self.link.is_open(), timeout_s
        )
        return entry.granted()

    def __aiter__(self):
        self._iterated = True
        return self

    async def __anext__(self):
        """Return the next message, valid until the one after it; the one before it is acknowledged now."""
        if self._holder is not None:
            self._holder = None
            self._taken.set()
        if not self._failure:
            await self._arrived.wait()
            self._arrived.clear()
        if self._failure:
            raise self._failure
        self._holder = asyncio.current_task()
        return self.connection.message

    # --- the task ---

    async def _until(self, condition, timeout_s, check=None):
        """Wait for a condition that the task below brings about."""
        if self._holder is not None and self._holder is asyncio.current_task():
            if condition():
                return
            raise UsageError(
                "waiting for an answer while holding a message, behind which the answer is: use another task"
            )
        deadline_s = self.timeout_s if timeout_s is None else timeout_s
        begin = ticks_ms()
        while not condition():
            if self._failure:
                raise self._failure
            if check:
                check()
            try:
                left = deadline_s * 1000 - ticks_diff(ticks_ms(), begin) if deadline_s else 60000
                if left <= 0:
                    raise NotConnected(self.link.error) if self.link.error else DeadlineExpired()
                await _wait_for_ms(self._progress.wait(), int(left))
            except asyncio.TimeoutError:
                pass

    def _tell(self):
        """Wake up whoever waits for progress."""
        self._progress.set()
        self._progress = asyncio.Event()

    async def _run(self):
        try:
            await self._pump()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the store failed, or a handler of the program did: whoever waits is told
            self._failure = error
            self._arrived.set()
            self._tell()
            self.link.fail(error, ticks_ms())

    async def _pump(self):
        link = self.link
        session = self.session
        was = None
        while not self._stopping:  # CPython 3.11 can lose a cancellation inside wait_for
            event = link.step(ticks_ms())
            if event == NOTHING:
                if link.error is not was:
                    was = link.error
                    self._tell()
                if link.wait_ms > 0:
                    await self._wait()
                else:
                    await _sleep_ms(0)
            elif event == MESSAGE:
                await self._hand_over(self.connection.message)
            else:
                if event == DELIVERED:
                    if self.on_delivered:
                        self.on_delivered(session.handle)
                elif event == REFUSED:
                    self._blocking.note_refusal()
                    if self.on_refused:
                        self.on_refused(session.handle, session.code)
                elif event == CONNECTED:
                    if self.on_connect:
                        self.on_connect(self.connection.session_present)
                elif event == IN_DOUBT and self.on_in_doubt:
                    self.on_in_doubt(session.handle)
                self._tell()

    async def _wait(self):
        """Wait until the socket is ready, or the link has something to do."""
        link = self.link
        if link.sock is None:
            await _sleep_ms(link.wait_ms)
            return
        try:
            await _wait_for_ms(_ready(link.sock, link.events & _POLLOUT), link.wait_ms)
        except asyncio.TimeoutError:
            pass

    async def _hand_over(self, message):
        """Let the program take a message: by its subscription's handler, or by `async for`."""
        found = False
        for entry in self.session.subscriptions:
            if entry.takes(message):
                found = True
                entry.handler(message)
        if found or not (self._iterated or self.session.subscriptions):
            return
        session = self.session
        self._kind = session.untaken
        self._taken.clear()
        self._arrived.set()
        patience_ms = 20  # a program that takes longer must not keep back the answers to the messages before
        while not self._stopping:
            try:
                await _wait_for_ms(self._taken.wait(), patience_ms)
                if session.untaken != self._kind:  # the connection went meanwhile
                    session.took(self._kind)
                return
            except asyncio.TimeoutError:
                patience_ms = 500
                self.connection.keep_open(ticks_ms())
                self.link.flush(ticks_ms())
