"""A broker's session that is older than this program's memory of it (3.1.1 and 5, section 4.3.3).

Loaded where a session without a durable store resumes what an earlier run of the program left at the broker: subscriptions,
queued messages, and packet ids. An id that the broker still holds for a QoS 2 message of the earlier run would make it take a new
message for a duplicate. So before the first QoS 2 message under each id goes out, a PUBREL for that id ends whatever the broker
holds there: it passes the old message on, or says that there is none. Both are answered by PUBCOMP; only then the new message is
sent. Where a broker closes the connection on such a PUBREL, or does not answer it, on as many connections in a row as make a
message refused (`suspect.py`), the message goes out without.
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
    """Which ids of a session are known to be free at the broker."""

    def __init__(self, session: "Any") -> None:
        self._session = session
        self._first = bytearray(1)
        self._asked = 0  # the message for whose id a PUBREL is out
        self._asked_ms = 0
        self._free = 0  # the message whose id is free
        self._vain = 0  # how many connections in a row ended before the PUBCOMP
        # What this session sends itself is acknowledged, or sent again under its id: every id is cleared once.

    def connected(self, error: "Any") -> None:
        """A connection begins: what was out on the last one, which ended by this error (None: by us), is gone."""
        if self._asked and error:
            self._vain += 1
        self._asked = 0

    def may_go(self, seq: int, now_ms: int) -> bool:
        """Return whether a message's id is free; ask for it where that is not known."""
        session = self._session
        if seq > _IDS or seq == self._free or seq < session.dup_to or 0 < session.refuse_after <= self._vain:
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
        self._asked = self._vain = 0
        return True

    def overdue_ms(self, now_ms: int) -> "Any":
        """Return for how long a PUBCOMP has been awaited."""
        return ticks_diff(now_ms, self._asked_ms) if self._asked else 0
