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


def refuse_waiting(unclaimed: object, waiting: object, attempts: object) -> None:
    """Refuse a client's arguments for waiting messages."""
    raise UsageError(
        'unclaimed %r: "drop" or "keep"; waiting %r, attempts %r: 1 or more' % (unclaimed, waiting, attempts)
    )


def refuse_will(will: object) -> None:
    """Refuse a will."""
    raise UsageError("will %r: (topic, payload, qos, retain)" % (will,))


def refuse_session(window: object, max_qos: object, refuse_after: object) -> None:
    """Refuse a session's arguments."""
    raise UsageError(
        "window %r: 1 to 32; max_qos %r: 1 or 2; refuse_after %r: 0 to 254; at level 5 no retry_ms"
        % (window, max_qos, refuse_after)
    )


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
