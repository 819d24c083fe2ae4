"""mqtt_as's interface over the durable asyncio client: a program for mqtt_as runs after a change of the import.

    from flashmqtt.mqtt_as import MQTTClient, config      # instead of: from mqtt_as import MQTTClient, config

`MOVING_FROM_MQTT_AS.md` explains each key. A message published at QoS 1 (or 2, which mqtt_as does not have) is stored first. As
in mqtt_as, `publish` waits for the acknowledgement, also through outages; with a `store` it returns as soon as the message is in
flash. `board.py` joins Wi-Fi if `config` has an ssid. This module knows the asyncio client and nothing below it.
"""

import asyncio

from .aio import Client, _loop
from .compat import TYPE_CHECKING, const, ticks_diff, ticks_ms
from .errors import FlashMqttError, UsageError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_JOIN_MS = const(60000)  # the deadline for Wi-Fi at the first connection


async def _nothing(*_: object) -> None:
    pass


config: "dict[str, Any]" = {
    "client_id": None,  # the chip's id
    "server": None,
    "port": 0,  # 1883, or 8883 with ssl
    "user": "",
    "password": "",
    "keepalive": 60,
    "ping_interval": 0,
    "ssl": False,
    "ssl_params": {},
    "response_time": 10,
    "clean_init": True,
    "clean": True,
    "max_repubs": 4,  # not used: a message is retransmitted with every connection until it is acknowledged
    "will": None,
    "subs_cb": lambda *_: None,
    "wifi_coro": _nothing,
    "connect_coro": _nothing,
    "ssid": None,
    "wifi_pw": None,
    "queue_len": 0,
    "gateway": False,
    "mqttv5": False,
    "mqttv5_con_props": None,
    "country": "",  # not in mqtt_as: for the radio
}
_DEFAULTS = dict(config)


class Queue:
    """Iterates over a client's messages as (topic, message, retained); with mqttv5 also their properties."""

    def __init__(self, client: "MQTTClient") -> None:
        self._client = client

    @property
    def discards(self) -> int:
        """How many messages were dropped because the queue was full."""
        return int(self._client.missed)

    def __aiter__(self) -> "Queue":
        return self

    async def __anext__(self) -> "tuple[Any, ...]":
        client = self._client
        while True:
            message = await client.__anext__()
            arguments = client.arguments_of(message)
            if message.offset:
                # Nothing else is read before a long message is acknowledged.
                client._acknowledge_finished(asyncio.current_task())
            if arguments:
                return arguments


