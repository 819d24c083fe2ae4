"""umqtt.simple's calls over the durable client: a program written for it runs unchanged, and what it publishes at QoS 1 is kept.

    from flashmqtt.simple import MQTTClient      # instead of: from umqtt.simple import MQTTClient

What is better than it looks: `publish` at QoS 1 (and 2, which umqtt.simple does not have) stores the message first. When the link
goes while it waits for the acknowledgement it returns all the same: the message is sent as soon as `check_msg`, `wait_msg` or
`publish` have connected again, which they do by themselves. Give `store=` a journal and the message also survives a reset.
"""

from .client import Client
from .compat import TYPE_CHECKING, ticks_ms
from .errors import ConnectionLost, ConnectRefused, Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251


class MQTTException(Exception):
    """The broker refused something; the argument is its code."""


class MQTTClient:
    """A client with umqtt.simple's signatures; `store` and `ssl_params` are keywords of ours.

    Args:
        client_id, server: str or bytes.
        port: 0 for 1883, or 8883 with ssl.
        user, password: str or bytes; None for none.
        keepalive: seconds; 0: a link that dies silently is noticed only where an answer is due.
        store: a `Journal`, so that messages survive a reset; None keeps them in RAM.
        options: what `flashmqtt.client.Client` takes besides.
        ssl: an SSLContext, or True to have one made of ssl_params (see `flashmqtt.tls.context`).
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
        if ssl is True:
            from .tls import context

            ssl = context(**(ssl_params or {}))
        self.client_id = client_id
        self.server = server
        self.port = port or (8883 if ssl else 1883)
        self.cb: "Callable[[bytes, bytes], object] | None" = None
        self.keepalive = keepalive
        self._options = options
        self._options.update(user=user, password=password, keep_alive_s=keepalive, tls=ssl or None, store=store)
        self._will: "Any" = None
        self._unseen = 0  # messages that were handed over and not yet waited for
        self._client: "Any" = None

    def __getattr__(self, name: str) -> "Any":
        """Answer for `sock`: the socket, None while there is no connection."""
        if name == "sock":
            return self._client.link.sock if self._client else None
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
        """Leave a message with the broker for the case that the connection is lost; before `connect`.

        Args:
            topic, msg: str or bytes.
            retain, qos: as for `publish`.
        """
        self._will = (topic, msg, qos, retain)

    def connect(self, clean_session: bool = True, timeout: "float | None" = None) -> int:
        """Connect; return 1 where the broker still knew the session, else 0.

        Args:
            clean_session: False lets the broker keep the session, with subscriptions and messages, while we are away.
            timeout: seconds; None for 10.

        Raises:
            OSError: not connected. MQTTException: the broker refused; its argument is the code.
        """
        client = self._client
        if client is None:
            client = self._client = Client(
                self.server, self.port, self.client_id, will=self._will, clean=clean_session, **self._options
            )
            client.on_message = self._on_message if self.cb else None
        client.connection.clean = bool(clean_session)
        client.link.stop()
        client.start()
        deadline = client._deadline(timeout)
        try:
            while not client.connected:
                client._wait_step(deadline, "connect")
                if client.error:
                    raise client.error
        except ConnectRefused as refused:
            client.link.stop()
            raise MQTTException(refused.code)
        except ConnectionLost as lost:
            client.link.stop()
            raise OSError(-1, str(lost))
        except OSError:
            client.link.stop()
            raise
        return int(client.connection.session_present)

    def disconnect(self) -> None:
        """End the connection."""
        self._client.disconnect()

    def ping(self) -> None:
        """Send a PINGREQ now; with keepalive set it happens by itself."""
        self._client.connection.ping()
        self._client.link.flush(ticks_ms())

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
            qos: 0, 1 or 2; at 1 and 2 it is stored first, and sent later where there is no connection.
        """
        client = self._client
        handle = client.publish(topic, msg, qos, retain)
        if handle and not client.link.handling:
            while client.connected and not client.session.is_done(handle):
                client._wait_step(client._deadline(1), None)

    def subscribe(self, topic: "str | bytes | bytearray | memoryview", qos: int = 0) -> None:
        """Subscribe to a topic filter, str or bytes, at this QoS or less (qos: 0, 1 or 2).

        Raises:
            MQTTException: the broker refused. AssertionError: there is no callback yet.
        """
        if self.cb is None:
            raise AssertionError("Subscribe callback is not set")
        try:
            self._client.subscribe(topic, qos)
        except Refused as refused:
            raise MQTTException(refused.code)

    def wait_msg(self) -> None:
        """Wait until one message was handed to the callback; the link is kept, and made again, meanwhile."""
        while not self._unseen:
            self._client.poll(1000)
        self._unseen -= 1

    def check_msg(self) -> None:
        """Hand over what has come, without waiting; from a callback: when that has returned."""
        if not self._client.link.handling:
            self._client.poll(0)
        self._unseen = 0

    def _on_message(self, message: "Any") -> None:
        # `publish` hands messages over too: the wait_msg that follows it must not wait for one that was handed over already.
        self._unseen += 1
        callback: "Any" = self.cb
        callback(bytes(message.topic_view), message.payload)
