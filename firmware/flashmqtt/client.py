"""The blocking client: for a program with one thread. Every wait has a deadline.

`publish` stores the message and returns; the message is sent when there is a connection. `poll` reads, writes, acknowledges,
reconnects and calls handlers: call it often, or give it the time that the program does not need, in place of `sleep`. A
program that only publishes must call it, too: `publish` makes at most one step of a connection attempt, which needs several
steps within seconds. This module knows the clock and how to wait for a socket; `link.py` and below know the rest.
"""

from .backoff import Backoff
from .codec.encode import _check_field
from .codec.quick import put_message
from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff, ticks_ms
from .connection import (
    CONNECTED,
    DAMAGED,
    DELIVERED,
    DISCONNECTED,
    DROPPED,
    IN_DOUBT,
    OPEN,
    OVERSIZE,
    REFUSED,
    SUBSCRIBED,
    Connection,
)
from .errors import ConnectionLost, DeadlineExpired, Refused, StoreWorn
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
del _unstarted

try:
    from select import poll as _poll
    from time import sleep_ms as _sleep_ms  # type: ignore[attr-defined]

    def is_async(handler: "Any") -> bool:
        """Return whether a handler is an `async def` function, if that is known before a call."""
        return type(handler) is type(_nothing)

except ImportError:  # CPython
    from .hosted import is_async
    from .hosted import poll as _poll  # type: ignore[assignment]
    from .hosted import sleep_ms as _sleep_ms

_ABSENT = object()
_TAKEN = const(-2)  # all handlers have finished with the message, which is being acknowledged
_LEVEL_5 = const(5)
# Events: `connection.py`.
_NOTHING = const(0)
_MESSAGE = const(3)
_POLLIN = const(1)  # the link's events when its output is empty
# A board needs 5 us longer to find a builtin than to find a global.
_isinstance = isinstance
_str = str
_bytes = bytes
_IPOLL = hasattr(_poll(), "ipoll")
# The longest wait between two calls of `feed`; and the longest time that `poll` works when the broker sends without a pause.
_SLICE_MS = const(200)
_REFUSALS = const(64)  # how many codes of refused messages are kept
_LIMIT = const(1 << 29)  # of numbers among the arguments
_WHOLE = const(10)  # the first of them have no fractions, the others are seconds: see `arguments.refuse_number`
_LONGEST_WAIT_S = const(500000)  # of a wait: a board's ticks have room for 2^29 ms
_LONGEST_WAIT_MS = const(500000000)
_READ_DELAY_MS = const(10)  # how long `publish` delays reading, to handle acknowledgements in batches


