"""The asyncio client: the same session for programs with tasks, on MicroPython and CPython.

    async with Client("broker.local", 1883, "me", journal) as client:
        await client.subscribe("commands/#", 1)
        handle = await client.publish("readings", "21.5", qos=1)  # stored when this returns
        await client.delivered(handle)                            # acknowledged when this returns
        async for message in client:                              # acknowledged when the loop asks for the next message
            print(message.topic, message.payload)

The client's own task reads, acknowledges and reconnects. It never waits for the program: a message that is not taken yet goes
into a bounded queue (`session/waiting.py`).
"""

import asyncio

from .client import COROUTINE, is_async
from .client import Client as _Blocking
from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff, ticks_ms
from .connection import DELIVERED, DISCONNECTED, MESSAGE, NOTHING
from .errors import ConnectionLost, DeadlineExpired, FlashMqttError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

    from .backoff import Backoff
    from .session.level5 import Level5
    from .session.message import Message

_POLLOUT = const(4)

try:
    from asyncio import core as _core  # type: ignore[attr-defined]

    def _loop() -> "Any":
        """Return what `asyncio.new_event_loop` replaces."""
        return _core._io_queue

    _loop()

    def _ready(link: "Any") -> "Any":
        """Wait for the link's socket; return at once if it was closed."""
        sock = link.polled
        if sock is not None:
            queue = _core._io_queue
            yield queue.queue_write(sock) if link.events & _POLLOUT else queue.queue_read(sock)

    _wait_for_ms = asyncio.wait_for_ms  # type: ignore[attr-defined]
    _sleep_ms = asyncio.sleep_ms  # type: ignore[attr-defined]
except (ImportError, AttributeError):  # CPython
    from .hosted import ready
    from .hosted import wait_for_ms as _wait_for_ms

    _loop = asyncio.get_running_loop

    async def _ready(link: "Any") -> None:  # type: ignore[misc]
        if link.polled is not None:
            await ready(link.polled, link.events & _POLLOUT)

    async def _sleep_ms(ms: int) -> None:
        await asyncio.sleep(ms / 1000)


_SLOW_MS = const(20)  # pause while many messages wait for the program
_UNCLAIMED_MS = const(500)  # how long an unclaimed piece blocks later messages
_SOON_MS = const(50)
_BUSY = const(1)  # a state: a handler or a task has it

# What a handler may raise; CancelledError is not an Exception.
_RAISED = (Exception, asyncio.CancelledError)

# Without memory, `asyncio.wait_for_ms` raises one of these.
_SHORT = (MemoryError, asyncio.CancelledError)

# The blocking client's.
_ATTRIBUTES = "connected error pending oversize downgraded client_id granted answer unclaimed failed missed".split()

# Which waiting messages to return: `session/waiting.py`.
_CLAIMED = const(1)
_UNCLAIMED = const(2)


