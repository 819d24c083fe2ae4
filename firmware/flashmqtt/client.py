"""The blocking face: an MQTT client for a program with one thread, that never waits without a deadline.

`publish` stores and returns; the message leaves when there is a connection. `poll` reads, writes, answers, reconnects and calls
the handlers; call it often, or give it the time that the program has to spare. It knows the clock and how to wait for a socket;
everything else is in `link.py` and below.
"""

from select import poll as _poll

from .backoff import Backoff
from .codec.encode import put_publish
from .codec.quick import put_message
from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff, ticks_ms
from .connection import (
    CONNECTED,
    DAMAGED,
    DELIVERED,
    DISCONNECTED,
    DROPPED,
    EXPIRED,
    IN_DOUBT,
    MESSAGE,
    NOTHING,
    OPEN,
    OVERSIZE,
    REFUSED,
    Connection,
)
from .errors import (
    ConnectionLost,
    DeadlineExpired,
    FlashMqttError,
    Refused,
    StoreWorn,
)
from .link import Link
from .session.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

    from .session.level5 import Level5
    from .session.message import Message


async def _nothing() -> None:
    pass


_unstarted = _nothing()
COROUTINE = type(_unstarted)  # what a call of an `async def` function returns
_unstarted.close()

try:
    from time import sleep_ms as _sleep_ms  # type: ignore[attr-defined]

    def is_async(handler: "Any") -> bool:
        """Return whether a handler is an `async def` function, as far as that can be told before it is called."""
        return type(handler) is type(_nothing)

except ImportError:  # CPython
    from .hosted import is_async
    from .hosted import sleep_ms as _sleep_ms

_ABSENT = object()
_LEVEL_5 = const(5)
_POLLIN = const(1)  # what a link polls for when all it had was written
# A builtin's name costs a board 5 us at every use, a global one.
_isinstance = isinstance
_str = str
_bytes = bytes
# What becomes of a message that came.
_TAKEN = const(0)
_WAITS = const(1)
_FAILED = const(2)
_IPOLL = hasattr(_poll(), "ipoll")
# The longest wait between two calls of `feed`, and the longest turn of a broker that never stops.
_SLICE_MS = const(200)
_PATIENCE_MS = const(10)  # how long `publish` puts off reading: what comes is answered in batches


