"""Runs: many QoS 1 messages taken at one go, for a host that receives faster than a board.

The boards' decoder and session take a message at a time, without allocating; on CPython that costs some 25 calls a
message. Nearly all that a collector receives looks alike: PUBLISH, QoS 1, a topic that was there before. A run is a
stretch of such packets: whole, with nothing in them that the decoder would refuse. It is recognised here, lands as
one piece, and is acknowledged by one piece. Whatever is not plainly such a packet ends the run and is left to the
decoder and the session, malformed packets too: this module accepts, it never refuses.

Nothing of the protocol's state is kept here: at QoS 1 a receiver has none but the acknowledgements, in order, in the
session's output, which leaves after the sync like everything else. `host_tests/collector/test_runs.py` holds both ways
against each other on arbitrary streams.
"""

from __future__ import annotations

import collections
from typing import Any

from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC
from flashmqtt.session.session import Session

QOS_1 = frozenset(PUBLISH << 4 | dup << 3 | 1 << 1 | retain for dup in (0, 1) for retain in (0, 1))
ACKNOWLEDGE = bytes((PUBACK << 4, 2))
ACKNOWLEDGE_BYTES = 4
PUBREC_WINDOW = 500
NO_ID = b"\0\0"
MOST_TOPICS = 100_000


class RunDecoder(Decoder):
    """The boards' decoder, which can also step over a run."""

    def __init__(self, size: int, level: int) -> None:
        super().__init__(size, level)
        self._known: set[bytes] = set()  # topics, with their length in front, that the decoder has found valid
        self._seen = b""  # what was received and not yet decoded at the last `look`
        self._seen_end = 0

    def look(self) -> None:
        """Take in what was received: call it between the last `received` and the first `take_run`."""
        self._seen = bytes(memoryview(self.buffer)[self._at : self._end])
        self._seen_end = self._end

    def know(self, topic: bytes) -> None:
        """Remember a topic, with its length in front, of a PUBLISH that the decoder has accepted."""
        if len(self._known) >= MOST_TOPICS:
            self._known.clear()
        self._known.add(topic)

    def take_run(self, most: int) -> tuple[bytes, list[bytes]]:
        """Step over at most so many QoS 1 messages; return their packets, and their packet ids."""
        data = self._seen
        size = len(data)
        first = at = size - (self._seen_end - self._at)
        known, five = self._known, self.level == 5
        ids: list[bytes] = []
        found = ids.append
        while size - at > 5 and most:
            body = at + 2
            length = data[at + 1]
            if length > 127:
                more = data[body]
                if not 0 < more < 128:  # three or four bytes, or more than it needs
                    break
                length += (more << 7) - 128
                body += 1
            after = body + length
            if after > size or data[at] not in QOS_1:
                break
            topic_end = body + 2 + (data[body] << 8 | data[body + 1])
            end = topic_end + 2
            if end > after or data[body:topic_end] not in known:
                break
            packet_id = data[topic_end:end]
            if packet_id == NO_ID:
                break
            if five and (end == after or data[end]):  # no property block, or not an empty one
                break
            found(packet_id)
            at = after
            most -= 1
        self._at += at - first
        self._need = 0
        return data[first:at], ids


class RunSession(Session):
    """The boards' session, which can also acknowledge a run, and answers no more than PUBREC_WINDOW messages ahead.

    Why the latter: mosquitto 2.0.11 (Debian 12) forgets its max_inflight_messages at QoS 2 when several PUBCOMP come
    together and sends a backlog of tens of thousands at one go; it then looks for every PUBREC's message from the
    front of a list of all that were not completed. 60,000 messages took half a minute to two minutes so, with all
    PUBRECs at once. A PUBREC may leave late, but in order [MQTT-4.6.0-3].
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._received: set[int] = set()  # answered with PUBREC on this connection, PUBREL not yet seen
        self._late: collections.deque[int] = collections.deque()  # stored, PUBREC not yet put
        super().__init__(*arguments, **named)

    def _acknowledge(self, kind: int, packet_id: int, *state: int) -> None:
        if kind == PUBREC:
            if len(self._received) >= PUBREC_WINDOW:
                self._late.append(packet_id)
                return
            self._received.add(packet_id)
        elif kind == PUBCOMP:
            self._received.discard(packet_id)
            self.ready = True
        super()._acknowledge(kind, packet_id, *state)

    def pump(self, now_ms: int) -> None:
        """Put into the output what may go out: also the PUBRECs that had to wait."""
        while self._late and len(self._received) < PUBREC_WINDOW and self.has_room():
            self._acknowledge(PUBREC, self._late.popleft())
        super().pump(now_ms)

    @property
    def late(self) -> bool:
        """Whether there are PUBRECs that need nothing but room in the output."""
        return bool(self._late) and len(self._received) < PUBREC_WINDOW

    def disconnected(self) -> None:
        """The network connection is gone: the broker repeats what it has no PUBREC for."""
        self._received.clear()
        self._late.clear()
        super().disconnected()

    def run_room(self) -> int:
        """Return how many QoS 1 messages may be taken at one go now: none while one is not yet acknowledged."""
        if not self.online or self.untaken >= 0 or self.lost or not self.has_room():
            return 0
        return (len(self.out) - self.out_end) // ACKNOWLEDGE_BYTES

    def took_run(self, ids: list[bytes]) -> None:
        """Put the acknowledgements of a run that was taken, in its order [MQTT-4.6.0-2]."""
        end = self.out_end + ACKNOWLEDGE_BYTES * len(ids)
        self.out[self.out_end : end] = ACKNOWLEDGE + ACKNOWLEDGE.join(ids)
        self.out_end = end
        self.promised = True