class Client:
    """A client of one broker; the arguments are those of the blocking one (`flashmqtt.client.Client`).

    A message goes to the handlers of the subscriptions that cover its topic; if there are none, to `on_message`; if that is
    None, to `async for`. Until it is taken, the message waits, and so do later messages for the same handler; messages for other
    handlers do not wait. `waiting`, `unclaimed`, `attempts` and the counters are the blocking client's. `async for` claims
    messages as soon as a task asks for one.

    Attributes and handlers are those of the blocking client. A handler may be None, a plain function, or an `async def` function,
    which is awaited. While it works on a message, its next message waits; other handlers continue. What a handler raises goes to
    `on_error`; if that is None, to the event loop's exception handler, which prints it. The client continues, and calls the
    handler again as the blocking client does.

    If the store fails, the client reconnects; until then, most calls that wait raise its error.

    In a handler, an `async def` function may await every call of the client. A plain function can't await: it may start a
    task: `asyncio.create_task(client.publish(...))`.

    With `chunks`, nothing else is read while the program works on a piece of a message: do not wait for an answer meanwhile.
    After response_s plus unclaimed_s, it counts as taken; a piece that nobody takes so long counts as unclaimed.
    """

    if TYPE_CHECKING:
        connected: bool
        error: "Exception | None"
        pending: int
        downgraded: int
        client_id: str
        granted: "dict[int, Any]"
        answer: "dict[int, Any]"
        unclaimed: int
        failed: int
        missed: int
        on_message: "Callable[[Message], Any] | None"
        on_error: "Callable[[Exception, Message | None], Any] | None"
        on_unclaimed: "Callable[[Message], Any] | None"
        on_connect: "Callable[[bool], Any] | None"
        on_disconnect: "Callable[[Exception | None], Any] | None"
        on_delivered: "Callable[[int], Any] | None"
        on_in_doubt: "Callable[[int], Any] | None"
        on_refused: "Callable[[int, int], Any] | None"
        on_expired: "Callable[[int], Any] | None"
        on_dropped: "Callable[[int, int], Any] | None"
        on_damaged: "Callable[[int], Any] | None"
        on_oversize: "Callable[[Any, int], Any] | None"

    def _begin(self, *arguments: "Any", **options: "Any") -> None:
        self._blocking = blocking = _Blocking(*arguments, **options)
        blocking.call = self.call  # type: ignore[method-assign, assignment]
        self._loss = ()  # `_report` reports a lost connection at once
        self.note_refusal = blocking.note_refusal
        self.session = blocking.session
        self.connection = connection = blocking.connection
        connection.owner = connection  # tasks wait for DELIVERED, also without `on_delivered`
        self.link = blocking.link
        self.timeout_s = blocking.timeout_s
        self.on_connect = self.on_delivered = self.on_in_doubt = self.on_refused = self.on_damaged = None
        self.on_oversize = self.on_disconnect = None
        self.on_expired = self.on_dropped = None
        self.on_message = self.on_error = self.on_unclaimed = None
        self._task: "asyncio.Task[Any] | None" = None
        self._tasks: "list[Any]" = []  # (task, its message or None) of awaited handlers
        self._stopping = False
        self._closed = False  # disconnected: iteration has ended
        self._failure = None  # the store's error, until there is a new connection
        self._progress = asyncio.Event()  # an event, or a message for `async for`
        self._loop = None  # that of the client's tasks
        self._held: "list[Any]" = []  # (task, message) of iterating tasks
        self._iterated = False
        self._awaited: "Any" = None  # an `on_message` known to be `async def`

    if TYPE_CHECKING:  # at run time they are passed on

        def __init__(
            self,
            host: "str | bytes",
            port: int = 1883,
            client_id: "str | bytes" = b"",
            store: "Any" = None,
            level: int = 4,
            user: "str | bytes | None" = None,
            password: "str | bytes | None" = None,
            keep_alive_s: int = 60,
            will: "tuple[Any, Any, int, bool] | None" = None,
            window: int = 8,
            buffer_bytes: int = 1024,
            clean: bool = False,
            tls: "Any" = None,
            server_name: "str | None" = None,
            timeout_s: float = 10,
            response_s: float = 30,
            retry_ms: "int | None" = None,
            republish: bool = True,
            backoff: "Backoff | None" = None,
            feed: "Callable[[], object] | None" = None,
            five: "Level5 | None" = None,
            chunks: bool = False,
            max_qos: int = 2,
            refuse_after: int = 5,
            waiting: int = 64,
            waiting_bytes: "int | None" = None,
            unclaimed: str = "drop",
            unclaimed_s: float = 60,
            attempts: int = 5,
            log: "Callable[[str], object] | None" = None,
        ) -> None: ...

    else:
        __init__ = _begin

    def __getattr__(self, name: str) -> "Any":
        """Return an attribute of the blocking client."""
        if name in _ATTRIBUTES:
            return getattr(self._blocking, name)
        raise AttributeError(name)

    # --- connecting ---

    async def __aenter__(self) -> "Client":
        try:
            await self.connect()
        except BaseException:  # the program gets no client
            await self.disconnect()
            raise
        return self

    async def __aexit__(self, kind: int, error: "Any", trace: "Any") -> None:
        self._acknowledge_finished(asyncio.current_task(), error)
        await self.disconnect()

    def start(self) -> None:
        """Connect in the background; return at once. In a new event loop the client begins again, as after `disconnect`."""
        if self._loop is not _loop():
            if self._loop:
                self._leave_loop()
            self._loop = _loop()
        self.link.start(ticks_ms())
        self._failure = None
        if self._task is None:
            self._stopping = self._closed = False
            self._task = asyncio.create_task(self._run())

    def _leave_loop(self) -> None:
        """Forget an ended event loop's tasks; their messages wait again."""
        self._acknowledge_finished(None)
        waiting = self.session.waiting
        self._put_back(waiting.entries if waiting else ())  # all, after Ctrl-C
        self._tasks = []
        self._held = []
        self._task = None
        self._progress = asyncio.Event()
        self._blocking.stopped()

    def _put_back(self, messages: "Any") -> None:
        """Let messages of ended tasks wait again."""
        for message in messages:
            if message and message.state == _BUSY:
                self.session.waiting.put_back(message)

    async def connect(self, timeout_s: "float | None" = None) -> bool:
        """Connect; return whether the broker still has the session. From now on the client's task reconnects.

        Raises:
            ConnectRefused: the broker refused; `tls.CertificateRefused`: the client refused. The task continues to try.
            ConnectionLost: not connected within timeout_s (the client's own if None). The task continues to try. Or `disconnect`
                was called meanwhile.
        """
        self.start()
        self.link.error = None
        await self._until(lambda: self.link.is_open() and not self._closed, timeout_s, self.link.check_expected)
        return self.connection.session_present

    async def disconnect(self, code: int = 0, expiry_s: "int | None" = None) -> None:
        """Send DISCONNECT, close, and stay disconnected. Stored messages wait for the next connection. Iteration ends.

        Messages that the program has not taken are not acknowledged: the broker or the store keeps them. `async def` handlers
        are cancelled; this waits up to 0.5 s for them.

        Args:
            code, expiry_s: as for the blocking client's `disconnect`, with the same errors.
        """
        properties = self._blocking.disconnect_properties(code, expiry_s)
        this = asyncio.current_task()
        tasks = [one for one in self._tasks if one[0] is not this]
        if self._task:
            tasks.append((self._task, None))
        self._closed = self._stopping = True  # after what needs memory
        link = self.link
        try:
            for task, _ in tasks:
                task.cancel()
            begin = ticks_ms()
            for task, _ in tasks:  # `await` hides who was cancelled
                while not task.done() and ticks_diff(ticks_ms(), begin) < 500:
                    await _sleep_ms(0)
            while self._stopping:  # another task may `start`
                if link.disconnect(code, properties, ticks_ms()) or ticks_diff(ticks_ms(), begin) >= 1000:
                    break
                await _sleep_ms(0)
        except (OSError, ConnectionLost):
            pass
        finally:
            if self._stopping:
                self._task = None
                self._put_back(one[1] for one in tasks if one[0].done())
                self._tasks = [one for one in self._tasks if one[0] is this or not one[0].done()]
                self._blocking.stopped()
                self._wake_waiters()

    # --- sending ---

    async def publish(
        self,
        topic: "str | bytes | bytearray | memoryview",
        payload: "str | bytes | bytearray | memoryview",
        qos: int = 0,
        retain: bool = False,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> int:
        """Publish; return a handle for `delivered`. At QoS 1 and 2 the message is stored when this returns, connected or not.

        Args:
            topic, payload, qos, retain, properties: as for the blocking client's `publish`, with the same results and errors.
        """
        handle = self._blocking._publish(topic, payload, qos, retain, properties, ticks_ms(), self._send)
        if type(handle) is COROUTINE:
            await handle
            handle = 0
        try:
            self.link.flush(ticks_ms())
            await _sleep_ms(0)
        except Exception:
            if not handle:
                raise
        return handle

    async def _send(self, topic: "Any", payload: "Any", retain: bool, properties: "Any") -> None:
        """Send a QoS 0 message in pieces."""
        from .sending import Sending

        sending = Sending(self, topic, payload, retain, properties)
        try:
            while not sending.step(ticks_ms()):
                await _sleep_ms(0 if sending.moved else 5)
        except BaseException as error:
            sending.failed(error)

    async def delivered(self, handle: int, timeout_s: "float | None" = None) -> bool:
        """Wait until the broker has acknowledged this message; without a deadline if timeout_s is None.

        Return True; or False if the message was dropped, damaged or is in doubt.

        Raises:
            Refused: the broker refused the message. DeadlineExpired: not acknowledged within timeout_s.
            UsageError: no message has this handle.
        """
        blocking = self._blocking
        if type(handle) is not int or handle >= self.session.store.next_seq:  # it would wait for ever
            from .arguments import refuse_handle

            refuse_handle(self.session, handle)
        endless = timeout_s is None
        await self._until(
            lambda: blocking.delivered(handle) or self.session.is_done(handle), timeout_s or 0, None, endless
        )
        return blocking.delivered(handle)

    async def drain(self, timeout_s: float = 0) -> None:
        """Wait until no message is pending; without a deadline if timeout_s is 0.

        Raises:
            DeadlineExpired: messages are still pending after timeout_s.
        """
        await self._until(lambda: not self.session.store.waiting, timeout_s, None, timeout_s == 0)

    # --- receiving ---

    async def subscribe(
        self,
        filter_: "str | bytes | list[Any] | tuple[Any, ...]",
        qos: int = 0,
        handler: "Callable[[Message], Any] | None" = None,
        timeout_s: "float | None" = None,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> "Any":
        """Subscribe; return the granted QoS (None: not connected; the client subscribes when it is).

        Args:
            filter_, qos, timeout_s, properties: as for the blocking client's `subscribe`, with the same results and errors.
            handler: handler(message), a plain or an `async def` function; None leaves the messages to `on_message`, or to
                `async for`.
        """
        self._blocking._deadline(timeout_s)  # refuses what is no time
        asked = self._blocking.want(filter_, qos, handler, properties)
        self._serve()
        return await self._ask(asked, timeout_s)

    async def unsubscribe(
        self,
        filter_: "str | bytes | list[Any] | tuple[Any, ...]",
        timeout_s: "float | None" = None,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> "Any":
        """End the subscription of filter_, also one made before the last restart; return the broker's reason code.

        Args:
            filter_, timeout_s, properties: as for the blocking client's `unsubscribe`, with the same results and errors.
        """
        self._blocking._deadline(timeout_s)
        from .session.several import unwant

        return await self._ask(unwant(self.session, filter_, properties), timeout_s)

    async def _ask(self, asked: "Any", timeout_s: "float | None") -> "Any":
        link = self.link
        if link.is_open():
            link.flush(ticks_ms())
            await self._until(lambda: asked.result() is not None or not link.is_open(), timeout_s)
        return asked.granted()

    def __aiter__(self) -> "Client":
        return self

    async def __anext__(self) -> "Message":
        """Return the next message; acknowledge the one that this task had before.

        Several tasks may iterate: each message goes to one of them. `asyncio.wait_for(c.__anext__(), t)` may be a task of its
        own (MicroPython, CPython 3.11): its message is acknowledged with the next call, and lost if t ends when the message
        arrives. So a message none of whose attributes were read within 50 ms is returned once more.

        Raises:
            StopAsyncIteration: the program disconnected.
        """
        self._iterated = True
        task = asyncio.current_task()
        self._acknowledge_finished(task)
        while True:
            if self._failure:
                await self._raise()
            if self._closed:
                raise StopAsyncIteration
            waiting = self.session.waiting
            message = waiting.next(ticks_ms(), _UNCLAIMED) if waiting and self.on_message is None else None
            if not message:
                await self._progress.wait()
            elif message.repeated and message.touched:
                waiting.finish(message)  # not lost
            elif waiting.begin(message):
                try:
                    self._held.append((task, message))
                except MemoryError:
                    waiting.put_back(message)
                    raise
                return message

    def _acknowledge_finished(self, task: "Any", error: "Any" = None, returned: bool = True) -> None:
        """Acknowledge messages of this task and of ended tasks (`returned`: which returned them), or let them wait again.

        error: what ended this task's work on its message.
        """
        held = self._held
        waiting = self.session.waiting
        for one in held[:]:
            holder, message = one
            result = error
            if holder is not task:
                if not holder.done():
                    continue
                result = _result(holder)
                if not returned and result is message and message.packet_id >= 0:
                    continue
            held.remove(one)
            if isinstance(result, BaseException):
                waiting.refuse(message, ticks_ms(), isinstance(result, Exception))
            elif result is message and not message.touched and not message.repeated:
                message.repeated = True  # `wait_for` lost it, or will return it soon
                waiting.put_back(message, ticks_add(ticks_ms(), _SOON_MS))
            else:
                waiting.finish(message)
            self.link.flush(ticks_ms())

    # --- the task ---

    async def _until(
        self, condition: "Any", timeout_s: "float | None", check: "Any" = None, endless: bool = False
    ) -> None:
        deadline_s = self.timeout_s if timeout_s is None else timeout_s
        self._blocking._deadline(deadline_s)  # refuses what is no time
        begin = ticks_ms()
        while not condition():
            if self._failure:
                await self._raise()
            if check:
                check()
            try:
                left = 60000 if endless else deadline_s * 1000 - ticks_diff(ticks_ms(), begin)
                if left <= 0:
                    error = check and self.link.error
                    raise ConnectionLost("not connected: %r" % error) if error else DeadlineExpired("no answer in time")
                await _wait_for_ms(self._progress.wait(), int(left))
            except asyncio.TimeoutError:
                pass

    async def _raise(self) -> None:
        """Raise the store's error, with a pause: the program may call again."""
        error: "Any" = self._failure
        await _sleep_ms(_SLOW_MS)
        raise error

    def _wake_waiters(self) -> None:
        """Wake all tasks that wait or iterate."""
        progress = self._progress
        self._progress = asyncio.Event()  # first: it may need memory
        progress.set()

    async def _run(self) -> None:
        error: "Any" = None
        while True:
            try:
                if not error:
                    await self._pump()
                    return
                await _sleep_ms(_SLOW_MS)  # other tasks may free memory
                self._fail(error)
                error = None
            except KeyboardInterrupt:
                self._task = None  # MicroPython's event loop may go on
                self.link.interrupted()
                raise
            except _RAISED as raised:
                if _is_cancelled(raised, self._closed):
                    raise
                error = raised

    def _fail(self, error: "Any") -> None:
        """End the connection and reconnect. Meanwhile waiting tasks raise the store's error."""
        if not isinstance(error, _SHORT):
            self._failure = error
        self.session.handed = 0
        self._wake_waiters()
        self.link.fail(error, ticks_ms())

    async def _pump(self) -> None:
        link = self.link
        session = self.session
        was = None
        while not self._stopping:
            self._serve()
            try:
                event = link.step(ticks_ms())
                session.busy = False
            except BaseException as error:
                link.ended(error, ticks_ms())
                event = NOTHING
            if event == NOTHING:
                if link.error is not was:
                    was = link.error
                    self._wake_waiters()
                if link.wait_ms > 0:
                    await self._wait()
                else:
                    await _sleep_ms(0)
            elif event == MESSAGE:
                if session.message.more or session.message.offset:
                    await self._take_piece()
                elif not self._take(session.message):
                    self._serve()
                    waiting = session.waiting
                    await _sleep_ms(_SLOW_MS if waiting and waiting.wants_pause() else 0)
            else:
                if event == DELIVERED:
                    self.call(self.on_delivered, session.handle)
                elif event == DISCONNECTED:
                    self.call(self.on_disconnect, link.error)
                else:
                    self._failure = None
                    _Blocking._report(self, event)  # type: ignore[arg-type]  # its handlers, by `call`
                self._wake_waiters()

    async def _wait(self) -> None:
        """Wait for the socket, or until work is due."""
        link = self.link
        if link.polled is None:
            await _sleep_ms(min(link.wait_ms, 1000))
            return
        try:
            await _wait_for_ms(_ready(link), link.wait_ms)
        except asyncio.TimeoutError:
            pass

    def _take(self, message: "Any") -> bool:
        """Call the plain handlers; return False if the message has to wait."""
        session = self.session
        waiting = session.waiting
        finished = 0
        later = waiting and waiting.must_wait(message)
        if not later:
            try:
                for entry in session.subscriptions:
                    if entry.takes(message):
                        entry.awaited = later = (
                            entry.awaited or is_async(entry.handler) or _awaits(entry.handler, message)
                        )
                        if later:
                            break
                        finished += 1
                if not finished and not later:
                    handler = self.on_message
                    later = handler is None or handler is self._awaited
                    if not later and _awaits(handler, message):
                        self._awaited = handler
                        later = True
            except _RAISED as error:
                self._load_waiting().failed_now(_exception(error), finished)
        if not later:
            try:
                session.acknowledge()
            except BaseException:  # Ctrl-C, too
                self._load_waiting().add_taken(ticks_ms())
                raise
            return True
        message = self._load_waiting().add(ticks_ms())
        if finished and message:
            message.finished = tuple(session.waiting.claims(message)[:finished])
        return False

    async def _take_piece(self) -> None:
        """Hand over a piece of a long message. Nothing is read meanwhile."""
        session = self.session
        waiting = self._load_waiting()
        if waiting.skipping:
            waiting.add(ticks_ms())
            return
        piece = waiting.add_piece(ticks_ms())
        begin = ticks_ms()
        while piece in waiting.entries and not self._stopping:
            self._serve()
            await _sleep_ms(2)
            session.long.keep_open(self.connection, ticks_ms())
            self.link.flush(ticks_ms())
            if not self.link.is_open():
                return
            claims = self.on_message or waiting.claims(piece)
            limit_ms = session.response_ms + waiting.unclaimed_ms if claims or self._iterated else _UNCLAIMED_MS
            if ticks_diff(ticks_ms(), begin) > limit_ms:
                if piece.state == _BUSY:
                    piece.packet_id = -1  # counts as taken
                elif not claims:
                    self._iterated = len(self._held) > 0
                break
            if waiting.blocks(piece):
                break
        if piece.packet_id > 0 and piece in waiting.entries:  # not taken
            waiting.withdraw(piece)
            waiting.add(ticks_ms())
        elif piece.failures:
            waiting.refuse(None, ticks_ms(), True)
        else:
            session.acknowledge()

    def _load_waiting(self) -> "Any":
        waiting = self._blocking.load_waiting()
        waiting.report_error = self._note_error
        return waiting

    def _serve(self) -> None:
        """Hand over waiting messages, wake iterating tasks, drop unclaimed messages."""
        waiting = self.session.waiting
        if not waiting or not waiting.entries:
            return
        now_ms = ticks_ms()
        if not waiting.due(now_ms, self._iterated or self.on_message is not None):
            return
        self._acknowledge_finished(None, None, False)
        while True:
            message = waiting.next(now_ms, _CLAIMED if self.on_message is None else _CLAIMED | _UNCLAIMED)
            if not message:
                break
            if waiting.begin(message):
                try:
                    task = asyncio.create_task(self._handle(message))
                except MemoryError:
                    waiting.put_back(message)
                    raise
                self._tasks.append((task, message))
        self._wake_waiters()
        self._blocking.on_unclaimed = self.on_unclaimed
        waiting.drop_unclaimed(now_ms)

    async def _handle(self, message: "Any") -> None:
        """Call the handlers of a message that waited."""
        waiting = self.session.waiting
        try:
            try:
                for entry in waiting.claims(message) or (None,):
                    handler = entry.handler if entry else self.on_message
                    if handler and entry not in message.finished:
                        finished = message.finished + (entry,)  # before the call: no memory may be left after it
                        await _finished(handler(message))
                        message.finished = finished
            except _RAISED as error:
                if _is_cancelled(error, self._closed):
                    waiting.put_back(message)
                    raise
                waiting.failed_with(message, _exception(error))
            else:
                if message.finished:
                    waiting.finish(message)
                else:  # its handler was removed meanwhile
                    waiting.put_back(message)
            self.link.flush(ticks_ms())
            self._serve()
        except Exception as error:  # no memory, or the store failed
            self._fail(error)
        finally:
            if message.state == _BUSY:  # or Ctrl-C
                waiting.put_back(message)
            self._ended()

    def call(self, handler: "Any", *arguments: "Any") -> None:
        """Call a handler that is not for messages; if `async def`, in a task."""
        if handler:
            try:
                self._run_task(handler(*arguments), self._note_error)
            except _RAISED as error:
                self._note_error(_exception(error))

    def _run_task(self, result: "Any", report: "Any") -> None:
        """Run a handler's coroutine in a task; pass what it raises to `report`."""
        if type(result) is COROUTINE:
            self._tasks.append((asyncio.create_task(self._await(result, report)), None))

    async def _await(self, coroutine: "Any", report: "Any") -> None:
        try:
            await coroutine
        except Exception as error:
            report(error)
        finally:
            self._ended()

    def _ended(self) -> None:
        """Forget the current task: its handler has ended."""
        this = asyncio.current_task()
        self._tasks = [one for one in self._tasks if one[0] is not this and not one[0].done()]

    def _note_error(self, error: "Any", message: "Any" = None) -> None:
        """Report what a handler raised."""
        if self.on_error:
            try:
                self._run_task(self.on_error(error, message), _print)
                return
            except _RAISED as another:
                error = _exception(another)
        _print(error)


def _exception(error: "Any") -> "Any":
    """Return what a handler raised as an Exception."""
    return error if isinstance(error, Exception) else FlashMqttError("a handler raised %r" % error)


def _is_cancelled(error: "Any", closed: "Any") -> "Any":
    """Return whether `disconnect`, or on CPython any code, cancelled the task."""
    if isinstance(error, Exception):
        return False
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return closed or (cancelling is not None and cancelling() > 0)


def _awaits(handler: "Any", message: "Any") -> bool:
    """Call a handler; return whether it is `async def`, and has not run."""
    result = handler(message)
    if result is None or type(result) is not COROUTINE:
        return False
    result.close()
    return True


async def _finished(result: "Any") -> None:
    """Wait for a handler if it is an `async def` function."""
    if type(result) is COROUTINE:
        await result


def _result(task: "Any") -> "Any":
    """Return what an ended task returned or raised."""
    if hasattr(task, "data"):  # MicroPython
        return getattr(task.data, "value", None) if isinstance(task.data, StopIteration) else task.data
    if task.cancelled():
        return asyncio.CancelledError()
    return getattr(task, "_exception", None) or task.result()  # `exception()` would mark it as reported


def _print(error: "Any") -> None:
    """Pass an error to the event loop's exception handler."""
    context = {"message": "flashmqtt: a handler failed", "exception": error}
    if hasattr(asyncio, "core"):  # CPython would enter its context again
        context["future"] = asyncio.current_task()
    asyncio.get_event_loop().call_exception_handler(context)
