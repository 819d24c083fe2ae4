"""SenML packs (RFC 8428, JSON) with the identity of a message: device, life, boot number, sequence number.

The identity is made once, when the message is published, and is part of the payload, so that the receiver can detect missing
messages and duplicates, independent of the brokers in between. `life`, `boot`, `seq` and `up` are our own labels in the pack's
first record; other readers ignore them (RFC 8428, 4.4). `seq` counts all messages of the device's life (see `app.life`) without a
gap. If the clock is set, `bt` is the time at the same moment as `up`, and so relates all uptimes of this boot to UTC.

Times are written from whole milliseconds, because a board's float has only 23 bits. This module knows no clock, no sensor and no
network.
"""

from json import dumps


def seconds(ms):
    """Return milliseconds as a JSON number of seconds."""
    return "%d.%03d" % (ms // 1000, ms % 1000)


def is_name(text):
    """Return whether SenML allows a name (RFC 8428, 4.5.1): letters, digits and "-:./_"; the first one a letter or digit."""
    if not text or text[0] in "-:./_":
        return False
    for character in text:
        if not ("a" <= character <= "z" or "A" <= character <= "Z" or "-" <= character <= ":" or character == "_"):
            return False
    return True


def pack(device, boot, seq, uptime_ms, records, unix_ms=None, labels=None, life=0):
    """Return a SenML pack as bytes.

    Args:
        device: the device's id; the base name is this and "/".
        boot: how many times the device has started.
        seq: the message's number in the device's life, from 1.
        uptime_ms: milliseconds since this boot.
        records: dicts with the SenML labels "n", "u", "v", "vs", "vb" ...
        unix_ms: milliseconds since 1970 UTC, or None while the clock is not set.
        labels: more of our own labels for the first record, as a dict.
        life: the random number of the device's life, 0 for none.
    """
    head = '[{"bn":%s,"boot":%d,"seq":%d,"up":%s' % (dumps(device + "/"), boot, seq, seconds(uptime_ms))
    if life:
        head += ',"life":%d' % life
    if unix_ms is not None:
        head += ',"bt":' + seconds(unix_ms)
    if labels:
        head += "," + dumps(labels)[1:-1]
    pieces = [head]
    for record in records:
        text = dumps(record)
        pieces.append("," + text[1:] if len(pieces) == 1 else "," + text)
    if len(pieces) == 1:
        pieces.append("}")
    pieces.append("]")
    return "".join(pieces).encode()
