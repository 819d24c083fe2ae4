"""UNSUBSCRIBE, and several filters in one SUBSCRIBE (3.1.1 and 5, sections 3.8 and 3.10).

Loaded with the first such call, as few programs need it. It knows the session and its requests, which handle the packets.
"""

from flashmqtt.codec.subscribe import put_unsubscribe
from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import BufferTooSmall, UsageError

from .subscriptions import requests_of

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_TO_UNSUBSCRIBE = const(4)  # a subscription's state: `subscriptions.py`


class Several:
    """The entries of one call, with the interface of a single entry."""

    def __init__(self, entries: "Any") -> None:
        self._entries = entries

    def result(self) -> "Any":
        """Return the broker's answers, or None if any is missing."""
        results = self.granted()
        return None if None in results else results

    def granted(self) -> "Any":
        """Return the broker's answer for each entry: 0x80 and above is a refusal, None means no answer yet."""
        return [entry.result() for entry in self._entries]


def want_all(session: "Any", filters: "Any", options: "Any", handler: "Any", properties: "Any") -> "Any":
    """Ask for several subscriptions; filters: a list of filters, or of pairs of a filter and its own options.

    Raises:
        InvalidTopic, UsageError, BufferTooSmall: no SUBSCRIBE can ask for one of them. Then the client asks for none.
    """
    requests = requests_of(session)
    pairs = []
    for filter_ in filters:
        its = options
        if isinstance(filter_, (list, tuple)):
            if len(filter_) != 2:
                raise UsageError("%r: a filter, or a pair (filter, qos)" % (filter_,))
            filter_, its = filter_
        filter_ = _octets(filter_)
        requests.check(filter_, its, properties)
        pairs.append((filter_, its))
    return Several([requests.want(filter_, its, handler, properties) for filter_, its in pairs])


def unwant(session: "Any", filter_: "Any", properties: "Any" = None) -> "Any":
    """Ask for the end of a subscription, also one made before the last restart, or of a list; return the object to wait for.

    Raises:
        InvalidTopic, BufferTooSmall: no UNSUBSCRIBE can ask for it.
    """
    if properties and not isinstance(properties, bytes):
        from flashmqtt.codec.properties import pack

        if session.level != 5:
            raise UsageError("properties need level 5, not %d" % session.level)
        properties = pack(10, properties)
    requests = requests_of(session)
    several = isinstance(filter_, (list, tuple))
    filters = [_octets(one) for one in filter_] if several else [_octets(filter_)]
    for one in filters:
        n = put_unsubscribe(session.scratch, 0, 1, (one,), session.level, False, properties)
        if n > len(session.output.buf):
            raise BufferTooSmall("UNSUBSCRIBE of %d bytes: buffer_bytes has %d" % (n, len(session.output.buf)))
    entries = []
    for one in filters:
        entry = requests.entry(one)  # an unknown one may have been made before the last restart
        entry.properties = properties
        entry.state = _TO_UNSUBSCRIBE
        entries.append(entry)
    requests.changed()
    return Several(entries) if several else entries[0]


def _octets(text: "Any") -> "Any":
    if isinstance(text, str):
        return text.encode()
    if not isinstance(text, (bytes, bytearray)):
        from flashmqtt.arguments import check_octets

        check_octets(text, "filter_")
    return text
