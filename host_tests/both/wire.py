"""What the session's tests share: packets written by hand, a broker's end of a connection, and a store that loses its power.

The packets are those of the tests' own codec, at levels 3 and 4; at level 5 where a test says so.
"""

from flashmqtt.connection import NOTHING, OUTPUT, Connection
from flashmqtt.errors import StoreWorn
from flashmqtt.session.ram import RamStore
from flashmqtt.session.session import Session
from tools.proof import packets
from tools.proof.packets import PING as PINGREQ  # noqa: F401 - the tests take it from here, as some of the next
from tools.proof.packets import PONG as PINGRESP  # noqa: F401
from tools.proof.packets import PUBACK, PUBCOMP, PUBREC, ack, packet, text, unsuback  # noqa: F401
from tools.proof.packets import word as number

DISCONNECT = packets.disconnect()


def connack(present=0, code=0):
    return packet(0x20, bytes([present, code]))


def publish(topic, payload, qos=0, packet_id=0, dup=0, retain=0):
    return packets.publish(topic, payload, qos, packet_id, 4, retain, dup)


def puback(packet_id):
    return ack(PUBACK, packet_id)


def pubrec(packet_id):
    return ack(PUBREC, packet_id)


def pubrel(packet_id, dup=0):
    return packet(0x62 | dup << 3, number(packet_id))


def pubcomp(packet_id):
    return ack(PUBCOMP, packet_id)


def suback(packet_id, *codes):
    return packets.suback(packet_id, codes)


def split(octets):
    """Cut a stream into packets."""
    whole, rest = packets.split(octets)
    assert not rest, "half a packet"
    return whole


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

    def offered(self):
        """Return the bytes that may leave now."""
        output = self.connection.output
        n = output.offer()
        return bytes(output.buf[output.start : output.start + n])

    def _take(self):
        octets = self.offered()
        self.connection.output.sent(len(octets), self.now)
        return octets

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
    """Return a peer over a session over a store; settled: not the very first connection of this store.

    A settled store has had one message: the next one's packet id is 2.
    """
    names = ("out_bytes", "packet_bytes", "retry_ms", "republish", "remember", "max_qos", "refuse_after")
    chosen = {name: options.pop(name) for name in names if name in options}
    session = Session(settle(store or RamStore()) if settled else store or RamStore(), level, window, **chosen)
    made = Peer(session, **options)
    if settled:
        session._may_be_older = False  # an earlier connection of this store's began the broker's session
        session.write_note(made.connection.client_id, made.connection.broker)
    return made


def settle(store):
    """Use up the first sequence number."""
    if store.next_seq == 1:
        store.finish(store.append(b"-", 1))
    return store


def connected(*arguments, **options):
    """Return a peer (its arguments) that has accepted the connection."""
    broker = peer(*arguments, **options)
    broker.connect()
    return broker


def in_flight(qos, *arguments, **options):
    """Return a connected peer that has received a message of ours, and not answered: a, x, packet id 2 and `handle`."""
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
    """A RAM store that behaves over a power cut as the journal does.

    What was appended or held is durable at once, and with it all that came before; marks and discards also with `sync`, finishes
    also with `flush`. `policy`: "refuse", "newest" or "oldest", which drops the four oldest.
    """

    volatile = False

    def __init__(self, limit=100, hold_limit=40, policy="refuse"):
        super().__init__(limit if policy == "refuse" else 1000, hold_limit)
        self.most = limit
        self.policy = policy
        self.bodiless = set()  # messages that were dropped while they were marked
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
        held = [
            (key, bytes(body[:n]))
            for key, body, n in zip(self._keys, self._held, self._held_lengths)  # noqa: B905
        ]
        self._durable = (self.low, self.next_seq, bodies, bytes(self._flags), held, self.note, set(self.bodiless))
        self._durable += (self.dropped, self.damaged)

    def _write(self):
        """Every write to the flash comes here first: a test may let it fail."""
        if self.worn:
            raise StoreWorn("worn")

    def _make_room(self):
        """Do what the policy says about a full store; return whether there is room."""
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
        """Lose the power; return the store as the next mount finds it."""
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
            after._held.append(bytearray(body))
            after._held_lengths.append(len(body))
        after._keep()
        return after
