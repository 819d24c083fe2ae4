"""The client's log: one line for each change of state and each error, without repetitions.

    client = Client("broker.local", log=print)

Loaded only for a client with a log. It wraps the methods whose results it reports, so that a client without a log does no extra
work. It knows the client and its link; `board.py` logs the board's network.
"""

from .compat import TYPE_CHECKING, const, ticks_diff
from .errors import FlashMqttError, StoreError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

if TYPE_CHECKING:
    from collections.abc import Callable

    from .client import Client

# Events: `connection.py`.
_CONNECTED = const(2)
_MESSAGE = const(3)
_DELIVERED = const(4)
_SUBSCRIBED = const(5)
_IN_DOUBT = const(6)
_REFUSED = const(7)
_DAMAGED = const(9)
_EXPIRED = const(10)
_DROPPED = const(11)
_OVERSIZE = const(15)

# States: `link.py`.
_STOPPED = const(0)
_UP = const(3)
_DECLINED = const(3)  # states: `session/subscriptions.py`
_ENDED = const(6)  # an UNSUBSCRIBE that was never answered

# The meanings of network errors by number. If network stacks give a number different meanings, the text fits all of them.
_MEANINGS = {
    12: "out of memory",
    101: "no network",
    103: "connection aborted",
    104: "closed by the peer",
    110: "no answer",
    111: "connection refused",
    113: "no route",
    114: "no network",
    116: "no answer",
    118: "no route",
    128: "no network",
}
# And the codes of `on_refused` that are ours: `session/suspect.py`.
_CODES = {0x100: "the broker closes the connection on it", 0x101: "the broker does not answer it"}
_CODES[0x102] = "the broker answers it with the wrong packet"


