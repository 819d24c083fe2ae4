"""For the session's tests: packets written by hand, the broker's end of a connection, and a store for power cuts.

The packets come from the tests' own codec. They are packets of levels 3 and 4, unless a test names level 5.
"""

from flashmqtt.connection import NOTHING, OUTPUT, Connection
from flashmqtt.errors import CLOSED_BY_PEER, ConnectionLost, StoreWorn
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from flashmqtt.session.subscriptions import requests_of
from tools.proof import packets
from tools.proof.packets import PING as PINGREQ  # noqa: F401 - tests import it from here, and some of the next names
from tools.proof.packets import PONG as PINGRESP  # noqa: F401
from tools.proof.packets import PUBACK, PUBCOMP, PUBREC, ack, packet, text, unsuback  # noqa: F401
from tools.proof.packets import word as number

DISCONNECT = packets.disconnect()


def connack(present=0, code=0, level=4):
    return packets.connack(level, present, code)


def publish(topic, payload, qos=0, packet_id=0, dup=0, retain=0):
    return packets.publish(topic, payload, qos, packet_id, 4, retain, dup)


def puback(packet_id):
    return ack(PUBACK, packet_id)


def pubrec(packet_id):
    return ack(PUBREC, packet_id)


def pubrel(packet_id, dup=0):
    return packet(0x62 | dup << 3, number(packet_id))


def whole(topic, payload, qos, packet_id):
    """Return the packets of a message: at QoS 2 also its PUBREL."""
    message = publish(topic, payload, qos, packet_id)
    return [message, pubrel(packet_id)] if qos == 2 else [message]


class Taker:
    """A socket that takes up to `most` bytes of each write, and keeps what it was offered last."""

    def __init__(self, most):
        self.most = most
        self.offered = b""

    def write(self, buf, start, n):
        self.offered = bytes(buf[start : start + n])
        return min(n, self.most)


def take(connection, now, most=1 << 29):
    """Take up to `most` bytes of a connection's output, as a socket does; return them."""
    sock = Taker(most)
    if connection.output.end:
        connection.output.write_to(sock, now)
    return sock.offered[:most]


def pubcomp(packet_id):
    return ack(PUBCOMP, packet_id)


def suback(packet_id, *codes):
    return packets.suback(packet_id, codes)


def whole_packets(octets):
    """Return the complete packets of a stream, and the rest."""
    found = []
    start = 0
    while end := packets.packet_end(octets, start):
        found.append(bytes(octets[start:end]))
        start = end
    return found, octets[start:]


def split(octets):
    """Cut a stream into packets."""
    whole, rest = whole_packets(octets)
    assert not rest, "the last packet is incomplete"
    return whole


def id_of(packet):
    """Return the packet id of a packet that is not a PUBLISH."""
    return packet[2] << 8 | packet[3]


class Peer:
    """The broker's end of one connection: `give` sends packets to the client, `took` returns the packets that it wrote."""

    def __init__(self, session, client_id=b"me", **options):
        self.session = session
        self.connection = Connection(session, client_id, **options)
        self.now = 1000
        self.events = []
        self.messages = []
        self.handled = []  # (event, handle)
        self.on_message = None

    def start(self):
        """Begin a connection; return what the client sends, which is CONNECT."""
        self.connection.start(self.now)
        return self.took()

    def connect(self, present=0):
        """Connect and send CONNACK; return the packets that the client sends after CONNECT."""
        first = self.start()
        assert first[0][0] == 0x10, first
        self.connect_packet = first[0]
        self.give(connack(present))
        return self.took()

    def give(self, *packets):
        """Send packets to the client, and let it process them."""
        octets = b"".join(packets)
        while octets:
            room = self.connection.decoder.room()
            n = min(len(room), len(octets))
            room[:n] = octets[:n]
            octets = octets[n:]
            self.connection.decoder.received(n)
            self.connection.received_ms = self.now
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
                message = self.session.message
                self.messages.append((message.topic, message.payload, message.qos, message.retain, message.dup))
                if self.on_message:
                    self.on_message(message)
            else:
                self.handled.append((event, self.session.handle))

    def offered(self):
        """Return the bytes that the client may send now."""
        sock = Taker(0)
        self.connection.output.write_to(sock, self.now)
        return sock.offered

    def _take(self):
        return take(self.connection, self.now)

    def took(self):
        """Return the packets that the client has written since the last call."""
        octets = getattr(self, "full", b"")
        self.full = b""
        while True:
            self.connection.pump(self.now)
            more = self._take()
            if not more:
                return split(octets)
            octets += more

    def drop(self):
        """Cut the connection."""
        self.connection.close()

    def fail(self):
        """Let the broker close the connection; the link reports that first."""
        self.session.failed(ConnectionLost(CLOSED_BY_PEER))
        self.drop()


