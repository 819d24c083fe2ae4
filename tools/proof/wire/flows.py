"""Turns captured bytes into packets and packets into flows, and finds the rules that were broken.

The packets are read by the tests' own codec: the library's might accept its own mistakes. Packets, flows and violations are dicts
with the keys of the schemas in `__main__`.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tools.proof import packets as p
from tools.proof.wire import capture

# Segments to packets.


def packets_of(pieces: list[capture.Piece]) -> list[dict[str, Any]]:
    """Return the packets of one address pair's connections, ordered by time."""
    found: list[dict[str, Any]] = []
    for n, streams in enumerate(capture.streams(pieces)):
        connection = pieces[0].connection + (f"#{n + 1}" if n else "")
        up = list(_decode(streams.get(capture.UP), connection, capture.UP, 4))
        hello = next((one for one in up if one["kind"] == "CONNECT"), None)
        down = list(_decode(streams.get(capture.DOWN), connection, capture.DOWN, hello["level"] if hello else 4))
        client = (hello["client"] if hello else "") or connection
        # In the same microsecond a request comes before its answer.
        both = sorted(up + down, key=lambda one: (one["time_us"], one["direction"] == capture.DOWN))
        for number, one in enumerate(both, 1):
            found.append(one | {"client": client, "number": number})
    return found


def _decode(stream: capture.Stream | None, connection: str, direction: str, level: int) -> Iterator[dict[str, Any]]:
    reader = p.Reader(level)
    for time_us, content in stream.chunks() if stream else ():
        base = {"connection": connection, "direction": direction, "time_us": time_us}
        if not content:
            yield base | {"kind": "LOST", "level": reader.level, "fault": "the capture lost bytes here"}
            return
        try:
            for packet in reader.packets(content):
                yield base | _fields(packet)
        except p.Wrong as wrong:
            yield base | {"kind": "MALFORMED", "level": reader.level, "fault": str(wrong)}
            return


def _fields(packet: p.Packet) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": p.NAMES[packet.kind], "level": packet.level}
    if packet.kind == p.PUBLISH:
        fields |= {"qos": packet.qos, "dup": packet.dup, "retain": packet.retain, "topic": packet.topic}
        fields["bytes"] = len(packet.payload)
        fields["checksum"] = zlib.crc32(packet.payload, zlib.crc32(packet.topic.encode()))
    elif packet.kind == p.CONNECT:
        fields |= {"client": packet.client_id, "clean": packet.clean}
    elif packet.kind == p.CONNACK:
        fields["clean"] = not packet.session_present
    if packet.packet_id:
        fields["packet_id"] = packet.packet_id
    return fields


# Packets to flows.


@dataclass
class Flow:
    """A message in flight at QoS 1 or 2."""

    packet: dict[str, Any]
    first_sent_us: int  # when the message was first sent; in an earlier flow, if the answer to that one was lost
    steps: list[str] = field(default_factory=list)
    connections: set[str] = field(default_factory=set)
    received: bool = False  # PUBREC seen
    received_in: str = ""  # its connection: if that ended then, the sender may not have received the PUBREC
    released: bool = False  # PUBREL sent
    resent_in: str = ""

    def row(self, ended_us: int | None) -> dict[str, Any]:
        """Return the flow as a row."""
        base = {name: self.packet[name] for name in ("client", "direction", "packet_id", "qos", "topic")}
        return base | {
            "begun_us": self.packet["time_us"],
            "ended_us": ended_us,
            "connections": len(self.connections),
            "publishes": sum(step.startswith("PUBLISH") for step in self.steps),
            "steps": " ".join(self.steps),
            "complete": ended_us is not None,
        }


OTHER = {capture.UP: capture.DOWN, capture.DOWN: capture.UP}
SIDE = {capture.UP: "client", capture.DOWN: "server"}


