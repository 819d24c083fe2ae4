"""A broker's session from before the program's last restart (3.1.1 and 5, section 4.3.3).

Loaded if a session without a durable store continues a session that an earlier run of the program left at the broker, with
subscriptions, queued messages and packet ids. The broker may still hold a packet id of an unfinished QoS 2 message; it would take
a new message with that id for a duplicate. So the first QoS 2 message with each id is preceded by a PUBREL for that id. The
broker then passes the old message on, or finds none, and answers with PUBCOMP. After PUBCOMP the new message is sent. If the
broker closes the connection on the PUBREL, or does not answer it, on `refuse_after` connections in a row, the message is sent
without a PUBREL before it.
"""

from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_PUBREL = const(6)
_PUBCOMP = const(7)
_QOS_2 = const(4)  # in a PUBLISH's first byte
_IDS = const(65535)
_ACK_BYTES = const(8)


class Adopted:
    """The packet ids of a session that are known to be free at the broker."""

    def __init__(self, session: "Any") -> None:
        self._session = session
        self._first = bytearray(1)
        self._asked = 0  # the message for whose id a PUBREL was sent
        self._asked_ms = 0
        self._free = 0  # the message whose id is free
        self._failures = 0  # how many connections in a row ended before the PUBCOMP
        # Each id is freed once: this session's own messages are acknowledged, or retransmitted with the same id.

    def connected(self, error: "Any") -> None:
        """A connection begins; the last one ended because of this error (None: by us), without a PUBCOMP."""
        if self._asked and error:
            self._failures += 1
        self._asked = 0

    def may_go(self, seq: int, now_ms: int) -> bool:
        """Return whether a message's id is free; if that is unknown, send a PUBREL for it."""
        session = self._session
        if seq > _IDS or seq == self._free or seq < session.dup_to or 0 < session.refuse_after <= self._failures:
            return True
        session.store.read(seq, 0, self._first, 0, 1)
        if not self._first[0] & _QOS_2 or session.qos_limit < 2:
            return True
        if not self._asked and session.output.room() >= _ACK_BYTES:
            session.output.put_ack(_PUBREL, seq)
            self._asked = seq
            self._asked_ms = now_ms
        return False

    def completed(self, packet: "Any") -> bool:
        """Return whether a packet is the awaited PUBCOMP."""
        if packet.packet_type != _PUBCOMP or not self._asked or packet.packet_id != self._asked:
            return False
        self._free = self._asked
        self._asked = self._failures = 0
        return True

    def overdue_ms(self, now_ms: int) -> "Any":
        """Return how long the PUBCOMP is overdue."""
        return ticks_diff(now_ms, self._asked_ms) if self._asked else 0
