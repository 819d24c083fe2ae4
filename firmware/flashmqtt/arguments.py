"""What the faces need rarely: arguments that are to be looked at, and attributes that are worked out. Loaded when it is asked
for."""

from .compat import TYPE_CHECKING
from .errors import UsageError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


def check_octets(text: str) -> None:
    """See that a payload, topic or the like is bytes.

    Raises:
        UsageError: it is something else. A number has to be made text: a board's float has seven digits, which str() shows as
            they come, and "%.1f" as the program wants them.
    """
    if not isinstance(text, memoryview) or getattr(text, "itemsize", 1) != 1:
        raise UsageError("%s: give str, bytes, bytearray or a memoryview of bytes" % type(text).__name__)


def goodbye(session: "Any", code: int, expiry_s: "int | None") -> "Any":
    """Return the properties of level 5's DISCONNECT."""
    if session.level != 5:
        raise UsageError("code and expiry_s need level 5, not %d" % session.level)
    return session.five.goodbye(code, expiry_s)


def worked_out(client: "Any", name: str) -> "Any":
    """Return a rarely asked attribute of a client."""
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
