"""Joins the pieces of a long message, for programs of umqtt and mqtt_as, which expect it whole; loaded with the first one.

It stores the pieces in the client's attribute `whole`. The message needs its length in RAM twice.
"""

from .compat import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


def join(face: "Any", message: "Any", log: "Any") -> "bytes | None":
    """Return the payload with the last piece. Return None before that; and, with a line for `log`, if memory is short."""
    try:
        if not message.offset:
            face.whole = None
            face.whole = bytearray(message.total)
        whole = face.whole
        if whole is None:
            return None
        view = message.view
        whole[message.offset : message.offset + len(view)] = view
        return None if message.more else bytes(whole)
    except MemoryError:
        face.whole = None
        log("flashmqtt: message skipped: no memory for %d bytes to %s" % (message.total, message.topic))
        return None
