"""Computed attributes of the clients. Loaded when a program reads one of them."""

from .compat import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


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
