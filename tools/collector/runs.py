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

from flashmqtt.codec.packets import PUBACK, PUBLISH, PUBREC, PUBREL
from flashmqtt.connection import NOTHING
from flashmqtt.session.inbound import Inbound
from flashmqtt.session.session import Session
from tools.collector.oversize import OversizeDecoder

QOS_1 = frozenset(PUBLISH << 4 | 1 << 1 | retain for retain in (0, 1))  # with DUP: see `Collector._land`
ACKNOWLEDGE = bytes((PUBACK << 4, 2))
ACKNOWLEDGE_BYTES = 4
ROOM_BYTES = 8  # what the output must have for one acknowledgement, at any level
PUBREC_WINDOW = 500
NO_ID = b"\0\0"
MOST_TOPICS = 100_000


class RunDecoder(OversizeDecoder):
    """The boards' decoder, which can also step over a run, and takes in a message that is longer than its buffer."""

    def __init__(self, size: int, level: int, drop: bool = False) -> None:
        super().__init__(size, level, drop)
        self._known: set[bytes] = set()  # topics, with their length in front, that the decoder has found valid
        self._seen = b""  # what was received and not yet decoded at the last `look`
        self._seen_end = 0

    def look(self) -> None:
        """Take in what was received: call it between the last `received` and the first `take_run`."""
        self._seen = bytes(memoryview(self.buffer)[self.at : self.end])
        self._seen_end = self.end

    def know(self, topic: bytes) -> None:
        """Remember a topic, with its length in front, of a PUBLISH that the decoder has accepted."""
        if len(self._known) >= MOST_TOPICS:
            self._known.clear()
        self._known.add(topic)

    def take_run(self, most: int) -> tuple[bytes, list[bytes]]:
        """Step over at most so many QoS 1 messages; return their packets, and their packet ids."""
        data = self._seen
        size = len(data)
        first = at = size - (self._seen_end - self.at)
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
        self.at += at - first
        self._need = 0
        return data[first:at], ids


class RunInbound(Inbound):
    """Inbound QoS 2 as on the boards, but no more than PUBREC_WINDOW messages are answered ahead of their PUBREL.

    Why: mosquitto 2.0.11 (Debian 12) forgets its max_inflight_messages at QoS 2 when several PUBCOMP come together and
    sends a backlog of tens of thousands at one go; it then looks for every PUBREC's message from the front of a list of
    all that were not completed. 60,000 messages took half a minute to two minutes so, with all PUBRECs at once. A
    PUBREC may leave late, but in order [MQTT-4.6.0-3].
    """

    def __init__(self, session: RunSession) -> None:
        super().__init__(session)
        self._answered: set[int] = set()  # with PUBREC on this connection, PUBREL not yet seen
        self._late: collections.deque[int] = collections.deque()  # stored, PUBREC not yet put

    def receive(self, packet: OversizeDecoder, now_ms: int) -> int:
        """Take in a PUBLISH of QoS 2 or a PUBREL; return what is to be reported."""
        key = packet.packet_id
        if not self._store.held_length(key):
            if packet.packet_type == PUBREL:
                self._answered.discard(key)
            elif packet.dropped:  # answered and not held: its PUBREL will find nothing, and is answered, too
                self._acknowledge(PUBREC, key, 0)
                return NOTHING
        event: int = super().receive(packet, now_ms)
        return event

    def _acknowledge(self, kind: int, key: int, code: int) -> None:
        if kind == PUBREC:
            if self._late or len(self._answered) >= PUBREC_WINDOW:
                self._late.append(key)
                return
            self._answered.add(key)
        super()._acknowledge(kind, key, code)

    def taken(self) -> None:
        """The message that was handed over is a row now: its PUBREL has come, or will never come."""
        self._answered.discard(self._key)
        super().taken()

    @property
    def wants_turn(self) -> bool:
        """Whether there is something to do though no packet came: PUBRECs to put, or a message that was left out."""
        return self._left > 0 or (len(self._late) > 0 and len(self._answered) < PUBREC_WINDOW)

    def put_late(self) -> None:
        """Put the PUBRECs that had to wait, as far as the window and the output allow."""
        room = self._session.output.room
        while self._late and len(self._answered) < PUBREC_WINDOW and room() >= ROOM_BYTES:
            key = self._late.popleft()
            self._answered.add(key)
            super()._acknowledge(PUBREC, key, 0)

    def disconnected(self) -> None:
        """The network connection is gone: the broker repeats what it has no PUBREC for."""
        self._answered.clear()
        self._late.clear()
        super().disconnected()


class RunSession(Session):
    """The boards' session, which can also acknowledge a run."""

    def load_inbound(self) -> RunInbound:
        """Return what deals with inbound QoS 2, made when it is first needed."""
        if self.inbound is None:
            self.inbound = RunInbound(self)
        inbound: RunInbound = self.inbound
        return inbound

    def taken(self) -> None:
        """Acknowledge the message. To hand over is to discard here, in one log entry: the next message needs no sync."""
        super().taken()
        self.unsynced = False

    @property
    def wants_turn(self) -> bool:
        """Whether there is something to do though no packet came: see `RunInbound`."""
        return self.inbound is not None and self.inbound.wants_turn

    def put_late(self) -> None:
        """Put the PUBRECs that had to wait, as far as the window and the output allow."""
        if self.inbound is not None:
            self.inbound.put_late()

    def run_room(self) -> int:
        """Return how many QoS 1 messages may be taken at one go now: none while something comes before the next packet."""
        room: int = self.output.room()
        return 0 if room < ROOM_BYTES or self.handed or self.urgent else room // ACKNOWLEDGE_BYTES

    def took_run(self, ids: list[bytes]) -> None:
        """Put the acknowledgements of a run that was taken, in its order [MQTT-4.6.0-2]."""
        output = self.output
        output.put_ack(PUBACK, int.from_bytes(ids[0]))
        if len(ids) > 1:
            rest = ACKNOWLEDGE + ACKNOWLEDGE.join(ids[1:])
            output.put_copy(rest, len(rest))
