"""Errors for invalid arguments of the clients. Loaded when the first one is found."""

from .compat import TYPE_CHECKING, const
from .errors import InvalidTopic, UsageError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# The numbers among a client's arguments, as its constructor checks them; the last three may have fractions.
_NUMBERS = (
    "level port keep_alive_s window buffer_bytes refuse_after waiting attempts retry_ms waiting_bytes"
    " timeout_s response_s unclaimed_s"
)
_WHOLE = const(10)
_LONGEST_WAIT_S = const(500000)


def check_octets(text: "Any", name: str) -> None:
    """Check that an argument with this name is a memoryview of bytes.

    Raises:
        UsageError: it is something else. The program must convert a number to text itself, because only the program knows the
            number of digits: a board's float has seven.
    """
    if not isinstance(text, memoryview) or getattr(text, "itemsize", 1) != 1:
        call = "str" if isinstance(text, (int, float)) else "json.dumps" if isinstance(text, (dict, list)) else ""
        remedy = ": convert it first, such as with %s()" % call if call else ""
        raise UsageError("%s must be str or bytes, not %s%s" % (name, type(text).__name__, remedy))


def refuse_topic(topic: "Any", is_filter: bool) -> None:
    """Refuse a topic name or a topic filter; say why."""
    topic = topic.encode() if isinstance(topic, str) else bytes(topic)
    n = len(topic)
    reason = "not UTF-8"
    if not n:
        reason = "empty"
    elif n > 65535:
        reason = "%d bytes, at most 65535" % n
    elif b"\0" in topic:
        reason = "U+0000 at byte %d" % topic.find(b"\0")
    elif not is_filter:
        for wildcard in "#+":
            if wildcard.encode() in topic:
                reason = wildcard + " is a wildcard, which only a subscription may have"
    else:
        levels = topic.split(b"/")
        for level in levels:
            if b"+" in level and level != b"+":
                reason = "+ must be a whole level"
        if b"#" in topic and (levels[-1] != b"#" or topic.find(b"#") != n - 1):
            reason = "# must be the last level, alone"
        if levels[0] == b"$share" and (
            len(levels) < 3 or not levels[1] or b"+" in levels[1] or b"#" in levels[1] or levels[2:] == [b""]
        ):
            reason = "a shared subscription is $share/NAME/FILTER, NAME without wildcards"
    raise InvalidTopic("not a topic %s: %r: %s" % ("filter" if is_filter else "name", topic[:40], reason))


def refuse_number(values: "tuple[Any, ...]") -> None:
    """Refuse the first of a client's numbers that is invalid."""
    names = _NUMBERS.split()
    for i in range(len(names)):
        value = values[i]
        if not isinstance(value, (int, float)):
            raise UsageError("%s %r: a number is needed" % (names[i], value))
        if i < _WHOLE and not isinstance(value, int):
            raise UsageError("%s %r: a whole number is needed" % (names[i], value))
        limit = 1 << 29 if i < _WHOLE else _LONGEST_WAIT_S
        if not value < limit:
            raise UsageError("%s %r: less than %d" % (names[i], value, limit))
        if value < 0:
            raise UsageError("%s %r: not below 0" % (names[i], value))


def refuse_handle(session: "Any", handle: object) -> None:
    """Refuse what `publish` never returned."""
    if type(handle) is not int:
        raise UsageError("handle %r: give the number that publish returned" % (handle,))
    last = session.store.next_seq - 1
    raise UsageError("handle %d: no message has this number; the last one has %d" % (handle, last))


def refuse_client(
    host: "Any",
    port: "Any",
    timeout_s: "Any",
    unclaimed: object,
    waiting: "Any",
    attempts: "Any",
    store: object,
    tls: object,
    backoff: "Any",
    five: object,
    server_name: object,
    feed: object,
    log: object,
) -> None:
    """Refuse the first of a client's arguments that is invalid."""
    if not host:
        text = "no host"
    elif store is not None and not hasattr(store, "next_seq"):
        text = "store %r: a Journal or a RamStore is needed, or None" % (store,)
    elif tls and not hasattr(tls, "wrap_socket"):
        text = "tls %r: an SSLContext is needed, as flashmqtt.tls.context(ca=...) makes it" % (tls,)
    elif five and not hasattr(five, "expiry_s"):
        text = "five %r: a Level5 is needed" % (five,)
    elif server_name and not isinstance(server_name, str):
        text = "server_name %r: a str is needed" % (server_name,)
    elif feed and not callable(feed):
        text = "feed %r: a function is needed" % (feed,)
    elif log and not callable(log):
        text = "log %r: a function is needed" % (log,)
    elif not 0 < port < 65536:
        text = "port %r: 1 to 65535" % port
    elif timeout_s <= 0:
        text = "timeout_s %r: more than 0" % timeout_s
    elif waiting < 1:
        text = "waiting %r: 1 or more" % waiting
    elif attempts < 1:
        text = "attempts %r: 1 or more" % attempts
    elif unclaimed != "drop" and unclaimed != "keep":
        text = 'unclaimed %r: "drop" or "keep"' % (unclaimed,)
    elif backoff and not hasattr(backoff, "cap_ms"):
        text = "backoff %r: a Backoff is needed" % (backoff,)
    elif backoff and not 0 <= backoff.base_ms | backoff.cap_ms < 1 << 29:
        text = "backoff: base_ms %d, cap_ms %d: 0 to %d" % (backoff.base_ms, backoff.cap_ms, (1 << 29) - 1)
    else:
        text = "five: a Level5 needs level=5"
    raise UsageError(text)


def refuse_will(will: object) -> None:
    """Refuse a will."""
    raise UsageError("will %r: (topic, payload, qos, retain)" % (will,))


def refuse_session(window: "Any", max_qos: object, refuse_after: object) -> None:
    """Refuse the first of a session's arguments that is invalid."""
    if not 0 < window <= 32:
        raise UsageError("window %r: 1 to 32" % window)
    if max_qos != 1 and max_qos != 2:
        raise UsageError("max_qos %r: 1 or 2" % (max_qos,))
    raise UsageError("refuse_after %r: 0 to 254; or retry_ms at level 5, which allows none" % refuse_after)


def refuse_level(noted: int) -> None:
    """Refuse a store whose messages were encoded for another level."""
    raise UsageError("messages of level %d are stored: deliver them and disconnect, or format" % noted)


def refuse_call(what: object) -> None:
    """Refuse a call that interrupts another one (None).

    Or an `async def` handler (True), a call inside a handler that would block (False), or this time to wait.
    """
    if what is None:
        raise UsageError("called from a timer during another call: let the timer set a flag instead")
    if what is True:
        raise UsageError("async def handlers are for flashmqtt.aio")
    if what is False:
        raise UsageError("blocking calls are not allowed in a message handler")
    raise UsageError("timeout %r: a number of seconds (poll: whole milliseconds), of at most 500000 s" % (what,))


def disconnect_properties(session: "Any", code: int, expiry_s: "int | None") -> "Any":
    """Return the properties of level 5's DISCONNECT."""
    if session.level != 5:
        raise UsageError("code and expiry_s need level 5, not %d" % session.level)
    if expiry_s is not None and (not isinstance(expiry_s, int) or expiry_s < 0 or expiry_s >> 32):
        raise UsageError("expiry_s %r: 0 to 4294967295" % (expiry_s,))
    return session.five.disconnect_properties(code, expiry_s)
