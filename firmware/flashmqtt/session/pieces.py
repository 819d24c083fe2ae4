"""Messages that are longer than a buffer: stored in pieces, and sent in pieces; and those with level 5's properties.

Loaded with the first such message. It knows the session's scratch and output, for QoS 0 also how the blocking client waits; of
flows it knows nothing. While a packet is in the output in part the output is shut: no other packet gets in between.
"""

from flashmqtt.codec.encode import put_publish_head
from flashmqtt.compat import TYPE_CHECKING, const, ticks_ms
from flashmqtt.errors import ConnectionLost, InvalidTopic, StoreCorrupt, UsageError
from flashmqtt.fast import copy

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_LEVEL_5 = const(5)
_STAMPED = const(8)  # `expiry.py`
_TURN = const(16)  # so many buffers make a turn


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
    if not topic:  # level 5's codec would take none, with an alias
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
    """Put the next piece of the message that is in the output in part; open the output when it is whole.

    Raises:
        ConnectionLost: the store's policy dropped it, or it can't be read any more: half a packet can't be followed by another.
    """
    store = session.store
    output = session.output
    seq = session.partial
    at = session.partial_at
    if seq < store.low or store.is_finished(seq) or not store.length(seq):
        raise ConnectionLost("the store dropped the message that was going out")
    room = len(output.buf) - output.end
    if not room:
        return
    session.sent_ms[seq & 31] = now_ms  # the answer can't come before the last piece has left
    n = session.partial_length - at
    whole = n <= room
    if not whole:
        n = room
    try:
        output.put_stored(store, seq, at, n, False)
    except StoreCorrupt as error:
        raise ConnectionLost("half a message went out: %r" % error)
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
    """Send a QoS 0 message that does not fit behind what is in the output, or never would, in pieces: wait for each."""
    deadline = client._deadline(None)
    sending = Sending(client, topic, payload, retain, properties)
    try:
        while not sending.step(ticks_ms()):
            if not sending.moved:
                client._wait(client._left(deadline, "write"))
    except BaseException as error:
        sending.failed(error)


class Sending:
    """A QoS 0 message that goes out in pieces: whoever waits for room calls `step` again and again."""

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
        self._at = -1  # how much of the payload was put, -1: not even the head
        self.moved = True  # the last step put something

    def step(self, now_ms: int) -> bool:
        """Put and write what has room; return whether all of it was put, or its connection is gone."""
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
            else:  # a stored message is half-way out
                self._session.pump(now_ms)
            self.moved = output.end > 0
            if self._at == n:
                output.open()
                return True
        return False

    def failed(self, error: "Any") -> None:
        """Something was raised in a step, or while waiting for the next: raise it again, unless it is the network's doing."""
        if self._at < 0 and isinstance(error, UsageError):  # nothing of it was put
            raise error
        if self._link.connects == self._connects:
            self._link.fail(error, ticks_ms())  # half a packet must not be followed by another
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
        UsageError: they are none, or not the program's to set, or the level is another.
    """
    from flashmqtt.codec.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, pack

    if level != _LEVEL_5:
        raise UsageError("properties need level 5, not %d" % level)
    block = pack(3, properties)
    for own, whose in ((SUBSCRIPTION_IDENTIFIER, "the broker"), (TOPIC_ALIAS, "the client itself")):  # [MQTT-3.3.4-6]
        if own in dict(properties):
            raise UsageError("property 0x%02x: %s sets it" % (own, whose))
    return block