class Client:
    """A client of one broker.

    A received message is claimed by the handlers of the subscriptions that cover its topic, or else by `on_message`. One that
    nobody claims yet (`connect()` may bring it before `subscribe()` is called) waits, and is not acknowledged; as soon as a
    handler claims it, it is handed over. So do one whose handler failed, and those behind it that the same handler claims. What
    else comes flows on. A message of QoS 0 for which there is no room is dropped, and `missed` counts it. One of QoS 1 is left
    unanswered, and once there is room the connection is made anew, so that the broker sends it again (with `clean` it is
    acknowledged, dropped and counted). Those of QoS 2 are in the store. A broker stops sending at some number of messages
    without an acknowledgement (mosquitto: 20): so many that nobody takes hold up all others of QoS 1 and 2, until `unclaimed_s`
    has passed.

    A handler that raises is called again with the message after 1 s, 2 s, 4 s and so on, up to `attempts` times; not so at
    QoS 0. Then the message is acknowledged and let go, and `failed` counts it. The error goes to `on_error`; where that is
    None, it comes out of the next `poll()`, and of no other call. A handler left by KeyboardInterrupt or SystemExit, which come
    out at once, is called again, too.

    Args:
        host, port: the broker, by name or address; the name is looked up afresh for every attempt.
        client_id: str or bytes; the broker keeps the session under this name. Level 3: 1 to 23 bytes.
        store: where messages wait: a `Journal`; None for a RamStore (nothing survives a reset). Without a durable store the
            broker's session outlives the program's: subscriptions and what the broker has queued are there after a restart, but
            stored messages that were not sent are gone, and so is a QoS 2 message that was received and not yet handed over.
        level: 3 (MQTT 3.1), 4 (3.1.1) or 5.
        user, password: str or bytes.
        keep_alive_s: a link that died silently is noticed within 1.5 times this. 0: only by `response_s`.
        will: (topic, payload, qos, retain): what the broker publishes where the connection is lost.
        window: how many messages may be in flight to the broker, 1 to 32.
        buffer_bytes: size of each of the buffers; longer messages can be sent; received, see chunks.
        clean: start a new session at the broker with every connection.
        tls: an SSLContext (see `flashmqtt.tls`); server_name: the certificate's name where it is not `host`.
        timeout_s: deadline for TCP, for writes, and the default one for `connect`, `subscribe`, `disconnect`.
        response_s: how long an acknowledgement may take before the connection is made anew.
        retry_ms: resend on a live connection after this time: level 3's rule (20,000 where None), off at level 4, refused at 5.
        republish: what becomes of a message that was past PUBREC when the broker lost the session: True to publish it anew (it
            may arrive twice), False to drop it (it may be lost). `on_in_doubt` is called either way.
        backoff: see `Backoff`.
        five: a `Level5` with level 5's settings, where the defaults do not do.
        chunks: hand over a message that is longer than buffer_bytes in pieces (see `Message`). At QoS 2 the store holds
            it first: up to a quarter of a journal; a longer one is passed over, and so is one whose topic (5: and properties)
            is as long as the buffer. False: pass it over, see `on_oversize`; at level 5 the broker is told to send none so long.
        feed: called at least five times a second while this object waits: feed the watchdog here. Two things take longer: a step
            of a TLS handshake, before and after which it is called (up to some seconds on a slow chip: see TLS.md), and the
            look-up of a name, during which a timer calls it where the port has one that runs then (rp2), for 20 s at most.
        max_qos: 1 for a broker without QoS 2 (AWS IoT Core): what is published at QoS 2, or was stored so, goes out at QoS 1. At
            level 5 the broker says so itself.
        refuse_after: a message that the broker closes the connection on, or does not answer, is tried alone, and set aside
            after so many failed trials (`session.suspect` has the exact rule); 0: never, it then blocks all that follows.
        waiting, waiting_bytes: how many messages of QoS 0 and 1, and how many bytes of them (8 times buffer_bytes where None),
            may wait in RAM where they can't be handed over.
        unclaimed, unclaimed_s: what becomes of a message that nobody has claimed for unclaimed_s seconds: "drop" acknowledges
            it, "keep" lets it wait on. `on_unclaimed` is called and `unclaimed` counts either way.
        attempts: how often a handler may fail with a message before the message is let go.
        log: called with one line of text for every change and every error, such as `print`: connecting, and why not, and when
            it tries again; connected, lost; stored, delivered, or what else became of a message. It must not call this object.
            None costs nothing; else `talk.py` is loaded.

    Handlers:
        on_message(message): a `Message` that no subscription's own handler covers; acknowledged when the handler has returned.
        on_error(error, message): what a handler raised; message is None where it was none for messages. Its `failures`
            says how often it has failed: at `attempts`, it is let go now.
        on_unclaimed(message): see unclaimed.
        on_connect(session_present): the broker accepted a connection; True where it still knew the session.
        on_disconnect(error): that connection has ended, and not by `disconnect`; error is None where the client makes it anew by
            itself. Called by `poll` only; until then `on_connect` for the next connection waits, too.
        on_delivered(handle): the broker has acknowledged the message for good.
        on_in_doubt(handle): see republish.
        on_refused(handle, code): the broker did not take the message; it is not sent again. `code` is level 5's reason code;
            or 0x100: it closed the connection on it; 0x101: it never answered it; 0x102: it answered with the wrong packet; 0x80:
            one of these, found out before a reset.
        on_expired(handle): level 5: the message's Message Expiry Interval passed before it was sent; it is not sent.
        on_dropped(first, last): the full store's policy dropped the messages with these handles.
        on_damaged(handle): the flash lost the stored message; it is not sent.
        on_oversize(topic, length): a received message was passed over, as its payload, of that length, is longer than
            `buffer_bytes` takes; it is acknowledged, and comes no more. A topic that does not fit either is cut.

    Each handler may be None, and may publish and subscribe, but an answer can't be waited for in one (UsageError). They are plain
    functions; `async def` ones are for `flashmqtt.aio`, and refused here.

    Attributes:
        connected: whether there is a connection that the broker accepted.
        error: why the last attempt or connection ended, None while there is a connection.
        pending: how many messages are stored and not acknowledged.
        oversize: how many received messages were passed over, see `on_oversize`.
        client_id: the client's id; one that the broker assigned (level 5) is kept as long as this object.
        granted: level 5: the properties of the last CONNACK, as a dict (see `codec.properties`).
        answer: level 5: the properties of the last packet by which the broker refused something, or ended the connection: its
            reason string, say.
        downgraded: how many messages of QoS 2 the broker answered as if they were of QoS 1 (RabbitMQ does, at levels 3 and 4).
        unclaimed, failed, missed: how many received messages were reported as unclaimed; let go after their handler failed;
            dropped because no more could wait.

    Raises:
        UsageError: arguments that don't fit each other.
    """

    if TYPE_CHECKING:
        connected: bool
        error: "Exception | None"
        pending: int
        oversize: int
        client_id: str
        granted: "dict[int, Any]"
        answer: "dict[int, Any]"
        downgraded: int
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
    ) -> None:
        numbers = (
            port,
            keep_alive_s,
            window,
            buffer_bytes,
            timeout_s,
            response_s,
            refuse_after,
            waiting,
            unclaimed_s,
            attempts,
        )
        for number in numbers:
            if not _isinstance(number, (int, float)):
                from .arguments import refuse_number

                refuse_number(number)
        keeps = unclaimed == "keep"
        if attempts < 1 or waiting < 1 or not (keeps or unclaimed == "drop"):
            from .arguments import refuse_waiting

            refuse_waiting(unclaimed, waiting, attempts)
        if store is None:
            from .session.ram import RamStore

            store = RamStore()
        if level == 5:
            from .session.level5 import Level5

            five = five or Level5()
            if clean:
                five.expiry_s = 0
        self.session = Session(
            store, level, window, buffer_bytes, buffer_bytes, retry_ms, republish, True, max_qos, refuse_after
        )
        if will:
            if not _isinstance(will, (tuple, list)) or len(will) != 4 or will[2] not in (0, 1, 2):
                from .arguments import refuse_will

                refuse_will(will)
            will = (octets(will[0]), octets(will[1]), will[2], will[3])
            put_publish(self.session.scratch, 0, will[0], b"")  # or InvalidTopic
        self.connection = Connection(
            self.session,
            octets(client_id),
            keep_alive_s,
            None if user is None else octets(user),
            None if password is None else octets(password),
            will,
            buffer_bytes,
            response_s * 1000,
            clean,
            five,
            chunks,
            b"%s:%d" % (octets(host), port),
        )
        self.link = Link(self.connection, host, port, backoff or Backoff(), tls, server_name, int(timeout_s * 1000))
        self.on_message = self.on_connect = self.on_delivered = self.on_in_doubt = self.on_refused = None
        self.on_damaged = self.on_expired = self.on_dropped = self.on_oversize = None
        self.on_error = self.on_unclaimed = self.on_disconnect = None
        self.timeout_s = timeout_s
        self._waiting = (waiting, waiting_bytes or buffer_bytes * 8, attempts, clean, keeps, int(unclaimed_s * 1000))
        self.errors: "list[Any]" = []  # what handlers raised, for `poll`
        self._feed = self.link.feed = feed
        self._output = self.session.output
        # Bound once: to look a method up in an object with many attributes takes a board 20 us, an attribute 2.
        self._put: "Any" = put_message
        self._keep: "Any" = self.session.store_packet
        self._put_again: "Any" = self._output.put_again
        self._write_to = self._output.write_to
        self._step = self.link.step
        self._taken = self.session.taken
        self._poller = _poll()
        self._polled = None  # the socket that is registered there, and for what
        self._polled_events = 0
        # Of the last message, as it was given and as bytes; _ABSENT: the next one's is to be checked.
        self._topic: "Any" = _ABSENT
        self._topic_bytes: "Any" = b""
        self._refusals: "dict[Any, Any]" = {}
        # For `poll`, and then in `errors`: why a connection ended; session_present, if there is a new one.
        self._loss: "list[Any]" = []
        if log:
            from .talk import Talk

            Talk(self, log)

    # --- connecting ---

    def __getattr__(self, name: str) -> "Any":
        """Work out what is asked for rarely. (No properties: with one in its class, each store to an object is slow.)"""
        if name == "connected":
            return self.link.is_open()
        if name == "error":
            return self.link.error
        if name == "pending":
            return self.session.pending()
        if name[0] == "_":
            raise AttributeError(name)
        from .arguments import worked_out

        return worked_out(self, name)

    def start(self) -> None:
        """Connect as soon as that is possible, in the course of `poll` and `publish`; return at once."""
        self.link.start(ticks_ms())

    def connect(self, timeout_s: "float | None" = None) -> bool:
        """Connect within timeout_s; return whether the broker still knew the session. From now on `poll` and `publish` reconnect.

        Raises:
            ConnectRefused: by the broker; `tls.CertificateRefused`: by us. `poll` goes on trying nevertheless.
            ConnectionLost: not connected in time (the last attempt's error is in `error`); `poll` goes on trying.
        """
        link = self.link
        link.start(ticks_ms())
        link.error = None
        deadline = self._deadline(timeout_s)
        while not link.is_open():
            error = link.error
            if isinstance(error, FlashMqttError) and error.refusal:
                raise error
            self._wait_step(deadline, error or "connect")
        return self.connection.session_present

    def goodbye(self, code: int, expiry_s: "int | None") -> "bytes | None":
        """Return the properties of level 5's DISCONNECT with this code and expiry_s, checked: see `disconnect`."""
        if not code and expiry_s is None:
            return None
        from .arguments import goodbye

        return goodbye(self.session, code, expiry_s)

    def disconnect(self, timeout_s: "float | None" = None, code: int = 0, expiry_s: "int | None" = None) -> None:
        """End the connection in good order within timeout_s and stay disconnected. Stored messages wait for the next one.

        Args:
            timeout_s: the client's own where None.
            code: level 5's reason code; 4 lets the broker publish the will.
            expiry_s: level 5: how long the broker keeps the session from now on; None: as CONNECT said.

        Raises:
            UsageError: not a reason of a client; a session to be kept that was not; or another level.
        """
        link = self.link
        properties = self.goodbye(code, expiry_s)
        try:
            if link.is_open():
                deadline = self._deadline(timeout_s)
                self.connection.disconnect(code, properties)
                while not link.write(ticks_ms()):
                    self._wait(self._left(deadline, "disconnect"))
        except (OSError, DeadlineExpired):
            pass
        finally:
            self.stopped()

    def stopped(self) -> None:
        """Close the socket and stay disconnected. What waits comes again with the next connection."""
        session = self.session
        self.link.stop()
        if session.waiting:
            session.waiting.clear()
        try:
            session.store.flush()
        except StoreWorn:
            pass  # a worn store is no reason to stay connected

    # --- sending ---

    def publish(
        self,
        topic: "str | bytes | bytearray | memoryview",
        payload: "str | bytes | bytearray | memoryview",
        qos: int = 0,
        retain: bool = False,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> int:
        """Publish; return a handle for `delivered` (0 at QoS 0, and where the store's policy dropped the message).

        Args:
            topic: str or bytes, 1 to 65,535 bytes of UTF-8 without wildcards.
            payload: str or bytes, of any length, also none. Numbers are to be made text first.
            qos: 0, 1 or 2.
            retain: the broker keeps it as the topic's last value; an empty payload clears that.
            properties: level 5's, as a dict (see `codec.properties`). A Message Expiry Interval counts down while the message is
                stored, also over a reset where the board's clock is set (see `session.expiry`).

        At QoS 1 and 2 the message is stored when this returns, connected or not. At QoS 0 it is sent now or, without a
        connection, not at all; nor where the broker said at level 5 that it takes no retained messages, or none so long.

        Raises:
            InvalidTopic: not a topic's name. UsageError: a QoS, a property or a payload that there is not.
            StoreFull: no room, and the store's policy is to refuse.
        """
        session = self.session
        if session.busy:
            session.interrupted()
        session.busy = True
        try:
            now_ms = ticks_ms()
            link = self.link
            handle = n = 0
            if topic is self._topic and not properties:  # a quarter of the work: the topic is valid, and bytes already
                if not _isinstance(payload, _bytes):
                    payload = payload.encode() if _isinstance(payload, _str) else octets(payload)  # type: ignore[union-attr]
                if not qos:
                    n = self._put_again(self._topic_bytes, payload, retain)
                elif qos == 1 or qos == session.max_qos:
                    head = 0x31 if retain else 0x30
                    head |= qos << 1 | ((session.store.next_seq - 1) % 65535 + 1) << 8
                    n = self._put(session.scratch, 0, self._topic_bytes, payload, head)
                    if n:
                        handle = self._keep(n, now_ms)
            if not n:
                handle = self._publish(topic, payload, qos, retain, properties, now_ms)
            if link.handling:  # the poll that called the handler sends it
                return handle
            if ticks_diff(now_ms, link.stepped_ms) < _PATIENCE_MS and not (handle and session.flight >= session.quota):
                if handle and session.cursor <= handle:
                    link.flush(now_ms)
                elif self._output.end:
                    try:
                        if link.events != _POLLIN or not self._write_to(link.sock, now_ms):
                            link.write(now_ms)
                    except (OSError, ConnectionLost) as error:
                        link.fail(error, now_ms)
                return handle
        finally:
            session.busy = False
        self._work()
        return handle

    def _publish(self, topic: "Any", payload: "Any", qos: int, retain: bool, properties: "Any", now_ms: int) -> int:
        """Store a message, or put it into the output, with everything checked."""
        session = self.session
        self._topic = _ABSENT
        encoded = octets(topic)
        payload = octets(payload)
        handle = 0
        if properties:
            from .session.pieces import packed

            properties = packed(session.level, properties)
        if qos:
            handle = session.store_message(encoded, payload, qos, retain, properties, now_ms)
        elif self.connection.state != OPEN:
            return 0
        elif not session.put_unstored(encoded, payload, retain, properties):
            from .session.pieces import send

            send(self, encoded, payload, retain, properties)
        if session.level != _LEVEL_5 and not isinstance(topic, (bytearray, memoryview)):
            self._topic_bytes = encoded
            self._topic = topic  # it is valid, and nobody can change it
        return handle

    def delivered(self, handle: int) -> bool:
        """Return whether the broker has acknowledged the message with this handle for good: PUBACK, or PUBCOMP.

        Never so for one that was dropped, damaged or in doubt. What was finished before the last reboot is taken to be delivered,
        but where the store ever dropped or damaged a message: then it is not known, and the answer is False.

        Raises:
            Refused: the broker refused it.
        """
        if handle in self._refusals:
            raise Refused("message %d" % handle, self._refusals.pop(handle))
        return self.session.delivered(handle)

    def drain(self, timeout_s: float) -> bool:
        """Wait, up to timeout_s, until every stored message is delivered; return whether that is so."""
        deadline = self._deadline(timeout_s)
        while self.session.pending():
            if ticks_diff(deadline, ticks_ms()) <= 0:
                return False
            self._wait_step(deadline, None)
        return True

    # --- receiving ---

    def subscribe(
        self,
        filter_: "str | bytes | list[Any] | tuple[Any, ...]",
        qos: int = 0,
        handler: "Callable[[Message], object] | None" = None,
        timeout_s: "float | None" = None,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> "Any":
        """Subscribe; return the QoS granted. The subscription is restored whenever the broker loses the session.

        Without a connection it is remembered, and None is returned. One that the broker refuses is remembered, too: it is asked
        for again with every new connection, and after 10 s, 20 s and so on up to an hour, until `unsubscribe` is called.

        Args:
            filter_: str or bytes; `+` stands for one level, `#`, at the end, for all that follow (§4.7). Or a list, of filters or
                of pairs (filter, qos), which one packet asks for: a list of results is returned, and a refusal is one of them, a
                code from 0x80 on.
            qos: at most this is asked for; at level 5 with the other option bits (5, §3.8.3.1).
            handler: handler(message) for what the filter covers; None leaves it to `on_message`.
            timeout_s: for the broker's answer; None for the client's own.
            properties: level 5's, as a dict: a subscription identifier, say, which the messages then carry in theirs.

        Raises:
            InvalidTopic: not a topic filter; BufferTooSmall: a longer one than the buffer.
            UsageError: a QoS, an option or a property that there is not; a handler that is an `async def` function.
            Refused: by the broker; the connection goes on.
            DeadlineExpired: no answer in time.
        """
        if is_async(handler):
            self._refuse(True)
        return self._ask(self.want(filter_, qos, handler, properties), timeout_s)

    def want(self, filter_: "Any", qos: int, handler: "Any", properties: "Any") -> "Any":
        """Ask for a subscription, or a list of them, as soon as there is a connection; return what can be waited for."""
        from .session.subscriptions import want

        if not isinstance(filter_, (list, tuple)):
            filter_ = octets(filter_)
        return want(self.session, filter_, qos, handler, properties)

    def unsubscribe(
        self,
        filter_: "str | bytes | list[Any] | tuple[Any, ...]",
        timeout_s: "float | None" = None,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> "Any":
        """End the subscription of filter_, also one of an earlier life of this client; return the broker's reason code.

        That is 0, or at level 5 also 0x11: there was no such subscription. Without a connection it is remembered, asked for at
        the next one, and None is returned.

        Args:
            filter_: str or bytes, or a list of them; for a list, a list of results is returned, with refusals as for `subscribe`.
            timeout_s: for the broker's answer; None for the client's own.
            properties: level 5's, as a dict.

        Raises:
            InvalidTopic: not a topic filter; BufferTooSmall: a longer one than the buffer.
            Refused: the broker refused to end it (level 5).
            DeadlineExpired: no answer in time.
        """
        return self._ask(self.session.unsubscribe(filter_, properties), timeout_s)

    def _ask(self, asked: "Any", timeout_s: "float | None") -> "Any":
        """Wait for the answer to what was asked, where there is a connection; return it."""
        link = self.link
        deadline = self._deadline(timeout_s)
        if not link.handling:
            self._work()
            while link.is_open() and asked.result() is None:
                self._wait_step(deadline, "no answer to SUBSCRIBE or UNSUBSCRIBE")
        return asked.granted()

    def poll(self, timeout_ms: int = 0) -> int:
        """Do what is to be done, waiting up to timeout_ms for the first message; return how many messages were handled.

        What a handler raises comes out here, where there is no `on_error`: see the class for what becomes of its message.
        """
        if timeout_ms <= 0:
            handled = self._work()
            if self.errors:
                self._raise()
            return handled
        deadline = ticks_add(ticks_ms(), timeout_ms)
        link = self.link
        if link.drained and not (
            link.handling or self._output.end
        ):  # there is nothing to read before the socket is ready
            left = link.wait_ms - ticks_diff(ticks_ms(), link.stepped_ms)
            if left > 0 and not self.errors:
                self._wait(left if left < timeout_ms else timeout_ms)
        while True:
            handled = self._work()
            if self.errors:
                self._raise()
            left = ticks_diff(deadline, ticks_ms())
            if handled or left <= 0:
                return handled
            self._wait(left)

    def _raise(self) -> None:
        """Raise the first error of a handler; or tell of a connection that ended."""
        error = self.errors.pop(0)
        if error is not self._loss:
            raise error
        told = error[:]
        error.clear()
        self.call(self.on_disconnect, told[0])
        if len(told) > 1:
            self.call(self.on_connect, told[1])

    def _work(self) -> "Any":
        """Handle the events there are, without waiting, and not for ever; return how many of them were messages."""
        link = self.link
        session = self.session
        if link.handling:
            self._refuse(False)  # here, the import would make the frame one name longer than 11 words
        self.connection.reports_delivered = self.on_delivered is not None
        begin_ms = now_ms = ticks_ms()
        handled = 0
        if session.waiting and session.waiting.entries:
            handled = session.waiting.serve(now_ms)
        while True:
            event = self._step(now_ms)
            if event == NOTHING:
                if link.wait_ms > 0 or not link.sock or ticks_diff(now_ms, begin_ms) >= _SLICE_MS:
                    return handled
            elif event == MESSAGE:
                # (One more name, and the frame had more than 11 words: it would be on the heap, which takes 25 us.)
                event = self._dispatch(session.message)
                if event != _WAITS:
                    handled += 1
                if event == _FAILED:
                    return handled
            elif event == DELIVERED:
                self.call(self.on_delivered, session.handle)
            else:
                self._report(event)
            now_ms = ticks_ms()

    def _report(self, event: "Any") -> None:
        """Call the handler of a less frequent event."""
        session = self.session
        handle = session.handle
        loss = self._loss
        if event == CONNECTED:
            if loss:
                loss[1:] = (self.connection.session_present,)
            else:
                self.call(self.on_connect, self.connection.session_present)
        elif event == IN_DOUBT:
            self.call(self.on_in_doubt, handle)
        elif event == DAMAGED:
            self.call(self.on_damaged, handle)
        elif event == OVERSIZE:
            self.call(self.on_oversize, session.long.topic, handle)
        elif event == REFUSED:
            self.note_refusal()
            self.call(self.on_refused, handle, session.code)
        elif event == EXPIRED:
            self.call(self.on_expired, handle)
        elif event == DROPPED:
            self.call(self.on_dropped, handle, session.code)
        elif event == DISCONNECTED and self.on_disconnect:
            if not loss:
                self.errors.append(loss)
            loss[:] = (self.link.error,)

    def note_refusal(self) -> None:
        """Keep what the broker refused, for `delivered`: a few, as there may be nobody who asks."""
        if len(self._refusals) > 15:
            self._refusals.clear()
        self._refusals[self.session.handle] = self.session.code

    def _dispatch(self, message: "Any") -> "Any":
        """Let the message's handlers take it; return _TAKEN, _WAITS, or _FAILED: and there is an error more to be raised."""
        session = self.session
        waiting = session.waiting
        if waiting and (waiting.entries or waiting.skipping) and waiting.stops(message):
            waiting.add(ticks_ms())
            return _WAITS
        errors = len(self.errors)
        finished = 0
        try:
            for entry in session.subscriptions:
                if entry.takes(message):
                    self.run(entry.handler, message)
                    finished += 1
            if not finished:
                if not self.on_message:
                    self.load_waiting().add(ticks_ms())
                    return _WAITS
                self.run(self.on_message, message)
        except BaseException as error:
            self.load_waiting().failed_now(error, finished)
            if not isinstance(error, Exception):
                raise
        self._taken()  # at once: whatever becomes of the connection, a handler that has finished does not run again
        return _FAILED if len(self.errors) > errors else _TAKEN

    def load_waiting(self) -> "Any":
        """Return where messages wait, loaded when it is first needed."""
        session = self.session
        if not session.waiting:
            from .deferred import Deferred

            session.waiting = Deferred(self, *self._waiting)
        return session.waiting

    def call(self, handler: "Any", argument: "Any", other: "Any" = _ABSENT) -> None:
        """Call a handler that is for no message, where there is one."""
        if handler:
            try:
                self.run(handler, argument, other)
            except Exception as error:
                self.load_waiting().tell(error, None)

    def run(self, handler: "Any", argument: "Any", other: "Any" = _ABSENT) -> None:
        """Call a handler. What it publishes is sent when it has returned."""
        link = self.link
        link.handling = True
        try:
            result = handler(argument) if other is _ABSENT else handler(argument, other)
        finally:
            link.handling = False
        if result is not None and type(result) is COROUTINE:
            result.close()
            self._refuse(True)

    def _refuse(self, is_async: bool) -> None:
        from .arguments import refuse_handler

        refuse_handler(is_async)

    # --- waiting ---

    def _deadline(self, timeout_s: "float | None") -> "Any":
        return ticks_add(ticks_ms(), int((self.timeout_s if timeout_s is None else timeout_s) * 1000))

    def _left(self, deadline: "Any", what: "Any") -> "Any":
        left = ticks_diff(deadline, ticks_ms())
        if left <= 0:
            if isinstance(what, Exception):
                raise ConnectionLost("not connected: %r" % what)
            raise DeadlineExpired(what)
        return left

    def _wait_step(self, deadline: "Any", what: "Any") -> None:
        """Wait for something to happen and handle it; raise when the deadline has passed."""
        left = ticks_diff(deadline, ticks_ms())
        if left > 0:
            self._wait(left)
        elif what:
            self._left(deadline, what)
        self._work()

    def _wait(self, left_ms: int) -> None:
        """Wait until the socket is ready, the link has something to do, or the time is over."""
        link = self.link
        wait = link.wait_ms if link.wait_ms < left_ms else left_ms
        if self._feed:
            self._feed()
            wait = min(wait, _SLICE_MS)
        if wait <= 0:
            return
        sock = link.polled
        if sock is not self._polled and self._polled is not None:
            # That socket is closed, and on some ports a poller can't be told to forget it: it would keep it for ever.
            self._poller = _poll()
            self._polled = None
        if not sock:
            _sleep_ms(wait)
            return
        if sock is not self._polled or link.events != self._polled_events:
            self._poller.register(sock, link.events)
            self._polled = sock
            self._polled_events = link.events
        if _IPOLL:
            for _ in self._poller.ipoll(wait):  # type: ignore[attr-defined]  # allocates nothing
                pass
        else:
            self._poller.poll(wait)


def octets(text: "Any") -> "Any":
    """Return the bytes of a str, or a bytes, bytearray or memoryview (of bytes) as it is.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(text, str):
        return text.encode()
    if not isinstance(text, (bytes, bytearray)):
        from .arguments import check_octets

        check_octets(text)
    return text
