"""SenML packs (RFC 8428, JSON) with the identity of a message: device, boot number, sequence number.

The identity is made once, when the message is published, and travels in the payload, so that the far end can
tell what is missing and what came twice, whatever the hops in between did. `boot`, `seq` and `up` are labels of
our own in the pack's first record; a reader that does not know them ignores them (RFC 8428, 4.4). `seq` counts
all messages of the device's life without a gap.

This module knows no clock, no sensor and no network.
"""

from json import dumps


def pack(device, boot, seq, uptime_ms, records, base_time=None):
    """Return a SenML pack as bytes.

    Args:
        device: the device's id; the base name is this and "/".
        boot: how many times the device has started.
        seq: the message's ordinal over the device's life, from 1.
        uptime_ms: milliseconds since this boot.
        records: dicts with SenML labels of their own: "n", "u", "v", "vs", "vb" ...
        base_time: seconds since 1970 UTC, or None while the clock is not set.
    """
    head = {"bn": device + "/", "boot": boot, "seq": seq, "up": uptime_ms / 1000}
    if base_time is not None:
        head["bt"] = base_time
    first = True
    pieces = []
    for record in records:
        if first:
            head.update(record)
            record = head
            first = False
        pieces.append(dumps(record))
    if first:
        pieces.append(dumps(head))
    return ("[" + ",".join(pieces) + "]").encode()
