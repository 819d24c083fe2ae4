"""umqtt.simple's calls over the durable client: a program for umqtt.simple runs unchanged, and its QoS 1 messages are stored.

    from flashmqtt.simple import MQTTClient      # instead of: from umqtt.simple import MQTTClient
    from flashmqtt.robust import MQTTClient      # instead of: from umqtt.robust import MQTTClient

In addition, `publish` at QoS 1 (and 2, which umqtt.simple does not have) stores the message before sending it, and sends it again
after a reconnect. With a journal as `store=` the message also survives a reset.

A lost connection is an OSError, as with umqtt.simple. The first call that detects the loss raises it, once; so does the first
call after each failed attempt to reconnect. A program may then call `connect`, and is connected when that returns. Or it may
continue: its next calls reconnect with backoff, and the subscriptions are restored. This module knows the client. `ssl_params`
and `sock`, which few programs use, are loaded when they are needed.
"""

from errno import ETIMEDOUT

from .client import Client, octets
from .compat import TYPE_CHECKING, const, ticks_add, ticks_diff, ticks_ms
from .errors import ConnectionLost, ConnectRefused, DeadlineExpired, Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

    from .session.message import Message

_SLICE_MS = const(200)  # how soon `wait_msg` reports a lost connection
_HELD_MS = const(1 << 28)


class MQTTException(Exception):
    """The broker refused something; the argument is its code."""


def public_error(error: "BaseException | None") -> Exception:
    """Return the OSError or MQTTException to raise for a network error (None: there is no connection)."""
    if isinstance(error, ConnectRefused):
        return MQTTException(error.code)
    if isinstance(error, OSError):
        return error
    return OSError(ETIMEDOUT if isinstance(error, DeadlineExpired) else -1, str(error or "not connected"))