class Client:
    """A client of one broker.

    A received message is claimed by the handlers of the subscriptions that cover its topic; if there are none, by `on_message`.
    A message that no handler claims yet waits and is not acknowledged; it is handed over as soon as a handler claims it. (The
    broker may send such a message after `connect()` and before `subscribe()` is called.) A message whose handler failed also
    waits, and so do later messages for the same handler. Messages for other handlers do not wait.

    The room for waiting messages is limited. A QoS 0 message that does not fit is dropped, and `missed` counts it. A QoS 1
    message that does not fit is not acknowledged; once there is room the client reconnects, and the broker sends the message
    again. With `clean`, it is acknowledged, dropped and counted instead. QoS 2 messages wait in the store.

    Head-of-line blocking: a broker stops sending at some number of unacknowledged messages (mosquitto: 20). If that many are
    unclaimed, no other message of QoS 1 or 2 arrives until `unclaimed_s` has passed.

    When a handler raises, the client calls it again with the same message after 1 s, 2 s, 4 s and so on. After `attempts` failed
    calls (QoS 0: after one) the message is acknowledged and discarded, and `failed` counts it. The error goes to
    `on_error`; if that is None, the next `poll()` raises it, and no other call does. KeyboardInterrupt and SystemExit are raised
    at once, and the handler that they ended is called again later.

    Args:
        host, port: the broker, by name or address; a name is looked up for every attempt.
        client_id: str or bytes; the broker keeps the session under this name. Level 3: 1 to 23 bytes.
        store: where messages are stored: a `Journal`; None for a RamStore, which a reset erases. The broker's session outlives
            a RamStore: after a restart, subscriptions and messages queued at the broker are still there. Stored messages that
            were not sent are lost, and also a received QoS 2 message that was not yet handed over.
        level: 3 (MQTT 3.1), 4 (3.1.1) or 5.
        user, password: str or bytes.
        keep_alive_s: a connection that fails silently is detected within 1.5 times this. 0: only `response_s` detects it.
        will: (topic, payload, qos, retain): what the broker publishes if the connection is lost.
        window: how many messages may be in flight to the broker, 1 to 32. At levels 3 and 4 a broker can't say how many it
            allows: stay below mosquitto's max_inflight_messages (20), see LIMITS.md.
        buffer_bytes: size of each buffer. Longer messages can be sent; for receiving them see `chunks`.
        clean: start a new session at the broker with every connection.
        tls: an SSLContext (see `flashmqtt.tls`); server_name: the certificate's name where it is not `host`.
        timeout_s: deadline for TCP connect and for writes; the default deadline of `connect`, `subscribe` and `disconnect`.
        response_s: the client reconnects if an acknowledgement takes longer than this.
        retry_ms: retransmit on a live connection after this time (or up to 1 s later). Level 3: 20,000 if None. Level 4: off if
            None. Level 5: not allowed.
        republish: what to do with a message that was past PUBREC when the broker lost the session: True publishes it again (it
            may arrive twice), False drops it (it may be lost). `on_in_doubt` is called in both cases. It is also called if nobody
            can know whether the broker lost the session, because a CONNECT got no answer: the message is not published again.
        backoff: see `Backoff`.
        five: a `Level5`, if the defaults for level 5 do not fit.
        chunks: True: hand over a message longer than buffer_bytes in pieces (see `Message`). At QoS 2 the store holds it first:
            up to a quarter of a journal. A longer one is skipped, and also one whose topic (level 5: with properties) is as
            long as the buffer. False: skip it (see `on_oversize`); at level 5 the broker is told the maximum packet size.
        feed: called at least five times a second while this object waits: feed the watchdog here. Two operations take longer. A
            step of a TLS handshake can take some seconds on a slow chip (see TLS.md): `feed` is called before and after it.
            During a name lookup a timer calls `feed`, for 20 s at most, on a port whose timers run meanwhile (rp2).
        max_qos: 1 for a broker without QoS 2 (AWS IoT Core): messages published or stored at QoS 2 are sent at QoS 1. A level 5
            broker announces this itself.
        refuse_after: if the broker closes the connection on a message, or does not acknowledge it, the message is tried alone.
            After this many failed trials it is refused (`session.suspect` has the exact rule). 0: never; the message then
            blocks all later ones.
        waiting, waiting_bytes: how many received QoS 0 and 1 messages may wait in RAM for a handler, and how many bytes they may
            have together (8 times buffer_bytes if None).
        unclaimed, unclaimed_s: what to do with a message that no handler has claimed for unclaimed_s seconds: "drop" acknowledges
            and discards it, "keep" lets it wait. `on_unclaimed` is called and `unclaimed` counts it in both cases.
        attempts: how often a handler may fail with a message before the message is discarded.
        log: a function such as `print`. It gets a line for every change of the connection, every error and every
            message that is stored, delivered, or has another result. It must not call this object. With None, the module behind
            it (`client_log.py`) is not loaded.

    Handlers:
        on_message(message): a `Message` that no subscription's own handler claims; acknowledged when the handler has returned.
        on_error(error, message): what a handler raised; message is None if that handler is not for messages.
            `message.failures` counts the failed calls; when it reaches `attempts`, the message is discarded.
        on_unclaimed(message): see unclaimed.
        on_connect(session_present): the broker accepted a connection; True if it still has the session.
        on_disconnect(error): that connection has ended, not by `disconnect`; error is None if the client itself ended it to
            reconnect. Only `poll` calls it; `on_connect` for the next connection is called after it.
        on_delivered(handle): the message is delivered: the broker sent PUBACK or PUBCOMP.
        on_in_doubt(handle): see republish.
        on_refused(handle, code): the broker refused the message; it is not sent again. `code` is level 5's reason code, or
            0x100: the broker closed the connection on the message; 0x101: it never acknowledged it; 0x102: it answered with the
            wrong packet; 0x80: one of these three, before a reset.
        on_expired(handle): level 5: the Message Expiry Interval ended before the message was sent.
        on_dropped(first, last): the store was full, and its policy dropped the messages with these handles.
        on_damaged(handle): the flash lost the stored message.
        on_oversize(topic, length): a received message was skipped: its payload, of this length, does not fit in
            `buffer_bytes`. It is acknowledged. A topic that is too long is cut.

    Each handler may be None. `async def` functions are refused; they are for `flashmqtt.aio`.

    Calls in a handler:
        publish: at QoS 1 and 2 the message is stored when it returns. It is sent when the handler has returned.
        subscribe, unsubscribe: return None; the request is sent when the handler has returned.
        delivered, start, disconnect, and all attributes: as elsewhere.
        poll: not allowed, because it would wait; it raises UsageError.
        drain, connect: not allowed if they would have to wait: while a message is pending, or without a connection.

    Attributes:
        connected: whether there is a connection that the broker accepted.
        error: why the last attempt or connection ended; None while there is a connection.
        pending: the backlog: how many messages are stored and not acknowledged.
        oversize: how many received messages were skipped, see `on_oversize`.
        client_id: the client's id; an id that the broker assigned (level 5) is kept as long as this object.
        granted: level 5: the properties of the last CONNACK, as a dict (see `codec.properties`).
        answer: level 5: the properties of the last packet that refused something or ended the connection, such as the reason
            string.
        downgraded: how many QoS 2 messages the broker acknowledged with PUBACK, as if they had QoS 1 (RabbitMQ, levels 3 and 4).
        unclaimed, failed, missed: how many received messages were reported as unclaimed; discarded after their handler failed;
            dropped because there was no room for them to wait.

    Raises:
        UsageError: an argument is invalid, or two arguments contradict each other.
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

    # No program sets all of these. In a nearly full table of attributes, MicroPython compares several names for each access.
    on_error = on_unclaimed = on_connect = on_disconnect = on_in_doubt = on_refused = on_expired = None
    on_dropped = on_damaged = on_oversize = None

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
            level,
            port,
            keep_alive_s,
            window,
            buffer_bytes,
            refuse_after,
            waiting,
            attempts,
            retry_ms or 0,
            waiting_bytes or 0,
            timeout_s,
            response_s,
            unclaimed_s,
        )
        for i in range(13):
            if not _isinstance(numbers[i], int if i < _WHOLE else (int, float)) or not (
                0 <= numbers[i] < (_LIMIT if i < _WHOLE else _LONGEST_WAIT_S)
            ):
                from .arguments import refuse_number

                refuse_number(numbers)
        keeps = unclaimed == "keep"
        if (
            attempts < 1
            or waiting < 1
            or timeout_s <= 0
            or not (0 < port < 65536 and host and (keeps or unclaimed == "drop"))
            or (store is not None and not hasattr(store, "next_seq"))
            or (tls and not hasattr(tls, "wrap_socket"))
            or (backoff and not (_isinstance(backoff, Backoff) and 0 <= backoff.base_ms | backoff.cap_ms < _LIMIT))
            or (five and (level != _LEVEL_5 or not hasattr(five, "expiry_s")))
            or not (_isinstance(server_name or "", _str) and callable(feed or len) and callable(log or len))
        ):
            from .arguments import refuse_client

            refuse_client(
                host, port, timeout_s, unclaimed, waiting, attempts, store, tls, backoff, five, server_name, feed, log
            )
        if store is None:
            from .session.ram import RamStore

            store = RamStore()
        if level == 5:
            from .session.level5 import Level5

            five = (five or Level5()).copy(clean)
        self.session = Session(
            store, level, window, buffer_bytes, buffer_bytes, retry_ms, republish, True, max_qos, refuse_after
        )
        if will:
            if not _isinstance(will, (tuple, list)) or len(will) != 4 or type(will[2]) is not int:
                from .arguments import refuse_will

                refuse_will(will)
            will = (_bytes(octets(will[0], "will")), _bytes(octets(will[1], "will")), will[2], will[3])
        address = octets(host, "host")
        _check_field(address, True)
        # Copies: the program may change a bytearray.
        client_id = _bytes(octets(client_id, "client_id"))
        user = None if user is None else _bytes(octets(user, "user"))
        password = None if password is None else _bytes(octets(password, "password"))
        self.connection = Connection(
            self.session,
            client_id,
            keep_alive_s,
            user,
            password,
            will,
            buffer_bytes,
            int(response_s * 1000),
            clean,
            five,
            chunks,
            b"%s:%d" % (address, port),
        )
        self.connection.owner = self
        # What CONNECT can't hold is an error here, not only at the first attempt to connect.
        self.connection.put_connect(self.session.scratch, 0)
        self.link = Link(
            self.connection, str(address, "utf-8"), port, backoff or Backoff(), tls, server_name, int(timeout_s * 1000)
        )
        self.on_message = self.on_delivered = None
        self.timeout_s = timeout_s
        self._waiting = (waiting, waiting_bytes or buffer_bytes * 8, attempts, clean, keeps, int(unclaimed_s * 1000))
        self.errors: "list[Any]" = []  # what handlers raised; `poll` raises it
        # How many handlers have finished with the message that has just arrived; -1: there is none; or _TAKEN.
        self._finished = -1
        self.link.feed = feed
        self._put: "Any" = put_message
        # Bound methods: on a board, a method lookup in an object with many attributes takes 20 us, an attribute 2 us.
        self._keep: "Any" = self.session.store_packet
        self._put_again: "Any" = self.session.output.put_again
        self._step = self.link.step
        self._acknowledge = self.session.acknowledge
        self._poller = _poll()
        self._polled = None  # the socket that is registered in the poller
        self._polled_events = 0  # the events that it is registered for
        # The topic of the last message, as given and as bytes; _ABSENT: the next topic must be checked.
        self._topic: "Any" = _ABSENT
        self._topic_bytes: "Any" = b""
        self._refusals: "dict[Any, Any]" = {}
        # Why a connection ended, and session_present if there is a new one. `poll` reports it, from `errors`.
        self._loss: "list[Any]" = []
        if log:
            from .client_log import ClientLog

            ClientLog(self, log)

    # --- connecting ---

    def __getattr__(self, name: str) -> "Any":
        """Return an attribute that is rarely read. (A property would slow down every attribute store.)"""
        if name == "connected":
            return self.link.is_open()
        if name == "error":
            return self.link.error
        if name == "pending":
            return self.session.store.waiting
        if name[0] == "_":
            raise AttributeError(name)
        from .attributes import computed

        return computed(self, name)

    def start(self) -> None:
        """Connect in the background, during calls of `poll`; return at once."""
        self.link.start(ticks_ms())

    def connect(self, timeout_s: "float | None" = None) -> bool:
        """Connect within timeout_s; return whether the broker still has the session. From now on `poll` reconnects.

        Raises:
            ConnectRefused: the broker refused; `tls.CertificateRefused`: the client refused. `poll` continues to try.
            ConnectionLost: not connected in time; `error`: of the last attempt. `poll` continues to try. Or a handler
                called `disconnect`.
        """
        link = self.link
        deadline = self._deadline(timeout_s)
        link.start(ticks_ms())
        link.error = None
        while not link.is_open():
            link.check_expected()
            self._wait_step(deadline, link.error or "not connected in time")
        return self.connection.session_present

    def disconnect_properties(self, code: int, expiry_s: "int | None") -> "bytes | None":
        """Check `disconnect`'s arguments; return the properties of level 5's DISCONNECT."""
        if not code and expiry_s is None:
            return None
        from .arguments import disconnect_properties

        return disconnect_properties(self.session, code, expiry_s)

    def disconnect(self, timeout_s: "float | None" = None, code: int = 0, expiry_s: "int | None" = None) -> None:
        """Send DISCONNECT within timeout_s, close, and stay disconnected. Stored messages wait for the next connection.

        Args:
            timeout_s: None for the client's own.
            code: level 5's reason code; 4 lets the broker publish the will.
            expiry_s: level 5: how long the broker keeps the session from now on; None: as in CONNECT.

        Raises:
            UsageError: a client must not send this reason code; or CONNECT set a session expiry of 0, and expiry_s is not 0; or
                code or expiry_s is given at level 3 or 4.
        """
        link = self.link
        session = self.session
        if session.busy:
            self._refuse(None)
        properties = self.disconnect_properties(code, expiry_s)
        deadline = self._deadline(timeout_s)
        session.busy = True  # until `stopped`
        try:
            while not link.disconnect(code, properties, ticks_ms()):
                self._wait(self._left(deadline, "disconnect"))
        except (OSError, ConnectionLost):
            pass
        finally:
            self.stopped()

    def stopped(self) -> None:
        """Close the socket and stay disconnected. Messages not handed over arrive again after the next connect."""
        session = self.session
        session.busy = True
        try:
            self.link.stop()
            if session.waiting:
                session.waiting.clear()
            session.store.flush()
        except StoreWorn:
            pass  # a worn store is no reason to stay connected
        finally:
            session.busy = False

    # --- sending ---

    def publish(
        self,
        topic: "str | bytes | bytearray | memoryview",
        payload: "str | bytes | bytearray | memoryview",
        qos: int = 0,
        retain: bool = False,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> int:
        """Publish; return a handle for `delivered`. It is 0 at QoS 0, and if the store's policy dropped the message.

        Args:
            topic: str or bytes, 1 to 65,535 bytes of UTF-8 without wildcards.
            payload: str or bytes, of any length, may be empty. Convert numbers to text first.
            qos: 0, 1 or 2.
            retain: the broker keeps it as the topic's last value; an empty payload clears that value.
            properties: level 5's, as a dict (see `codec.properties`). A Message Expiry Interval counts down while the message is
                stored; also across a reset if the board's clock is set (see `session.expiry`).

        At QoS 1 and 2 the message is stored when this returns, connected or not. A QoS 0 message is sent now, but not if the
        level 5 broker accepts no retained message, or none of this size. Without a connection it is neither sent nor checked.

        Raises (the message is not stored):
            InvalidTopic: not a valid topic name. UsageError: an invalid QoS, property or payload type.
            StoreFull: no room, and the store's policy is to refuse; or the message is too long for the whole store.
            BufferTooSmall: the topic, with the properties, does not fit in buffer_bytes.
        """
        session = self.session
        if session.busy:
            self._refuse(None)
        link = self.link
        try:
            session.busy = True
            now_ms = ticks_ms()
            handle = n = 0
            # Fast path: this topic was checked and encoded by the last call.
            if topic is self._topic and not properties:
                if not _isinstance(payload, _bytes):
                    payload = payload.encode() if _isinstance(payload, _str) else octets(payload, "payload")  # type: ignore[union-attr]
                if not qos:
                    n = 0 if session.suspect else self._put_again(self._topic_bytes, payload, retain)
                elif qos == 1 or qos == session.max_qos:
                    head = 0x31 if retain else 0x30
                    head |= qos << 1 | ((session.store.next_seq - 1) % 65535 + 1) << 8
                    n = self._put(session.scratch, 0, self._topic_bytes, payload, head)
                    if n:
                        handle = self._keep(n, now_ms)
            if not n:
                handle = self._publish(topic, payload, qos, retain, properties, now_ms)
            if link.handling:  # called by a handler: the `poll` that called the handler sends the message
                return handle
            if ticks_diff(now_ms, link.stepped_ms) < _READ_DELAY_MS and not (
                handle and session.flight >= session.quota
            ):
                if handle and session.cursor <= handle:
                    link.flush(now_ms)
                elif link.output.end:
                    try:
                        if link.events != _POLLIN or link.shaking or not link.write_to(link.sock, now_ms):
                            link.write(now_ms)
                    except (OSError, ConnectionLost) as error:
                        link.fail(error, now_ms)
                return handle
            session.busy = False
            self._work(None)
        except KeyboardInterrupt:
            if session.busy:
                link.interrupted()
            raise
        except Exception:
            if not handle:  # else it is stored
                raise
        finally:
            session.busy = False
        return handle

    def _publish(
        self, topic: "Any", payload: "Any", qos: int, retain: bool, properties: "Any", now_ms: int, send: "Any" = None
    ) -> "Any":
        """Check everything; store the message, or at QoS 0 put it into the output.

        send: the asyncio client's function for a long QoS 0 message; this returns what it returns.
        """
        session = self.session
        self._topic = _ABSENT
        encoded = octets(topic, "topic")
        payload = octets(payload, "payload")
        handle = 0
        if properties:
            from .session.pieces import packed

            properties = packed(session.level, properties)
        if qos:
            handle = session.publish(encoded, payload, qos, retain, properties, now_ms)
        elif self.connection.state != OPEN:
            return 0
        elif not session.put_unstored(encoded, payload, retain, properties):
            if send:
                return send(encoded, payload, retain, properties)
            from .sending import send as send_now

            send_now(self, encoded, payload, retain, properties)
        if session.level != _LEVEL_5 and not isinstance(topic, (bytearray, memoryview)):
            self._topic_bytes = encoded
            self._topic = topic  # valid and immutable
        return handle

    def delivered(self, handle: int) -> bool:
        """Return whether the broker has acknowledged the message with this handle: with PUBACK at QoS 1, PUBCOMP at QoS 2.

        False for a message that was dropped, damaged or in doubt. A message that was finished before the last reboot counts as
        delivered, unless the store ever dropped or damaged a message: then the result is unknown: False. False also for an old
        message that was delivered between undelivered ones, if there were more than 32 of these since the reboot.

        Raises:
            Refused: the broker refused the message. UsageError: it is not a number.
        """
        if type(handle) is not int:
            from .arguments import refuse_handle

            refuse_handle(self.session, handle)
        if handle in self._refusals:
            raise Refused("message %d" % handle, self._refusals[handle])
        return self.session.delivered(handle)

    def drain(self, timeout_s: float) -> bool:
        """Wait up to timeout_s until no message is pending; return whether the backlog is empty."""
        deadline = self._deadline(timeout_s)
        try:
            while self.session.store.waiting:
                self._wait_step(deadline, "drain")
        except DeadlineExpired:
            return False
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
        """Subscribe; return the granted QoS. The client subscribes again when the broker lost the session (`$share/`: always).

        Without a connection the client remembers the subscription and returns None. It also remembers a refused subscription: it
        asks again with every new connection, and after 10 s, 20 s and so on up to an hour, until `unsubscribe` is called. If
        three connections end without an answer, the code is 0x100, and it asks again only at these times: some brokers close
        the connection instead of refusing.

        Args:
            filter_: str or bytes; `+` matches one level, a final `#` matches all further levels (§4.7). Or a list of filters, or
                of pairs (filter, qos), for one SUBSCRIBE packet: then a list of results is returned, in which a code of 0x80 or
                above is a refusal.
            qos: the maximum QoS to ask for; at level 5 with the other option bits (5, §3.8.3.1).
            handler: handler(message) for messages that match the filter; None leaves them to `on_message`.
            timeout_s: for the broker's answer; None for the client's own.
            properties: level 5's, as a dict, such as a subscription identifier, which is then among the messages' properties.

        Raises:
            InvalidTopic: not a topic filter. BufferTooSmall: it does not fit in the buffer.
            UsageError: an invalid QoS, option or property; or the handler is an `async def` function.
            Refused: the broker refused; the connection stays.
            DeadlineExpired: no answer in time.
        """
        if is_async(handler):
            self._refuse(True)
        return self._ask(self._deadline(timeout_s), self.want(filter_, qos, handler, properties))

    def want(self, filter_: "Any", qos: int, handler: "Any", properties: "Any") -> "Any":
        """Ask for subscriptions as soon as there is a connection; return the object to wait for."""
        from .session.subscriptions import want

        if not isinstance(filter_, (list, tuple)):
            filter_ = octets(filter_, "filter_")
        return want(self.session, filter_, qos, handler, properties)

    def unsubscribe(
        self,
        filter_: "str | bytes | list[Any] | tuple[Any, ...]",
        timeout_s: "float | None" = None,
        properties: "dict[int, Any] | list[tuple[int, Any]] | None" = None,
    ) -> "Any":
        """End the subscription of filter_, also one made before the last restart; return the broker's reason code.

        The code is 0, or at level 5 also 0x11: there was no such subscription. Without a connection the client remembers the
        request, sends it with the next connection, and returns None.

        Args:
            filter_: str or bytes, or a list of them; for a list, a list of results is returned, with refusals as for `subscribe`.
            timeout_s: for the broker's answer; None for the client's own.
            properties: level 5's, as a dict.

        Raises:
            InvalidTopic: not a topic filter. BufferTooSmall: it does not fit in the buffer.
            Refused: the broker refused to end the subscription (level 5); with code 0x100, three connections ended without an
                answer: the request is given up, and the broker may still have the subscription.
            DeadlineExpired: no answer in time.
        """
        from .session.several import unwant

        return self._ask(self._deadline(timeout_s), unwant(self.session, filter_, properties))

    def _ask(self, deadline: int, asked: "Any") -> "Any":
        """If there is a connection, wait for the answer; return it."""
        link = self.link
        if not link.handling:
            self._work(None)
            while link.is_open() and asked.result() is None:
                self._wait_step(deadline, "no answer to SUBSCRIBE or UNSUBSCRIBE")
        return asked.granted()

    def poll(self, timeout_ms: "int | None" = 0) -> int:
        """Do all pending work; wait up to timeout_ms for the first message; return how many messages were handled.

        Without `on_error`, this raises what a handler raised. The class describes what happens to the message. None: do not wait,
        and leave what a handler raised to the next call.
        """
        link = self.link
        session = self.session
        if link.handling:
            self._refuse(False)
        if session.busy:  # before the `try`: the call that this one interrupts stays busy
            self._refuse(None)
        if timeout_ms:
            if not _isinstance(timeout_ms, int) or timeout_ms > _LONGEST_WAIT_MS:
                self._refuse(timeout_ms)
            start_ms = ticks_ms()
            # All received bytes were read: wait, unless received messages wait for a handler.
            if link.read_count < 0 and not (link.output.end or (session.waiting and session.waiting.entries)):
                left = link.wait_ms - ticks_diff(start_ms, link.stepped_ms)
                if left > 0 and not self.errors:
                    self._wait(left if left < timeout_ms else timeout_ms)
        while True:
            begin_ms = now_ms = ticks_ms()
            handled = 0
            if session.waiting and session.waiting.entries:
                handled = session.waiting.serve(now_ms)
            try:
                try:
                    while True:
                        event = self._step(now_ms)
                        if event == _NOTHING:
                            if link.wait_ms > 0 or not link.sock or ticks_diff(now_ms, begin_ms) >= _SLICE_MS:
                                break
                        else:
                            link.handling = True
                            session.busy = False
                            if event == _MESSAGE:
                                if self._dispatch():
                                    handled += 1
                            elif event == DELIVERED:
                                self.call(self.on_delivered, session.handle)
                            else:
                                self._report(event)
                            link.handling = False
                        now_ms = ticks_ms()
                except BaseException as error:
                    link.handling = session.busy = False
                    finished = self._finished
                    if finished < 0:
                        self._finished = -1
                        try:
                            if finished == _TAKEN and not _isinstance(error, Exception):  # Ctrl-C
                                self._acknowledge()  # again, and now: the program may disconnect next
                        finally:
                            link.ended(error, now_ms)
                    else:
                        handled += 1
                        self.load_waiting().failed_now(error, finished)
                        self._finished = -1
                        if not _isinstance(error, Exception):
                            raise error
                        if session.handed:
                            self._acknowledge()
            except BaseException as error:
                link.handling = session.busy = False
                if self._finished >= 0:  # no memory, or Ctrl-C in a line above
                    self._finished = -1
                    if session.handed:  # the broker sends the message again
                        session.handed = 0
                        link.fail(error, now_ms)
                raise
            if self.errors and timeout_ms is not None:
                self._raise()
            if handled or not timeout_ms:
                return handled
            left = timeout_ms - ticks_diff(ticks_ms(), start_ms)
            if left <= 0:
                return 0
            self._wait(left)

    _work = poll  # for the client's own calls: a subclass may replace `poll`

    def _raise(self) -> None:
        """Raise the first error of a handler, or call the handlers for an ended connection."""
        error = self.errors[0]
        if error is self._loss:
            self._loss = []  # first: it needs memory
            self.errors.pop(0)
            self.call(self.on_disconnect, error[0])
            if len(error) > 1:
                self.call(self.on_connect, error[-1])
            return
        raise self.errors.pop(0)

    def _report(self, event: "Any") -> None:
        """Call the handler of a less frequent event."""
        session = self.session
        handle = session.handle
        loss = self._loss
        if event == CONNECTED:
            if loss:
                loss.append(self.connection.session_present)
            else:
                self.call(self.on_connect, self.connection.session_present)
        elif event == OVERSIZE:
            self.call(self.on_oversize, session.long.topic, handle)
        elif event == REFUSED:
            self.note_refusal()
            self.call(self.on_refused, handle, session.code)
        elif event == DROPPED:
            self.call(self.on_dropped, handle, session.code)
        elif event == DISCONNECTED:
            if self.on_disconnect:
                if not loss:
                    self.errors.append(loss)
                while loss:
                    loss.pop()  # no slice: that needs memory
                loss.append(self.link.error)
        elif event != SUBSCRIBED:
            one = self.on_in_doubt if event == IN_DOUBT else self.on_damaged if event == DAMAGED else self.on_expired
            self.call(one, handle)

    def note_refusal(self) -> None:
        """Keep a refused message's code for `delivered`, until 63 newer ones."""
        refusals = self._refusals
        if len(refusals) >= _REFUSALS:  # twice the window: a waiting task has time to ask
            del refusals[min(refusals)]  # MicroPython's dicts have no order; handles increase
        refusals[self.session.handle] = self.session.code

    def _dispatch(self) -> bool:
        """Call the handlers of the received message; return False if it has to wait for one."""
        # (At most four locals here, and no `try`: a frame over 11 words is allocated on the heap, which takes 25 us.)
        session = self.session
        self._finished = 0
        if session.waiting and session.waiting.must_wait(session.message):
            session.waiting.add(ticks_ms())
            self._finished = -1
            return False
        for entry in session.subscriptions:
            if entry.takes(session.message):
                result = entry.handler(session.message)
                self._finished += 1  # now: the next jump is where Ctrl-C may raise
                if result is not None:
                    self._finished -= 1
                    self.check(result)
                    self._finished += 1
        if not self._finished:
            if not self.on_message:
                self.load_waiting().add(ticks_ms())
                self._finished = -1
                return False
            result = self.on_message(session.message)
            self._finished = _TAKEN
            if result is not None:
                self._finished = 0
                self.check(result)
        self._finished = _TAKEN
        session.busy = True  # until the next step, or `ended`
        if session.handed:
            self._acknowledge()  # now: even if the connection fails next, a handler that has finished must not run again
        self._finished = -1
        return True

    def load_waiting(self) -> "Any":
        """Return the queue of waiting messages; load it when it is first needed."""
        session = self.session
        if not session.waiting:
            from .deferred import Deferred

            session.waiting = Deferred(self, *self._waiting)
        return session.waiting

    def call(self, handler: "Any", argument: "Any", other: "Any" = _ABSENT) -> None:
        """Call a handler that is not for messages, if there is one."""
        if handler:
            try:
                self.run(handler, argument, other)
            except Exception as error:
                self.load_waiting().report_error(error, None)

    def run(self, handler: "Any", argument: "Any", other: "Any" = _ABSENT) -> None:
        """Call a handler. Messages that it publishes are sent after it has returned."""
        link = self.link
        link.handling = True
        try:
            result = handler(argument) if other is _ABSENT else handler(argument, other)
        finally:
            link.handling = False
        if result is not None:
            self.check(result)

    def check(self, result: "Any") -> None:
        """Refuse a handler that returned this result, if it is a coroutine."""
        if type(result) is COROUTINE:
            result.close()
            self._refuse(True)

    def _refuse(self, what: object) -> None:
        from .arguments import refuse_call

        refuse_call(what)

    # --- waiting ---

    def _deadline(self, timeout_s: "float | None") -> "Any":
        if timeout_s is None:
            timeout_s = self.timeout_s
        if not _isinstance(timeout_s, (int, float)) or not timeout_s <= _LONGEST_WAIT_S:  # (NaN, too)
            self._refuse(timeout_s)
        return ticks_add(ticks_ms(), int(timeout_s * 1000))

    def _left(self, deadline: "Any", what: "Any") -> "Any":
        left = ticks_diff(deadline, ticks_ms())
        if left <= 0:
            if isinstance(what, Exception):
                raise ConnectionLost("not connected: %r" % what)
            raise DeadlineExpired(what)
        return left

    def _wait_step(self, deadline: "Any", what: "Any") -> None:
        """Wait for an event and handle it; raise after the deadline."""
        if not self.link.handling:  # else `poll` refuses
            self._wait(self._left(deadline, what))
        self._work(None)

    def _wait(self, left_ms: int) -> None:
        """Wait until the socket is ready, the link is due, or the time is over."""
        link = self.link
        wait = link.wait_ms
        wait = wait if wait < left_ms else left_ms
        if link.feed:
            link.feed()
            wait = min(wait, _SLICE_MS)
        if wait <= 0:
            return
        sock = link.polled
        if sock is not self._polled or link.events != self._polled_events:
            if sock is not self._polled and self._polled is not None:
                # On some ports a poller can't unregister a closed socket: make a new poller.
                self._poller = _poll()
                self._polled = None
            if sock:
                self._poller.register(sock, link.events)
                self._polled = sock
                self._polled_events = link.events
        if not sock:
            _sleep_ms(wait)
            return
        if _IPOLL:
            for _ in self._poller.ipoll(wait):  # type: ignore[attr-defined]  # allocates nothing
                pass
        else:
            self._poller.poll(wait)


def octets(text: "Any", name: str) -> "Any":
    """Return the bytes of a str, or a bytes, bytearray or memoryview (of bytes) as it is.

    Raises:
        UsageError: it is something else; the text has the argument's name.
    """
    if isinstance(text, str):
        return text.encode()
    if not isinstance(text, (bytes, bytearray)):
        from .arguments import check_octets

        check_octets(text, name)
    return text
