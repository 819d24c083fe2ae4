"""umqtt.robust's calls: those of `simple`, and a call that detects a lost connection reconnects.

    from flashmqtt.robust import MQTTClient      # instead of: from umqtt.robust import MQTTClient

`reconnect`, `delay` and `log` may be overridden, as with umqtt.robust. `reconnect` calls `connect(False)`, so that an overridden
`connect` may publish that the board is online. This module knows `simple` and nothing below it.
"""

import time

from . import simple
from .compat import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any  # noqa: TID251


class MQTTClient(simple.MQTTClient):
    """A client with umqtt.robust's signatures; the arguments are those of `flashmqtt.simple.MQTTClient`.

    The methods' arguments (topic, msg, retain, qos) are the same, too. If the broker refuses the connection, a call raises
    MQTTException, because a new attempt rarely helps.

    Attributes:
        DELAY: how long `delay` waits, in seconds.
        DEBUG: whether `log` prints.
    """

    DELAY = 2
    DEBUG = False
    _again = False  # `reconnect` is running: methods that it calls must not call it again

    def delay(self, i: int) -> None:
        """Wait between two attempts; i: how many have failed."""
        time.sleep(self.DELAY)

    def log(self, in_reconnect: bool, e: Exception) -> None:
        """Log error e: of an attempt to reconnect or, if in_reconnect is false, of the connection."""
        if self.DEBUG:
            print("mqtt reconnect: %r" % e if in_reconnect else "mqtt: %r" % e)

    def reconnect(self) -> int:
        """Call `connect(False)`, which keeps the broker's session, until it succeeds; return its result."""
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
        """Publish as `simple` does. At QoS 0 reconnect until it was sent; at QoS 1 and 2 it is stored, and sent later."""
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
        """Hand over received messages as `simple` does; return None if the connection was lost `attempts` times meanwhile."""
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