class ClientLog:
    """Writes a client's log.

    Args:
        client: the blocking client; `aio`'s client has one inside.
        log: called with each line. An error that it raises is handled like the error of a handler.
    """

    def __init__(self, client: "Client", log: "Callable[[str], object]") -> None:
        self._client = client
        self._log = log
        self._link = link = client.link
        self._session = session = client.session
        self._trying = False  # there is a connection, or an attempt is running
        self._tried_ms: "int | None" = None  # when the attempt began; None: its delay was already logged
        self._repeated = False  # the attempt before this one failed
        self._declined: "dict[bytes, int]" = {}  # filter -> its refusals that were logged
        self._error: "Exception | None" = None  # raised by `log`
        client.connection.owner = client.connection  # DELIVERED is logged, also without `on_delivered`
        # The methods that this object wraps.
        self._link_start = link.start
        self._link_stop = link.stop
        self._link_step = link.step
        self._link_fail = link.fail
        self._link_open = link._open
        self._publish = session.publish
        link.start = self._start  # type: ignore[method-assign]
        link.stop = self._stop  # type: ignore[method-assign]
        link.step = client._step = self._step  # type: ignore[method-assign]
        link.fail = self._fail  # type: ignore[method-assign]
        link._open = self._open  # type: ignore[method-assign]
        session.publish = self._store  # type: ignore[method-assign, assignment]
        client._put = _nothing  # all messages go by `publish`

    def _write(self, text: str) -> None:
        try:
            self._log(text)
        except Exception as error:
            self._error = error

    def _start(self, now_ms: int) -> None:
        link = self._link
        stopped = link._state == _STOPPED
        self._link_start(now_ms)
        wait_ms = ticks_diff(link._since_ms, now_ms)
        if stopped and wait_ms > 0:
            self._write(
                "broker: connecting in %.1f s, as there was no connection before the restart" % (wait_ms / 1000)
            )

    def _stop(self) -> None:
        if self._link.reported:
            self._write("broker: disconnected")
        self._trying = self._repeated = False
        self._link_stop()

    def _open(self, now_ms: int) -> None:
        link = self._link
        if not (self._trying or self._repeated):
            name = str(self._client.connection.client_id, "utf-8")
            self._write("broker: connecting to %s:%d as %s" % (link.host, link.port, name or "a client without an id"))
        self._trying = True
        self._tried_ms = now_ms
        self._link_open(now_ms)

    def _fail(self, error: "Any", now_ms: int) -> None:
        link = self._link
        was_open = link.reported
        doubtful = link._state == _UP and not (link.connects or link._tls) and isinstance(error, FlashMqttError)
        self._link_fail(error, now_ms)
        if not self._trying:
            return
        self._trying = False
        self._repeated = not was_open
        text = "broker: %s: %s" % ("connection lost" if was_open else "not connected", words(link.error))
        if not isinstance(error, StoreError):
            if doubtful and not error.refusal:
                text += " (no MQTT port, or with TLS?)"
            if link._state != _STOPPED:
                text += "; again in %.1f s" % (ticks_diff(link._since_ms, now_ms) / 1000)
        self._write(text)

    def _step(self, now_ms: int) -> "Any":
        client = self._client
        if self._error:
            error, self._error = self._error, None
            client.call(_raise, error)
        event = self._link_step(now_ms)
        if self._tried_ms is not None and self._link._state == _UP:
            self._log_wait(now_ms)
        if event == _DELIVERED:
            self._write("delivered %d" % self._session.handle)
        elif event > _MESSAGE or event == _CONNECTED:
            self._log_event(event, now_ms)
        return event

    def _log_wait(self, now_ms: int) -> None:
        """Log how long CONNACK may still take, when a quarter of the time has passed."""
        limit_ms = self._client.session.response_ms
        left_ms = limit_ms - ticks_diff(now_ms, self._tried_ms)  # type: ignore[arg-type]
        if left_ms * 4 < limit_ms * 3:
            self._tried_ms = None
            if not self._link.reported:
                self._write("broker: no answer yet; waiting for up to %d s more" % (left_ms / 1000 + 0.5))

    def _log_event(self, event: "Any", now_ms: int) -> None:
        session = self._session
        handle = session.handle
        code = session.code
        if event == _CONNECTED:
            self._repeated = False
            present = self._client.connection.session_present
            self._write("broker: connected, %s" % ("session resumed" if present else "a new session"))
            self._log_refusals(now_ms)
        elif event == _SUBSCRIBED:
            self._log_refusals(now_ms)
        elif event == _IN_DOUBT:
            self._write("in doubt %d: the broker lost the session, and may have it" % handle)
        elif event == _REFUSED:
            self._write("refused %d: %s" % (handle, _CODES.get(code) or "the broker answers 0x%02x" % code))
        elif event == _DAMAGED:
            self._write("damaged %d: the flash lost the message" % handle)
        elif event == _EXPIRED:
            self._write("expired %d: not sent in time" % handle)
        elif event == _DROPPED:
            self._write("dropped %s: the store is full" % (handle if handle == code else "%d to %d" % (handle, code)))
        elif event == _OVERSIZE:
            topic = session.long.topic
            self._write("too long: %d bytes to %s; buffer_bytes is too small" % (handle, topic))

    def _log_refusals(self, now_ms: int) -> None:
        """Log the subscriptions that were refused since the last call."""
        for entry in self._session.subscriptions:
            name = bytes(entry.filter)
            state = entry.state
            if (state == _DECLINED or state == _ENDED) and self._declined.get(name) != entry.refusals:
                self._declined[name] = entry.refusals
                why = _CODES.get(entry.code) or "the broker answers 0x%02x" % entry.code
                text = "refused: end of subscription %s: %s"
                if state == _DECLINED:
                    why += "; again in %d s" % (ticks_diff(entry.again_ms, now_ms) // 1000)
                    text = "refused: subscription %s: %s"
                self._write(text % (str(name, "utf-8"), why))

    def _store(
        self,
        topic: "bytes | bytearray | memoryview",
        payload: "bytes | bytearray | memoryview",
        qos: int,
        retain: bool,
        properties: "bytes | bytearray | memoryview | None",
        now_ms: int,
    ) -> "Any":
        try:
            handle = self._publish(topic, payload, qos, retain, properties, now_ms)
        except StoreError as error:
            self._write("not stored: %s: %s" % (str(topic, "utf-8"), words(error)))
            raise
        text = "%s: %s, QoS %d, %d bytes"
        what = "stored %d" % handle if handle else "dropped, as the store is full"
        self._write(text % (what, str(topic, "utf-8"), qos, len(payload)))
        return handle


def words(error: "BaseException | None") -> str:
    """Return an error's text in plain words."""
    text = str(error)
    if isinstance(error, OSError):
        number = error.args[0] if error.args else 0
        if not isinstance(number, int):  # MicroPython's unix port has "[addrinfo error -2]"
            number = -2 if "addrinfo" in text else 0
        meaning = "the name is not known, or there is no network" if number < 0 else _MEANINGS.get(number)
        return "%s (OSError %d)" % (meaning, number) if meaning else "OSError " + text
    name = type(error).__name__
    return text if text and isinstance(error, FlashMqttError) else "%s: %s" % (name, text) if text else name


def _nothing(*_: "Any") -> int:
    return 0


def _raise(error: "Any") -> None:
    raise error
