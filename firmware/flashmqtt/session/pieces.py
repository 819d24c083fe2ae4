"""Messages longer than a buffer, stored and sent in pieces; and messages with level 5's properties.

Loaded with the first such message. It knows the session's scratch and output, for QoS 0 also how the blocking client waits; it
knows no flows. While a part of a packet is in the output, the output is shut, so that no other packet gets in between.
"""

from flashmqtt.codec.encode import put_publish_head
from flashmqtt.compat import TYPE_CHECKING, const, ticks_ms
from flashmqtt.errors import ConnectionLost, InvalidTopic, StoreCorrupt, UsageError
from flashmqtt.fast import copy

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_LEVEL_5 = const(5)
_STAMPED = const(8)  # `expiry.py`
_TURN = const(16)  # how many buffers one call of `step` fills


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
        raise InvalidTopic("no topic")
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


def send(
    client: "Any",
    topic: "bytes | bytearray | memoryview",
    payload: "bytes | bytearray | memoryview",
    retain: bool,
    properties: "Any",
) -> None:
    """Send a QoS 0 message that does not fit in the output's free room in pieces, and wait for each."""
    deadline = client._deadline(None)
    sending = Sending(client, topic, payload, retain, properties)
    try:
        while not sending.step(ticks_ms()):
            if not sending.moved:
                client._wait(client._left(deadline, "write"))
    except BaseException as error:
        sending.failed(error)


class Sending:
    """A QoS 0 message that is sent in pieces: the caller waits for room and calls `step` until it returns True."""

    def __init__(
        self,
        client: "Any",
        topic: "bytes | bytearray | memoryview",
        payload: "bytes | bytearray | memoryview",
        retain: bool,
        properties: "Any",
    ) -> None:
        self._session = client.session
        self._link = client.link
        self._connects = client.link.connects
        self._message = (topic, payload, retain, properties)
        self._at = -1  # how many bytes of the payload were put, -1: nor the head
        self.moved = True  # the last step put something

    def step(self, now_ms: int) -> bool:
        """Put and write as much as has room; return whether all was put, or the connection is gone."""
        output = self._session.output
        topic, payload, retain, properties = self._message
        n = len(payload)
        self.moved = False
        for _ in range(_TURN):
            if self._link.connects != self._connects or not self._link.is_open():
                return True
            if not self._link.write(now_ms):
                return False
            if self._at >= 0:
                room = min(len(output.buf), n - self._at)
                output.put(_put_piece, payload, self._at, room)
                self._at += room
            elif output.room() > 0:
                output.put(put_publish_head, topic, n, 0, retain, False, 0, self._session.level, properties)
                output.shut()
                self._at = 0
            else:  # a stored message is partly in the output
                self._session.pump(now_ms)
            self.moved = output.end > 0
            if self._at == n:
                output.open()
                return True
        return False

    def failed(self, error: "Any") -> None:
        """Handle an error of a step or of the wait between two: raise it again, unless it is a network error."""
        if self._at < 0 and isinstance(error, UsageError):  # nothing was put
            raise error
        if self._link.connects == self._connects:
            self._link.fail(error, ticks_ms())  # an incomplete packet must not be followed by another one
        if not isinstance(error, (OSError, ConnectionLost)):
            raise error


def _put_piece(
    buf: "bytearray | memoryview", pos: int, payload: "bytes | bytearray | memoryview", at: int, n: int
) -> int:
    copy(buf, pos, payload, at, n)
    return pos + n


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