def peer(store=None, window=4, level=4, settled=True, **options):
    """Return a peer whose session uses this store; settled: the store was used in an earlier connection.

    A settled store has had one message, so the next packet id is 2.
    """
    names = ("out_bytes", "packet_bytes", "retry_ms", "republish", "remember", "max_qos", "refuse_after")
    chosen = {name: options.pop(name) for name in names if name in options}
    session = Session(settle(store or RamStore()) if settled else store or RamStore(), level, window, **chosen)
    made = Peer(session, **options)
    if settled:
        session._may_be_older = False  # an earlier connection with this store made the broker's session
        session.note.begin(made.connection.client_id, made.connection.broker)
    return made


def settle(store):
    """Use up the first sequence number."""
    if store.next_seq == 1:
        store.finish(store.append(b"-", 1))
    return store


def connected(*arguments, **options):
    """Return a peer with these arguments, whose broker has accepted the connection."""
    broker = peer(*arguments, **options)
    broker.connect()
    return broker


def in_flight(qos, *arguments, **options):
    """Return a connected peer whose broker has not answered our message: topic a, payload x, packet id 2, handle `handle`."""
    broker = connected(*arguments, **options)
    broker.handle = broker.session.publish(b"a", b"x", qos)
    broker.took()
    return broker


def past_pubrec(*arguments, **options):
    """Return a connected peer whose broker has answered our QoS 2 message by PUBREC, and received PUBREL."""
    broker = in_flight(2, *arguments, **options)
    broker.give(pubrec(2))
    broker.took()
    return broker


def subscribed(filter_, qos, *arguments, **options):
    """Return a connected peer whose broker has granted this subscription."""
    broker = connected(*arguments, **options)
    requests_of(broker.session).want(filter_, qos)
    broker.give(suback(id_of(broker.took()[0]), qos))
    return broker


class CutStore(RamStore):
    """A RAM store that keeps the same state over a power cut as the journal.

    `append` and `hold` are durable at once, and make all earlier changes durable. `sync` does so for marks and discards, `flush`
    for finishes, too. `policy`: "refuse", "newest" or "oldest"; "oldest" drops the four oldest messages.
    """

    volatile = False

    def __init__(self, limit=100, hold_limit=40, policy="refuse"):
        super().__init__(limit if policy == "refuse" else 1000, hold_limit)
        self.most = limit
        self.policy = policy
        self.bodiless = set()  # marked messages that were dropped
        self.worn = False
        self._dirty = False
        self._keep()

    def _keep(self):
        self._dirty = False
        bodies = {}
        for seq in range(self.low, self.next_seq):
            body = self._bodies[seq % self.limit]
            if body is not None:
                bodies[seq] = bytes(body[: self._lengths[seq % self.limit]])
        held = [(key, bytes(self._held[key][: self._held_lengths[key]])) for key in self._keys]
        self._durable = (self.low, self.next_seq, bodies, bytes(self._flags), held, self.note, set(self.bodiless))
        self._durable += (self.dropped, self.damaged)

    def _write(self):
        """Called before every write to the flash; a test can let it fail."""
        if self.worn:
            raise StoreWorn("worn")

    def _make_room(self):
        """Apply the policy if the store is full; return whether there is room."""
        if self.policy == "refuse":
            return True
        live = range(self.low, self.next_seq)
        bodies = [seq for seq in live if self._bodies[seq % self.limit] and seq not in self.bodiless]
        if len(bodies) < self.most:
            return True
        if self.policy == "newest":
            self.dropped += 1
            return False
        if self.on_drop:
            self.on_drop(bodies[0], bodies[3] + 1)
        for seq in bodies[:4]:
            if seq - self.low < 32 and self._flags[seq & 31] & 2:
                self._lengths[seq % self.limit] = 0
                self.bodiless.add(seq)
            else:
                self.dropped += 1
                self.finish(seq)
        return True

    def append(self, buf, length):
        self._write()
        if not self._make_room():
            return 0
        seq = super().append(buf, length)
        self._keep()
        return seq

    def begin(self, length):
        return self._make_room() and super().begin(length)

    def can_hold(self, length):
        return not self.worn and super().can_hold(length)

    def hold(self, key, buf, length):
        self._write()
        super().hold(key, buf, length)
        self._keep()

    def mark(self, seq):
        super().mark(seq)
        self._dirty = True

    def unmark(self, seq):
        super().unmark(seq)
        self._dirty = True

    def discard(self, key):
        super().discard(key)
        self._dirty = True

    def sync(self):
        if self._dirty:
            self._write()
            self._keep()

    def flush(self):
        self._write()
        self._keep()

    def write_note(self, note):
        self._write()
        super().write_note(note)
        self._keep()

    def cut(self):
        """Cut the power; return the store as the next mount finds it."""
        after = CutStore(self.most, self.hold_limit, self.policy)
        low, after.next_seq, bodies, flags, held, after.note, after.bodiless, after.dropped, after.damaged = (
            self._durable
        )
        after.low = low
        after.boot = self.boot + 1
        after.fresh = False
        after._flags = bytearray(flags)
        for seq in bodies:
            after._bodies[seq % self.limit] = bytearray(bodies[seq])
            after._lengths[seq % self.limit] = len(bodies[seq])
        for key, body in held:
            after._keys.append(key)
            after._held[key] = bytearray(body)
            after._held_lengths[key] = len(body)
        after._keep()
        return after
