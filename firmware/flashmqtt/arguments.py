"""Rarely used parts of the clients: errors for invalid arguments, and computed attributes. Loaded when first needed."""

from .compat import TYPE_CHECKING
from .errors import UsageError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


def check_octets(text: str) -> None:
    """Check that a payload or topic is a memoryview of bytes.

    Raises:
        UsageError: it is something else. The program must convert a number to text itself, because only the program knows the
            number of digits: a board's float has seven.
    """
    if not isinstance(text, memoryview) or getattr(text, "itemsize", 1) != 1:
        raise UsageError("%s: give str, bytes, bytearray or a memoryview of bytes" % type(text).__name__)


def refuse_number(value: object) -> None:
    """Refuse an argument that must be a number."""
    raise UsageError("%r: a number is needed" % (value,))


def refuse_client(
    host: "Any", port: "Any", timeout_s: "Any", unclaimed: object, waiting: "Any", attempts: "Any"
) -> None:
    """Refuse the first of a client's arguments that is invalid."""
    if not host:
        text = "no host"
    elif not 0 < port < 65536:
        text = "port %r: 1 to 65535" % port
    elif timeout_s <= 0:
        text = "timeout_s %r: more than 0" % timeout_s
    elif waiting < 1:
        text = "waiting %r: 1 or more" % waiting
    elif attempts < 1:
        text = "attempts %r: 1 or more" % attempts
    else:
        text = 'unclaimed %r: "drop" or "keep"' % unclaimed
    raise UsageError(text)


def refuse_will(will: object) -> None:
    """Refuse a will."""
    raise UsageError("will %r: (topic, payload, qos, retain)" % (will,))


def refuse_session(window: "Any", max_qos: object, refuse_after: object) -> None:
    """Refuse the first of a session's arguments that is invalid."""
    if not 0 < window <= 32:
        raise UsageError("window %r: 1 to 32" % window)
    if max_qos != 1 and max_qos != 2:
        raise UsageError("max_qos %r: 1 or 2" % max_qos)
    raise UsageError("refuse_after %r: 0 to 254; or retry_ms at level 5, which allows none" % refuse_after)


def refuse_interruption() -> None:
    """Refuse a call that interrupts another one."""
    raise UsageError("called from a timer during another call: let the timer set a flag instead")


def refuse_handler(is_async: bool) -> None:
    """Refuse an `async def` handler, or a call inside a handler that would block."""
    if is_async:
        raise UsageError("async def handlers are for flashmqtt.aio")
    raise UsageError("blocking calls are not allowed in a message handler")


def disconnect_properties(session: "Any", code: int, expiry_s: "int | None") -> "Any":
    """Return the properties of level 5's DISCONNECT."""
    if session.level != 5:
        raise UsageError("code and expiry_s need level 5, not %d" % session.level)
    return session.five.disconnect_properties(code, expiry_s)


def computed(client: "Any", name: str) -> "Any":
    """Return a computed attribute of a client."""
    session = client.session
    if name == "oversize" or name == "downgraded":
        return getattr(session, name)
    if name == "client_id":
        return str(client.connection.client_id, "utf-8")
    if name == "granted" or name == "answer":
        return getattr(session.five, name) if session.five else {}
    if name == "unclaimed" or name == "failed" or name == "missed":
        return getattr(session.waiting, name) if session.waiting else 0
    raise AttributeError(name)
