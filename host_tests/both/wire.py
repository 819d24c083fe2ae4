"""What the session's tests share: packets written by hand, a broker's end of a connection, and a store that loses its power.

The codec here is a second one, on purpose: one shared with the code under test would hide shared mistakes. Levels 3 and 4; level
5 where a test says so.
"""

from flashmqtt.connection import NOTHING, OUTPUT, Connection
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session


def length(n):
    out = bytearray()
    while True:
        n, digit = n // 128, n % 128
        out.append(digit | 128 if n else digit)
        if not n:
            return bytes(out)


def packet(head, *parts):
    body = b"".join(parts)
    return bytes([head]) + length(len(body)) + body


def number(n):
    return bytes([n >> 8, n & 255])


def text(s):
    return number(len(s)) + s


def connack(present=0, code=0):
    return packet(0x20, bytes([present, code]))


def publish(topic, payload, qos=0, packet_id=0, dup=0, retain=0):
    return packet(0x30 | dup << 3 | qos << 1 | retain, text(topic), number(packet_id) if qos else b"", payload)


def puback(packet_id):
    return packet(0x40, number(packet_id))


def pubrec(packet_id):
    return packet(0x50, number(packet_id))


def pubrel(packet_id, dup=0):
    return packet(0x62 | dup << 3, number(packet_id))


def pubcomp(packet_id):
    return packet(0x70, number(packet_id))


def suback(packet_id, *codes):
    return packet(0x90, number(packet_id), bytes(codes))


def unsuback(packet_id):
    return packet(0xB0, number(packet_id))


PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"
DISCONNECT = b"\xe0\x00"


def split(octets):
    """Cut a stream into packets."""
    packets = []
    at = 0
    while at < len(octets):
        n = shift = 0
        body = at + 1
        while True:
            n |= (octets[body] & 127) << shift
            shift += 7
            body += 1
            if octets[body - 1] < 128:
                break
        assert body + n <= len(octets), "half a packet"
        packets.append(bytes(octets[at : body + n]))
        at = body + n
    return packets


def id_of(packet):
    """The packet id of anything but a PUBLISH."""
    return packet[2] << 8 | packet[3]


class Peer:
    """A broker's end of one connection: what it gives is processed, what it took is kept as packets."""

    def __init__(self, session, client_id=b"me", **options):
        self.session = session
        self.connection = Connection(session, client_id, **options)
        self.now = 1000
        self.events = []
        self.messages = []
        self.handled = []  # (event, handle)
        self.on_message = None

    def connect(self, present=0):
        """Start, accept; return the packets that came after CONNECT."""
        self.connection.start(self.now)
        first = self.took()
        assert first[0][0] == 0x10, first
        self.connect_packet = first[0]
        self.give(connack(present))
        return self.took()

    def give(self, *packets):
        """Give bytes, a packet or several, and process them."""
        octets = b"".join(packets)
        while octets:
            room = self.connection.decoder.room()
            n = min(len(room), len(octets))
            room[:n] = octets[:n]
            octets = octets[n:]
            self.connection.received(n, self.now)
            self.process()

    def process(self):
        self.full = b""
        while True:
            event = self.connection.process(self.now)
            if event == NOTHING:
                return
            if event == OUTPUT:
                self.full += self._take()
                continue
            self.events.append(event)
            if event == 3:
                message = self.connection.message
                self.messages.append((message.topic, message.payload, message.qos, message.retain, message.dup))
                if self.on_message:
                    self.on_message(message)
            else:
                self.handled.append((event, self.session.handle))

    def _take(self):
        output = bytes(self.connection.output())
        self.connection.sent(len(output), self.now)
        return output

    def took(self):
        """Return the packets that the client has written since."""
        octets = getattr(self, "full", b"")
        self.full = b""
        while True:
            self.connection.pump(self.now)
            more = self._take()
            if not more:
                return split(octets)
            octets += more

    def drop(self):
        """The connection is cut."""
        self.connection.close()


def peer(store=None, window=4, level=4, settled=True, **options):
    """Return a peer over a session over a store; settled: not the very first connection of this store."""
    names = ("out_bytes", "packet_bytes", "retry_ms", "republish", "remember")
    chosen = {name: options.pop(name) for name in names if name in options}
    session = Session(store or RamStore(12), level, window, **chosen)
    if settled:
        session.settle_down()
    return Peer(session, **options)


def connected(*arguments, **options):
    """Return a peer (its arguments) that has accepted the connection."""
    broker = peer(*arguments, **options)
    broker.connect()
    return broker


def in_flight(qos, *arguments, **options):
    """Return a connected peer that has received a message of ours, and not answered: a, x, packet id 2; `handle` is its handle.

    (1 went to the session's own note.)
    """
    broker = connected(*arguments, **options)
    broker.handle = broker.session.publish(b"a", b"x", qos)
    broker.took()
    return broker


def past_pubrec(*arguments, **options):
    """Return a connected peer that has answered such a message of QoS 2 by PUBREC, and received the PUBREL."""
    broker = in_flight(2, *arguments, **options)
    broker.give(pubrec(2))
    broker.took()
    return broker


def subscribed(filter_, qos, *arguments, **options):
    """Return a connected peer that has granted this subscription."""
    broker = connected(*arguments, **options)
    broker.session.subscribe(filter_, qos)
    broker.give(suback(id_of(broker.took()[0]), qos))
    return broker


class CutStore(RamStore):
    """A RAM store that behaves over a power cut as the journal does; releases that were not flushed are forgotten again."""

    def __init__(self, slots=12, limit=100):
        super().__init__(slots, limit)
        self.lazy = []  # (seq, body, mark, held) released, not yet durable
        self.olds = set()
        self.boot = 1

    def release(self, slot):
        seq = self._seqs[slot]
        body = bytes(self._bodies[seq][: self._lengths[seq]])
        self.lazy.append((seq, body, self._marks[slot], self._held[slot]))
        super().release(slot)

    def append(self, buf, length):
        self.lazy = []
        return super().append(buf, length)

    def hold(self, buf, length):
        self.lazy = []
        return super().hold(buf, length)

    def mark(self, slot, value):
        self.lazy = []
        super().mark(slot, value)

    def flush(self):
        self.lazy = []

    def old(self, slot):
        return self._seqs[slot] in self.olds

    def cut(self):
        """Lose the power; return the store as the next mount finds it."""
        after = CutStore(self.slots, self.limit)
        after.boot = self.boot + 1
        after.fresh = False
        after.next_seq = self.next_seq
        after.stored = self.stored
        for seq in self._bodies:
            after._bodies[seq] = bytearray(self._bodies[seq])
            after._lengths[seq] = self._lengths[seq]
        opened = [
            (self._seqs[slot], self._marks[slot], self._held[slot]) for slot in range(self.slots) if self._seqs[slot]
        ]
        for seq, body, mark, held in self.lazy:
            after._bodies[seq] = bytearray(body)
            after._lengths[seq] = len(body)
            opened.append((seq, mark, held))
        queue = list(self._queue)
        slot = 0
        for seq, mark, held in sorted(opened):
            if mark or held:
                after._open(slot, seq, held)
                after._marks[slot] = mark
                slot += 1
            else:
                queue.append(seq)
        after._queue = sorted(queue)
        after.olds = set(after._bodies)
        return after
