"""umqtt.robust's calls: `simple`'s, and a lost connection is made again within the call that finds it lost.

    from flashmqtt.robust import MQTTClient      # instead of: from umqtt.robust import MQTTClient

`reconnect`, `delay` and `log` may be overridden, as with umqtt.robust, and `reconnect` calls `connect(False)`, so that an
overridden `connect` may publish that the board is there. It knows nothing of the client below `simple`.
"""

import time

from . import simple
from .compat import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251


class MQTTClient(simple.MQTTClient):
    """A client with umqtt.robust's signatures; the arguments are those of `flashmqtt.simple.MQTTClient`.

    So are a call's own (topic, msg, retain, qos). A broker that refuses the connection ends a call with MQTTException, as
    trying again rarely helps.

    Attributes:
        DELAY: how long `delay` waits, in seconds.
        DEBUG: whether `log` prints.
    """

    DELAY = 2
    DEBUG = False
    _again = False  # `reconnect` is under way: what it calls must not call it again

    def delay(self, i: int) -> None:
        """Wait between two attempts, of which i have failed."""
        time.sleep(self.DELAY)

    def log(self, in_reconnect: bool, e: Exception) -> None:
        """Take note of error e: of an attempt to connect again, or (in_reconnect is false) of the connection."""
        if self.DEBUG:
            print("mqtt reconnect: %r" % e if in_reconnect else "mqtt: %r" % e)

    def reconnect(self) -> int:
        """Connect with the session that the broker has kept, as often as it takes; return what `connect` returned."""
        i = 0
        while True:
            try:
                return self.connect(False)
            except OSError as error:
                self.log(True, error)
                i += 1
                self.delay(i)

    def is_conn_issue(self) -> bool:
        """Return whether there is no connection."""
        return not (self._client and self._client.connected)

    def publish(
        self,
        topic: "str | bytes | bytearray | memoryview",
        msg: "str | bytes | bytearray | memoryview",
        retain: bool = False,
        qos: int = 0,
    ) -> None:
        """Publish as `simple` does; at QoS 0 until it was sent, at QoS 1 and 2 it is sent when there is a connection again."""
        while True:
            try:
                return super().publish(topic, msg, retain, qos)
            except OSError as error:
                self._lost(error)
            if qos:  # it was stored
                return None

    def subscribe(self, topic: "str | bytes", qos: int = 0) -> None:
        """Subscribe as `simple` does."""
        self._persist(super().subscribe, topic, qos)

    def unsubscribe(self, topic: "str | bytes") -> None:
        """Unsubscribe as `simple` does."""
        self._persist(super().unsubscribe, topic)

    def ping(self) -> None:
        """Send a PINGREQ as `simple` does."""
        self._persist(super().ping)

    def wait_msg(self) -> "int | None":
        """Wait for a message as `simple` does."""
        return self._persist(super().wait_msg)

    def check_msg(self, attempts: int = 2) -> "int | None":
        """Hand over what has come as `simple` does; return None where the connection was lost `attempts` times meanwhile."""
        while attempts:
            try:
                return super().check_msg()
            except OSError as error:
                self._lost(error)
            attempts -= 1
        return None

    def _persist(self, call: "Callable[..., Any]", *arguments: object) -> "Any":
        while True:
            try:
                return call(*arguments)
            except OSError as error:
                self._lost(error)

    def _lost(self, error: Exception) -> None:
        if self._again:
            raise error
        self.log(False, error)
        self._again = True
        try:
            self.reconnect()
        finally:
            self._again = False