class MQTTClient:
    """A client with umqtt.simple's signatures, and two more: `store` and `options`.

    `user`, `pswd` and `keepalive` may be changed before any call of `connect`. `sock` is None while there is no connection;
    otherwise its `setblocking`, `settimeout`, `close` and a poller's `register` work as with umqtt's socket.

    The callback may call `publish` (which does not wait for the acknowledgement there), `subscribe`, `unsubscribe`, `ping`,
    `set_callback`, `disconnect`, and `check_msg`, which does nothing there. `wait_msg` and `connect` raise a UsageError.

    Args:
        client_id, server: str or bytes.
        port: 0 for 1883, or 8883 with ssl.
        user, password: str or bytes; None for none.
        keepalive: seconds; 0: a connection that fails silently is detected only when an answer is overdue.
        ssl: an SSLContext; or True to use ssl_params.
        ssl_params: the arguments of `ssl.wrap_socket` (see `flashmqtt.ssl_params`). Without a CA among them the broker's
            certificate is not checked, and the client prints a warning.
        store: a `Journal`, so that messages survive a reset; None keeps them in RAM.
        options: more arguments of `flashmqtt.client.Client`.
    """

    def __init__(
        self,
        client_id: "str | bytes",
        server: "str | bytes",
        port: int = 0,
        user: "str | bytes | None" = None,
        password: "str | bytes | None" = None,
        keepalive: int = 0,
        ssl: "Any" = None,
        ssl_params: "dict[str, Any] | None" = None,
        store: "Any" = None,
        **options: "Any",
    ) -> None:
        self.client_id = client_id
        self.server = server
        self.port = port or (8883 if ssl else 1883)
        self.ssl = ssl
        self.ssl_params = ssl_params
        self.cb: "Callable[[bytes, bytes], object] | None" = None
        self.user = user
        self.pswd = password
        self.keepalive = keepalive
        self._options = options
        options["store"] = store
        options.setdefault("chunks", True)  # umqtt takes messages of any length
        self.whole: "Any" = None  # the long message that is being received: see `whole.py`
        self._will: "Any" = None
        self._unseen = 0  # messages handed over that `wait_msg` has not returned yet
        self._op = 0  # the last one's first byte
        self._pinging = False  # a PINGRESP ends `wait_msg`
        self._limit_ms: "Any" = None  # how long `wait_msg` may take: see `sock`
        self._error: "Any" = None  # why the connection was lost, or a reconnect failed; not yet raised
        self._retry_ms = 0  # the time of the link's next attempt
        self._fail: "Any" = None
        self._client: "Any" = None  # the client, None before it is needed
        self._sock: "Any" = None

    def __getattr__(self, name: str) -> "Any":
        """Return `sock`, an object that represents the socket; None while there is no connection."""
        if name == "sock":
            if not (self._client and self._client.connected):
                return None
            from .sock import sock

            return sock(self)
        raise AttributeError(name)

    def set_callback(self, f: "Callable[[bytes, bytes], object] | None") -> None:
        """Call f(topic, msg), both bytes, for every message."""
        self.cb = f
        if self._client:
            self._client.on_message = self._on_message if f else None

    def set_last_will(
        self,
        topic: "str | bytes | bytearray | memoryview",
        msg: "str | bytes | bytearray | memoryview",
        retain: bool = False,
        qos: int = 0,
    ) -> None:
        """Set the will, which the broker publishes if the connection is lost. Call it before `connect`.

        Args:
            topic, msg: str or bytes.
            retain, qos: as for `publish`.
        """
        self._will = (octets(topic, "topic"), octets(msg, "msg"), qos, retain)

    def connect(self, clean_session: bool = True, timeout: "float | None" = None) -> int:
        """Connect; return 1 if the broker still has the session, else 0.

        Args:
            clean_session: False lets the broker keep the session, with subscriptions and messages, between connections.
            timeout: seconds; None for 10.

        Raises:
            OSError: not connected. MQTTException: the broker refused; the argument is the code.
        """
        client = self._create()
        if client.link.handling:
            client._refuse(False)
        connection = client.connection
        connection.user = octets(self.user, "user") if self.user else None
        connection.password = octets(self.pswd, "password") if self.user and self.pswd is not None else None
        connection.keep_alive_s = self.keepalive
        connection.will = self._will
        connection.clean = bool(clean_session)
        link = client.link
        if link.sock:
            link.stop()
        link.error = self._error = self._limit_ms = None
        link._retry_at(ticks_ms())  # at once: here the program decides how often to try
        deadline = client._deadline(timeout)
        while not link.is_open():
            if not self._error and ticks_diff(deadline, ticks_ms()) <= 0:
                self._error = DeadlineExpired("not connected in time")
            if self._error:
                link.stop()
                link.error = self._error
                self._report()
            client._wait_step(deadline, None)
            if not link._state:  # the callback disconnected
                self._need()
        return int(connection.session_present)

    def _create(self) -> Client:
        """Return the client; create it when a call first needs it."""
        if self._client:
            return self._client
        tls = self.ssl or None
        params = self.ssl_params or {}
        if tls and not hasattr(tls, "load_cert_chain"):
            from .ssl_params import context

            tls = context(params, self._options.get("log") or print)
        client = Client(
            _text(self.server),
            self.port,
            self.client_id,
            keep_alive_s=self.keepalive,
            will=self._will,
            tls=tls,
            server_name=_text(params.get("server_hostname")),
            **self._options,
        )
        self._client = client
        client.on_message = self._on_message if self.cb else None
        self._fail = client.link.fail  # with a log, the log's `fail`
        client.link.fail = self._failed  # type: ignore[method-assign]
        return client

    def _failed(self, error: Exception, now_ms: int) -> None:
        """Do what the link's `fail` does, but delay the next attempt until the error was raised."""
        link = self._client.link
        self._fail(error, now_ms)
        self._error = link.error
        self._retry_ms = link._since_ms
        link._since_ms = ticks_add(now_ms, _HELD_MS)

    def disconnect(self) -> None:
        """End the connection."""
        if self._client:
            self._client.disconnect()

    def ping(self) -> None:
        """Send a PINGREQ now; with keepalive set, the client also sends them itself. PINGRESP ends `wait_msg` with None.

        Raises:
            OSError: there is no connection.
        """
        client = self._create()
        if client.session.busy:
            return  # called from a timer during another call, whose packets serve as keep alive
        connection = client.connection
        now_ms = ticks_ms()
        if connection.ping():
            self._pinging = connection._pinged = True
            connection._pinged_ms = now_ms
            client.link.flush(now_ms)
        self._need()

    def publish(
        self,
        topic: "str | bytes | bytearray | memoryview",
        msg: "str | bytes | bytearray | memoryview",
        retain: bool = False,
        qos: int = 0,
    ) -> None:
        """Publish; at QoS 1 and 2 wait for the acknowledgement as long as there is a connection.

        Args:
            topic, msg: str or bytes.
            retain: the broker keeps it as the topic's last value.
            qos: 0, 1 or 2; at 1 and 2 it is stored first, and sent later if there is no connection.

        Raises:
            OSError: the connection is lost. A QoS 0 message is lost, too. A QoS 1 or 2 message is stored and will be sent:
                do not publish it again.
        """
        client = self._create()
        handle = client.publish(topic, msg, qos, retain)
        if client.link.handling:
            return
        if not qos:
            self._need()
            return
        if handle:
            while client.connected and not client.session.is_done(handle):
                client._wait_step(client._deadline(1), None)
        self._report()

    def subscribe(self, topic: "str | bytes", qos: int = 0) -> None:
        """Subscribe to a topic filter, str or bytes, at this QoS or less (qos: 0, 1 or 2).

        Raises:
            OSError: there is no connection. MQTTException: the broker refused. AssertionError: there is no callback yet.
        """
        if self.cb is None:
            raise AssertionError("Subscribe callback is not set")
        self._ask(self._create().subscribe, topic, qos)

    def unsubscribe(self, topic: "str | bytes") -> None:
        """End the subscription of a topic filter, str or bytes.

        Raises:
            OSError: there is no connection. MQTTException: the broker refused.
        """
        self._ask(self._create().unsubscribe, topic)

    def _ask(self, ask: "Callable[..., object]", *arguments: object) -> None:
        try:
            ask(*arguments)
        except Refused as refused:
            raise MQTTException(refused.code)
        except ConnectionLost as lost:
            raise public_error(lost)
        self._need()

    def wait_msg(self) -> "int | None":
        """Wait until one message was handed to the callback; return its first byte, or None if a `ping` was answered.

        Raises:
            OSError: the connection is lost, or an attempt to reconnect failed; raised once for each of these.
        """
        if self._limit_ms is not None:
            from .sock import wait

            return wait(self)
        while True:
            op = self._take(_SLICE_MS)
            if op != 0:
                return op

    def check_msg(self) -> "int | None":
        """Hand over received messages without waiting. Called in a callback, it does nothing.

        Return the first byte of the last message that was handed over, or None.

        Raises:
            OSError: as for `wait_msg`.
        """
        if self._create().link.handling:
            return None
        op = self._take(0)
        self._unseen = 0
        return op or None

    def _take(self, timeout_ms: int) -> "int | None":
        """Return a message's first byte, None for the PINGRESP of a `ping`, or 0 if nothing came in this time."""
        client = self._create()
        client.poll(0 if self._unseen else timeout_ms)
        if self._unseen:
            self._unseen -= 1
            return self._op
        if self._pinging and not client.connection._pinged:
            self._pinging = False
            return None
        if not client.link._state:  # stopped
            self._need()
        self._report()
        return 0

    def _report(self) -> None:
        """Raise, once, why the connection was lost or a reconnect failed."""
        error = self._error
        if error:
            self._error = None
            self._client.link._since_ms = self._retry_ms
            raise public_error(error)

    def _need(self) -> None:
        """If there is no connection, raise the reason."""
        link = self._client.link
        if not (link.is_open() or link.handling):
            self._report()
            raise public_error(link.error)

    def _on_message(self, message: "Message") -> None:
        long = message.more or message.offset
        if long:
            from .whole import join

            payload = join(self, message, self._options.get("log") or print)
            if payload is None:
                return
        else:
            payload = message.payload
        # `publish` hands messages over, too. A later wait_msg must return for such a message instead of waiting for another.
        self._unseen += 1
        self._op = 0x30 | message.dup << 3 | message.qos << 1 | message.retain
        callback: "Any" = self.cb
        try:
            callback(bytes(message.topic_view), payload)
        except Exception as error:
            if not long:
                raise
            self._client.errors.append(error)  # `poll` raises it; the last piece must not be handed over again alone
        self.whole = None


def _text(name: "Any") -> "Any":
    return str(name, "utf-8") if isinstance(name, bytes) else name
