"""Topic names and topic filters (§4.7; shared subscriptions: 5, §4.8.2): validity and matching, over bytes.

It knows no packets and no subscription options. `matches` allocates nothing.
"""

from .utf8 import text_kind

_SLASH = 0x2F
_PLUS = 0x2B
_HASH = 0x23
_DOLLAR = 0x24

_SHARE = b"$share/"


def check_topic(topic: "bytes | bytearray | memoryview") -> None:
    """Raise InvalidTopic unless these bytes may be the topic of a PUBLISH.

    1 to 65,535 bytes [MQTT-4.7.3-1] [MQTT-4.7.3-3], UTF-8 without U+0000 [MQTT-4.7.3-2], and no wildcard
    [MQTT-3.3.2-2] [MQTT-4.7.1-1] (5: [MQTT-4.7.0-1]).
    """
    n = len(topic)
    if not 0 < n < 65536 or text_kind(topic, 0, n):
        from flashmqtt.arguments import refuse_topic

        refuse_topic(topic, False)


def check_filter(filter_: "bytes | bytearray | memoryview") -> None:
    """Raise InvalidTopic unless these bytes may be a topic filter.

    UTF-8 [MQTT-3.8.3-1] [MQTT-3.10.3-1]; `#` only as the last level and alone in it [MQTT-4.7.1-2] (5: [MQTT-4.7.1-1]), `+` only
    alone in its level [MQTT-4.7.1-3] (5: [MQTT-4.7.1-2]). After `$share/`: a name without wildcards, `/`, and a filter that is
    not empty [MQTT-4.8.2-1] [MQTT-4.8.2-2].
    """
    n = len(filter_)
    kind = text_kind(filter_, 0, n) if 0 < n < 65536 and not isinstance(filter_, str) else -1
    if kind < 0 or not _is_filter(filter_, _share_end(filter_), n, kind):
        from flashmqtt.arguments import refuse_topic

        refuse_topic(filter_, True)


def _is_filter(filter_: "bytes | bytearray | memoryview", start: int, n: int, wild: int) -> bool:
    if not 0 <= start < n:
        return False
    if wild:
        for i in range(start, n):
            c = filter_[i]
            if c == _PLUS or c == _HASH:
                if i > start and filter_[i - 1] != _SLASH:
                    return False
                if i + 1 < n and (c == _HASH or filter_[i + 1] != _SLASH):
                    return False
    return True


def is_shared(filter_: "bytes | bytearray | memoryview") -> bool:
    """Return whether the filter asks for a shared subscription (`$share/name/filter`)."""
    return bytes(filter_[:7]) == _SHARE


def _share_end(filter_: "bytes | bytearray | memoryview") -> int:
    """Return where the filter itself starts: 0 unless shared, -1 if the share name is missing or has wildcards."""
    for i in range(7):
        if i >= len(filter_) or filter_[i] != _SHARE[i]:
            return 0
    i = 7
    while i < len(filter_):
        c = filter_[i]
        if c == _PLUS or c == _HASH:
            return -1
        i += 1
        if c == _SLASH:
            return i if i > 8 else -1
    return -1


def matches(filter_: "bytes | bytearray | memoryview", topic: "bytes | bytearray | memoryview") -> bool:
    """Return whether a valid filter matches a valid topic name.

    A leading `+` or `#` does not match a topic that starts with `$` [MQTT-4.7.2-1]; `a/#` also matches `a` (§4.7.1.2). In a
    shared subscription, the part after the share name is matched. Bytes are compared without normalization [MQTT-4.7.3-4].
    """
    return covers(filter_, topic, 0, len(topic))


def covers(
    filter_: "bytes | bytearray | memoryview", buf: "bytes | bytearray | memoryview", start: int, end: int
) -> bool:
    """Do what `matches` does for the topic name in buf[start:end], so that a Decoder's topic needs no copy."""
    n = len(filter_)
    i = _share_end(filter_)
    if i < 0 or i >= n or start >= end:
        return False
    if buf[start] == _DOLLAR and filter_[i] != _DOLLAR:
        return False
    t = start
    while i < n:
        c = filter_[i]
        if c == _HASH:
            return True
        if c == _PLUS:
            while t < end and buf[t] != _SLASH:
                t += 1
        elif t < end and buf[t] == c:
            t += 1
        else:
            # "a/#" and "a": the separator before the last `#` may be missing, with all that follows it.
            return t == end and c == _SLASH and i + 2 == n and filter_[i + 1] == _HASH
        i += 1
    return t == end