class Audit:
    """The audit of one client and its server, packet by packet."""

    def __init__(self) -> None:
        self.flows: list[dict[str, Any]] = []
        self.violations: list[dict[str, Any]] = []
        self.open: dict[tuple[str, int], Flow] = {}  # by the sender's direction and the packet id
        self.done: dict[tuple[str, int], Flow] = {}  # the last answered flow, by the same key
        self.connection = ""
        self.seen_in: set[str] = set()  # the directions with packets in this connection
        self.ended = False
        self.asked: Counter[tuple[str, int]] = Counter()  # PUBLISHes in this connection, by sender and packet id
        self.answered: Counter[tuple[str, int]] = Counter()  # and their PUBACKs and PUBRECs

    def violation(self, packet: dict[str, Any], clause: str, text: str) -> None:
        """Add a violation."""
        base = {name: packet[name] for name in ("client", "connection", "time_us")}
        self.violations.append(base | {"by": SIDE[packet["direction"]], "clause": clause, "text": text})

    def take(self, packet: dict[str, Any]) -> None:
        """Check the next packet."""
        kind, direction = packet["kind"], packet["direction"]
        if packet["connection"] != self.connection:
            self.connection = packet["connection"]
            self.seen_in, self.ended = set(), False
            self.asked, self.answered = Counter(), Counter()
        first = direction not in self.seen_in
        self.seen_in.add(direction)
        if kind == "LOST":
            return
        if kind == "MALFORMED":
            self.violation(packet, "MQTT-4.8.0-1", packet["fault"])
            return
        if direction == capture.UP:
            if first and kind != "CONNECT":
                self.violation(packet, "MQTT-3.1.0-1", f"the connection begins with {kind}")
            if not first and kind == "CONNECT":
                self.violation(packet, "MQTT-3.1.0-2", "a second CONNECT")
            if self.ended:
                self.violation(packet, "MQTT-3.14.4-2", f"{kind} after DISCONNECT")
            self.ended = self.ended or kind == "DISCONNECT"
        elif first and kind not in {"CONNACK", "AUTH"}:
            self.violation(packet, "MQTT-3.2.0-1", f"the server begins with {kind}")
        if kind == "CONNACK" and packet["clean"]:
            self.end()  # a new session
        elif kind == "PUBLISH" and packet["qos"]:
            self._publish(packet)
        elif kind in {"PUBACK", "PUBREC", "PUBCOMP"}:
            self._answer(packet, self.open.get((OTHER[direction], packet["packet_id"])))
        elif kind == "PUBREL":
            self._release(packet, self.open.get((direction, packet["packet_id"])))

    def _publish(self, packet: dict[str, Any]) -> None:
        key = (packet["direction"], packet["packet_id"])
        self.asked[key] += 1
        flow = self.open.get(key)
        if flow is None:
            flow = self.open[key] = Flow(packet, packet["time_us"])
            done = self.done.get(key)
            if packet["dup"] and done is not None and done.packet["checksum"] == packet["checksum"]:
                flow.first_sent_us = done.first_sent_us  # its answer was captured, but the sender did not receive it
        elif flow.packet["checksum"] != packet["checksum"]:
            self.violation(packet, "MQTT-2.3.1-2", f"packet id {key[1]} carries another message while it is in flight")
            self.flows.append(flow.row(None))
            flow = self.open[key] = Flow(packet, packet["time_us"])
        else:
            if not packet["dup"]:
                self.violation(packet, "MQTT-3.3.1-1", f"packet id {key[1]} is sent again without DUP")
            if flow.released or (flow.received and flow.received_in == self.connection):
                self.violation(packet, "MQTT-4.3.3-1", f"PUBLISH {key[1]} is sent again after its PUBREC")
            elif flow.resent_in != self.connection and self.connection not in flow.connections:
                later = [
                    one for (way, _), one in self.open.items() if way == key[0] and one.resent_in == self.connection
                ]
                if any(other.first_sent_us > flow.first_sent_us for other in later):
                    self.violation(packet, "MQTT-4.6.0-1", f"PUBLISH {key[1]} is resent behind a later one")
                flow.resent_in = self.connection
            elif packet["level"] == 5:
                self.violation(packet, "MQTT-4.4.0-1", f"PUBLISH {key[1]} is resent on a live connection at level 5")
        flow.steps.append("PUBLISH+DUP" if packet["dup"] else "PUBLISH")
        flow.connections.add(self.connection)

    def _answer(self, packet: dict[str, Any], flow: Flow | None) -> None:
        kind, number = packet["kind"], packet["packet_id"]
        if kind != "PUBCOMP":
            self.answered[OTHER[packet["direction"]], number] += 1
        if flow is None:
            # A repeated PUBLISH or PUBREL is answered again.
            key = (OTHER[packet["direction"]], number)
            if kind != "PUBCOMP" and self.answered[key] > self.asked[key]:
                self.violation(packet, "MQTT-4.3.2-2", f"{kind} {number} answers nothing")
            return
        flow.steps.append(kind)
        flow.connections.add(self.connection)
        if (kind == "PUBACK") != (flow.packet["qos"] == 1):
            self.violation(packet, "MQTT-4.3.3-2", f"{kind} {number} answers a PUBLISH at QoS {flow.packet['qos']}")
        elif kind == "PUBREC":
            flow.received, flow.received_in = True, self.connection
        elif kind == "PUBCOMP" and not flow.released:
            self.violation(packet, "MQTT-4.3.3-2", f"PUBCOMP {number} before its PUBREL")
        else:
            key = (flow.packet["direction"], number)
            self.done[key] = self.open.pop(key)
            self.flows.append(flow.row(packet["time_us"]))

    def _release(self, packet: dict[str, Any], flow: Flow | None) -> None:
        if flow is None:
            return  # sent again after its PUBCOMP was lost: allowed
        flow.steps.append("PUBREL")
        flow.connections.add(self.connection)
        if not flow.received:
            self.violation(packet, "MQTT-4.3.3-1", f"PUBREL {packet['packet_id']} before its PUBREC")
        flow.released = True

    def end(self) -> None:
        """End the session, or the audit: flows that are open now are incomplete."""
        self.flows += [flow.row(None) for flow in self.open.values()]
        self.open, self.done = {}, {}


def audit(packets: Iterable[dict[str, Any]]) -> Audit:
    """Return the audit of one client's packets."""
    found = Audit()
    for packet in sorted(packets, key=lambda one: (one["time_us"], one["connection"], one["number"])):
        found.take(packet)
    found.end()
    return found


def audits(captured: Iterable[capture.Piece]) -> tuple[list[dict[str, Any]], dict[str, Audit]]:
    """Return the packets, and the audit of each client.

    A connection may continue in the next file, and a flow in the next connection: pass the pieces of all files at once.
    """
    connections: dict[str, list[capture.Piece]] = defaultdict(list)
    for piece in captured:
        connections[piece.connection].append(piece)
    packets: list[dict[str, Any]] = []
    for name in list(connections):
        packets += packets_of(connections.pop(name))
    clients: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for packet in packets:
        clients[packet["client"]].append(packet)
    return packets, {client: audit(some) for client, some in clients.items()}
