"""Messages longer than a buffer, stored and sent in pieces; and messages with level 5's properties.

Loaded with the first such message. It knows the session's scratch and output; it knows no flows. While a part of a packet is in
the output, its limit is 0, so that no other packet gets in between. For QoS 0 see `sending.py`.
"""

from flashmqtt.codec.encode import put_publish_head
from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import ConnectionLost, StoreCorrupt, UsageError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_LEVEL_5 = const(5)
_STAMPED = const(8)  # `expiry.py`


def publish(
    session: "Any",
    topic: "bytes | bytearray | memoryview",
    payload: "bytes | bytearray | memoryview",
    qos: int,
    retain: bool,
    properties: "Any",
) -> "Any":
    """Do what the session's `publish` does."""
    store = session.store
    scratch = session.scratch
    n = len(payload)
    packet_id = (store.next_seq - 1) % 65535 + 1
    if not topic:  # with an alias, level 5's codec would accept an empty topic
        from flashmqtt.arguments import refuse_topic

        refuse_topic(topic, False)
    head = put_publish_head(scratch, 0, topic, n, qos, retain, False, packet_id, session.level, properties)
    stamp = session.five.stamp(session, properties) if session.five and properties else b""
    if not store.begin(head + n + len(stamp)):
        return 0
    if stamp:
        scratch[0] |= _STAMPED
    store.extend(scratch, head)
    store.extend(payload, n)
    if stamp:
        store.extend(stamp, len(stamp))
    return store.commit()


def go_on(session: "Any", now_ms: int) -> None:
    """Put the next piece of the message that is partly in the output; open the output when it is complete.

    Raises:
        ConnectionLost: the store's policy dropped the message, or it can't be read: an incomplete packet can't be followed by
            another one.
    """
    store = session.store
    output = session.output
    seq = session.partial
    at = session.partial_at
    if seq < store.low or store.is_finished(seq) or not store.length(seq):
        raise ConnectionLost("the store dropped a partly sent message")
    room = len(output.buf) - output.end
    if not room:
        return
    session.sent_ms[seq & 31] = now_ms  # the answer can't come before the last piece was sent
    n = session.partial_length - at
    whole = n <= room
    if not whole:
        n = room
    try:
        output.put_stored(store, seq, at, n, False)
    except StoreCorrupt as error:
        raise ConnectionLost("only a part was sent: %r" % error)
    session.partial_at = at + n
    if whole:
        session.partial = 0
        output.open()


def packed(level: int, properties: "Any") -> bytes:
    """Return level 5's properties of a PUBLISH as bytes.

    Raises:
        UsageError: not valid properties, or the program must not set one of them, or the level is not 5.
    """
    from flashmqtt.codec.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, pack

    if level != _LEVEL_5:
        raise UsageError("properties need level 5, not %d" % level)
    block = pack(3, properties)
    for own, whose in ((SUBSCRIPTION_IDENTIFIER, "the broker"), (TOPIC_ALIAS, "the client itself")):  # [MQTT-3.3.4-6]
        if own in dict(properties):
            raise UsageError("property 0x%02x: %s sets it" % (own, whose))
    return block