class MQTTClient(Client):
    """A client with mqtt_as's signatures.

    Args:
        config: a dict with mqtt_as's keys; only `server` is required. Any other key is an argument of
            `flashmqtt.client.Client`: store, window, buffer_bytes.

    Attributes:
        up, down: asyncio.Events, set when a connection begins and ends; the program clears them.
        queue: `async for topic, msg, retained in client.queue`, if `queue_len` is above 0; then no coroutines are called.
        REPUB_COUNT: how many messages were retransmitted because a connection ended before their acknowledgement.

    Raises:
        UsageError: no server; or `gateway`, which is not supported.
    """

    DEBUG = False  # True: print the client's log
    REPUB_COUNT = 0

    def __init__(self, config: "dict[str, Any]") -> None:
        options = dict(config)
        options.setdefault("chunks", True)  # mqtt_as takes messages of any length
        self.whole: "Any" = None  # the long message that is being received: see `whole.py`
        given = {key: options.pop(key, _DEFAULTS[key]) for key in _DEFAULTS}
        if not given["server"] or given["gateway"]:
            raise UsageError("server %r, gateway %r" % (given["server"], given["gateway"]))
        ssl = given["ssl"]
        params = given["ssl_params"] or {}
        if ssl and not hasattr(ssl, "load_cert_chain"):
            from .ssl_params import context

            ssl = context(params, options.get("log") or print)
        name = params.get("server_hostname")
        if name:
            options["server_name"] = name if isinstance(name, str) else str(name, "utf-8")
        keep_alive_s = given["keepalive"]
        if given["ping_interval"]:  # a ping is sent after 7/8 of the keep alive
            keep_alive_s = min(keep_alive_s or 65535, given["ping_interval"] * 8 // 7)
        will = given["will"]
        if will and len(will) > 1:  # what has no message is refused by the client
            topic, message, retain, qos = (tuple(will) + (False, 0))[:4]
            will = (topic, message, int(qos), retain)
        if given["mqttv5"]:
            options["level"] = 5
            if given["mqttv5_con_props"]:
                from .session.level5 import Level5

                options["five"] = Level5(properties=given["mqttv5_con_props"])
        if given["queue_len"]:
            options.setdefault("waiting", max(given["queue_len"], 4))
        if self.DEBUG:
            options.setdefault("log", print)
        self._log = options.get("log")
        super().__init__(
            given["server"],
            given["port"] or (8883 if ssl else 1883),
            given["client_id"] or _own_id(),
            user=given["user"] or None,
            password=given["password"] if given["user"] else None,
            keep_alive_s=keep_alive_s,
            will=will,
            tls=ssl or None,
            clean=bool(given["clean"]),
            response_s=given["response_time"],
            **options,
        )
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self._given = given
        given["log"] = options.get("log") or print
        self._waits = "store" not in options
        self._joining: "Any" = None  # the task that keeps Wi-Fi joined
        self._joins_in: "Any" = None  # its event loop
        self._joined = False
        self.on_connect = self._is_up
        self.on_disconnect = self._is_down
        if given["queue_len"]:
            self.queue = Queue(self)
        else:
            self.on_message = self._hand_over
        if given["clean_init"]:
            self.connection._purge = not given["clean"]  # the broker discards the old session and keeps the new one
        else:
            self.connection.clean = False  # for the first connection

    def _is_up(self, session_present: bool) -> None:
        given = self._given
        self.connection.clean = bool(given["clean"])
        session = self.session
        self.REPUB_COUNT += max(0, session.dup_to - session.store.low)
        self.up.set()
        if not given["queue_len"]:
            self.call(given["wifi_coro"], True)
            self.call(given["connect_coro"], self)

    def _is_down(self, error: "Exception | None") -> None:
        self.down.set()
        if not self._given["queue_len"]:
            self.call(self._given["wifi_coro"], False)

    def arguments_of(self, message: "Any") -> "tuple[Any, ...]":
        """Return mqtt_as's callback arguments for a message; () before the last piece of a long one."""
        if message.more or message.offset:
            from .whole import join

            payload = join(self, message, self._given["log"])
            if payload is None:
                return ()
        else:
            payload = message.payload
        arguments = (bytes(message.topic_view), payload, bool(message.retain))
        return arguments + (message.properties or None,) if self._given["mqttv5"] else arguments

    def _hand_over(self, message: "Any") -> None:
        arguments = self.arguments_of(message)
        if arguments:
            try:
                self._given["subs_cb"](*arguments)
            except Exception as error:
                if not message.offset:
                    raise
                self._note_error(error, None)  # the last piece must not be handed over again alone
            self.whole = None

    async def connect(self, *, quick: bool = False) -> bool:  # type: ignore[override]
        """Join Wi-Fi if `config` has an ssid, and connect; return whether the broker still has the session.

        Args:
            quick: mqtt_as's; it has no effect, as there is no wait to skip.

        Raises:
            OSError: no Wi-Fi, no broker, or the broker refused; no new attempt follows.
        """
        if self._given["ssid"]:
            await self._join()
        try:
            return await super().connect()
        except FlashMqttError as error:
            await self.disconnect()
            raise OSError(-1, str(error))

    async def _join(self) -> None:
        import board  # type: ignore[import-not-found, unused-ignore]

        loop = _loop()
        if not self._joining or self._joins_in is not loop:
            self._joins_in = loop
            self._joined = False
            self._joining = asyncio.create_task(self._keep_joined(board))
        begin = ticks_ms()
        while not self._joined:
            if ticks_diff(ticks_ms(), begin) > _JOIN_MS:
                raise OSError(-1, "network: " + (board.network_problem() or "not joined"))
            await asyncio.sleep(0.1)

    async def _keep_joined(self, board: "Any") -> None:
        given = self._given
        this = asyncio.current_task()
        while self._joining is this:  # until `close`
            self._joined = board.network_up(given["ssid"], given["wifi_pw"] or "", given["country"], self._log)
            await asyncio.sleep(0.5)

    async def publish(  # type: ignore[override]
        self, topic: "Any", msg: "Any", retain: bool = False, qos: int = 0, properties: "dict[int, Any] | None" = None
    ) -> int:
        """Publish. QoS 0: wait for a connection and send. QoS 1 and 2: store, and wait for PUBACK unless there is a `store`.

        Args:
            topic, msg: str or bytes.
            retain: the broker keeps it as the topic's last value.
            qos: 0, 1 or 2.
            properties: level 5's, as a dict.
        """
        store = self.session.store
        if not qos:
            await self._until(self.link.is_open, 0, None, True)
        elif self._waits:
            await self._until(lambda: store.next_seq - store.low < store.limit, 0, None, True)
        handle = await super().publish(topic, msg, qos, retain, properties)
        if handle and self._waits:
            await self.delivered(handle)
        return handle

    async def _ask(self, asked: "Any", timeout_s: "float | None") -> "Any":
        """Wait for the answer to SUBSCRIBE or UNSUBSCRIBE; without timeout_s also through outages, as in mqtt_as."""
        self.link.flush(ticks_ms())
        await self._until(lambda: asked.result() is not None, timeout_s or 0, None, timeout_s is None)
        return asked.granted()

    def isconnected(self) -> bool:
        """Return whether there is a connection."""
        return self.connected

    async def broker_up(self) -> bool:
        """Return whether there is a connection; the client itself detects a dead one."""
        return self.connected

    def close(self) -> None:
        """Close the socket and leave Wi-Fi: for the end of a program."""
        self.link.stop()
        if self._joining:
            self._joining = None
            import board  # type: ignore[import-not-found, unused-ignore]

            board.network_down()

    def dprint(self, msg: str, *args: object) -> None:
        """Print msg % args, with DEBUG."""
        if self.DEBUG:
            print(msg % args)


def _own_id() -> "str | bytes":
    """Return the chip's id as text."""
    try:
        from machine import unique_id  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return b""
    return unique_id().hex()
