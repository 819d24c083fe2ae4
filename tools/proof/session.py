"""One side's flows of QoS 1 and 2 in a session, of a client or a server; with the tests' codec, and without a socket."""

from tools.proof import packets as p


class Session:
    """The flows of one side.

    Attributes:
        held: the packet ids of received QoS 2 messages that wait for PUBREL.
        unanswered: what is sent again on the next connection, by packet id, in order: a PUBLISH, later its PUBREL.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.unanswered: dict[int, bytes] = {}

    def is_new(self, packet: p.Packet) -> bool:
        """Return whether a PUBLISH is not the repetition of a held message."""
        return packet.qos < 2 or packet.packet_id not in self.held

    def answer(self, packet: p.Packet) -> bytes:
        """Take the next packet of a flow; return the answer to it, b"" for none."""
        kind, packet_id = packet.kind, packet.packet_id
        if kind == p.PUBLISH:
            if packet.qos == 2:
                self.held.add(packet_id)
            return p.ack(p.PUBREC if packet.qos == 2 else p.PUBACK, packet_id) if packet.qos else b""
        if kind == p.PUBREL:
            self.held.discard(packet_id)
            return p.ack(p.PUBCOMP, packet_id)
        if kind == p.PUBREC:
            release = p.ack(p.PUBREL, packet_id)
            if packet_id in self.unanswered:
                self.unanswered[packet_id] = release
            return release
        if kind in (p.PUBACK, p.PUBCOMP):
            self.unanswered.pop(packet_id, None)
        return b""

    def repetitions(self) -> bytes:
        """Return what is sent again on a new connection."""
        return b"".join(
            bytes((one[0] | 8, *one[1:])) if one[0] >> 4 == p.PUBLISH else one for one in self.unanswered.values()
        )
