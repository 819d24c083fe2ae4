"""Runs: a fast path that processes many QoS 1 messages at once.

The boards' decoder and session process one message at a time without allocating. On CPython that costs about 25 calls a
message. Nearly all packets of a collector are alike: PUBLISH, QoS 1, a known topic. A run is a sequence of such packets,
complete and valid. A run is landed by one call and acknowledged by one call. Any other packet, also a malformed one,
ends the run and goes to the decoder and the session: this module accepts packets, it never refuses one.

This module keeps no protocol state. A QoS 1 receiver's only state is the acknowledgements, in order, in the session's
output, and the output is sent after the sync. `host_tests/collector/test_runs.py` compares the fast path with the
decoder and the session on arbitrary streams.
"""

from __future__ import annotations

import collections

from flashmqtt.codec.packets import PUBACK, PUBLISH, PUBREC, PUBREL
from flashmqtt.connection import NOTHING
from flashmqtt.session.inbound import Inbound
from flashmqtt.session.session import Session
from tools.collector.oversize import OversizeDecoder

QOS_1 = frozenset(PUBLISH << 4 | 1 << 1 | retain for retain in (0, 1))  # a packet with DUP goes to `Collector._land`
ACKNOWLEDGE = bytes((PUBACK << 4, 2))
ACKNOWLEDGE_BYTES = 4
ROOM_BYTES = 8  # free bytes in the output for one acknowledgement, at any level
PUBREC_WINDOW = 500
NO_ID = b"\0\0"
MOST_TOPICS = 100_000


class RunDecoder(OversizeDecoder):
    """The boards' decoder, extended by runs and by messages longer than its buffer."""

    def __init__(self, size: int, level: int, drop: bool = False) -> None:
        super().__init__(size, level, drop)
        self._known: set[bytes] = set()  # valid topics, each with its length in front
        self._seen = b""  # the bytes that were not yet decoded at the last `look`
        self._seen_end = 0

    def look(self) -> None:
        """Copy the received bytes: call this between the last `received` and the first `take_run`."""
        self._seen = bytes(memoryview(self.buffer)[self.at : self.stop])
        self._seen_end = self.stop

    def know(self, topic: bytes) -> None:
        """Remember the topic, with its length in front, of a PUBLISH that the decoder accepted, if it has less than 256 bytes."""
        if len(self._known) >= MOST_TOPICS:
            self._known.clear()
        if not topic[0]:
            self._known.add(topic)

    def take_run(self, most: int) -> tuple[bytes, list[bytes]]:
        """Consume at most `most` QoS 1 messages; return their packets and their packet ids."""
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
                if not 0 < more < 128:  # three or four bytes, or not the shortest form
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
            if five and (end == after or data[end]):  # malformed, or with properties
                break
            found(packet_id)
            at = after
            most -= 1
        self.at += at - first
        self._need = 0
        return data[first:at], ids


class RunInbound(Inbound):
    """Inbound QoS 2 as on the boards, but with at most PUBREC_WINDOW messages between PUBREC and PUBREL.

    The reason is mosquitto 2.0.11 (Debian 12). When several PUBCOMP arrive together it ignores its max_inflight_messages
    and sends a backlog of tens of thousands of QoS 2 messages at once. For each PUBREC it then searches the list of all
    incomplete messages from the front. With all PUBRECs sent at once, 60,000 messages took half a minute to two minutes.
    A PUBREC may be delayed, but PUBRECs keep their order [MQTT-4.6.0-3].
    """

    def __init__(self, session: RunSession) -> None:
        super().__init__(session)
        self._awaiting_pubrel: set[int] = set()  # PUBREC was put on this connection, PUBREL has not arrived
        self._delayed: collections.deque[int] = collections.deque()  # stored, PUBREC not yet put

    def receive(self, packet: OversizeDecoder, now_ms: int) -> int:
        """Process a PUBLISH of QoS 2 or a PUBREL; return the event to report."""
        key = packet.packet_id
        if not self._store.held_length(key):
            if packet.packet_type == PUBREL:
                self._awaiting_pubrel.discard(key)
            elif packet.dropped:  # PUBREC without storing it; a PUBREL for an unknown id is answered by PUBCOMP anyway
                self._acknowledge(PUBREC, key, 0)
                return NOTHING
        event: int = super().receive(packet, now_ms)
        return event

    def _acknowledge(self, kind: int, key: int, code: int) -> None:
        if kind == PUBREC:
            if self._delayed or len(self._awaiting_pubrel) >= PUBREC_WINDOW:
                self._delayed.append(key)
                return
            self._awaiting_pubrel.add(key)
        super()._acknowledge(kind, key, code)

    def discard_handed(self) -> None:
        """Discard the delivered message, which is a row now, and leave the window: no PUBREL is expected for it any more."""
        self._awaiting_pubrel.discard(self._session.handed_id)
        super().discard_handed()

    @property
    def wants_turn(self) -> bool:
        """Whether there is work without a new packet: delayed PUBRECs that fit, or a message that is still to be delivered."""
        return self.left > 0 or (len(self._delayed) > 0 and len(self._awaiting_pubrel) < PUBREC_WINDOW)

    def put_delayed(self) -> None:
        """Put the delayed PUBRECs, as far as the window and the output allow."""
        room = self._session.output.room
        while self._delayed and len(self._awaiting_pubrel) < PUBREC_WINDOW and room() >= ROOM_BYTES:
            key = self._delayed.popleft()
            self._awaiting_pubrel.add(key)
            super()._acknowledge(PUBREC, key, 0)

    def disconnected(self) -> None:
        """Clear the window: on the next connection the broker resends every PUBLISH without a PUBREC."""
        self._awaiting_pubrel.clear()
        self._delayed.clear()
        super().disconnected()


class RunSession(Session):
    """The boards' session, extended by runs."""

    def load_inbound(self) -> RunInbound:
        """Return the state of inbound QoS 2; it is made at the first call."""
        if self.inbound is None:
            self.inbound = RunInbound(self)
        inbound: RunInbound = self.inbound
        return inbound

    def acknowledge(self) -> None:
        """Acknowledge the message. One log entry both delivers and discards it, so the next message needs no sync."""
        super().acknowledge()
        self.unsynced = False

    def run_room(self) -> int:
        """Return how many QoS 1 messages the next run may have; 0 while a delivery or an urgent packet comes first."""
        room: int = self.output.room()
        return 0 if room < ROOM_BYTES or self.handed or self.urgent else room // ACKNOWLEDGE_BYTES

    def acknowledge_run(self, ids: list[bytes]) -> None:
        """Put the PUBACKs of a run, in its order [MQTT-4.6.0-2]."""
        output = self.output
        output.put_ack(PUBACK, int.from_bytes(ids[0]))
        if len(ids) > 1:
            rest = ACKNOWLEDGE + ACKNOWLEDGE.join(ids[1:])
            output.put_copy(rest, len(rest))
