"""A random simulation of the session: an application, a link that loses whole connections, power cuts, and a model of a broker.

All random choices come from one seed, so a failing simulation can be repeated. The broker is written from the standard, has its
own codec, and keeps its session as a broker with persistence does. `verdict` checks the results.
"""

from flashmqtt.connection import CLOSED, MESSAGE, NOTHING, OPEN, OUTPUT, REFUSED, Connection
from flashmqtt.errors import ConnectionLost
from flashmqtt.session.session import Session
from wire import connack, number, packet, puback, pubcomp, pubrec, pubrel, take, text, whole_packets


class Random:
    """A small random number generator that gives the same numbers on both interpreters."""

    def __init__(self, seed):
        self.state = seed * 7919 + 12345

    def below(self, n):
        self.state = (self.state * 1103515 + 12347) & 0x3FFFFFFF
        return (self.state >> 8) % n


class Broker:
    """A broker with one client; it never loses the client's session."""

    def __init__(self, level, window=5):
        self.level = level
        self.window = window
        self.known = False
        self.received = []  # (qos, payload) of the messages that the broker has accepted, in order
        self.releasing = {}  # packet id -> payload of QoS 2 messages: PUBREC sent, PUBREL not received
        self.queue = []  # (qos, payload) not yet sent to the client
        self.flying = []  # messages in flight: [packet id, qos, payload, released]
        self.next_id = 1
        self.input = b""
        self.output = b""
        self.online = False

    def drop(self):
        self.input = self.output = b""
        self.online = False

    def take(self, octets):
        whole, self.input = whole_packets(self.input + octets)
        for one in whole:
            at = 1
            while one[at] > 127:
                at += 1
            self.packet(one[0] >> 4, one, at + 1)

    def packet(self, kind, one, at):
        extra = b"\0" if self.level == 5 else b""
        if kind == 1:
            if one[9 if self.level > 3 else 11] & 2:
                self.known = False
                self.releasing = {}
                self.flying = []
            self.online = True
            self.output += (
                connack(1 if self.known and self.level > 3 else 0)
                if self.level < 5
                else packet(0x20, bytes([1 if self.known else 0, 0]), extra)
            )
            self.known = True
            for flight in self.flying:
                self.send(flight, 8)
            return
        assert self.online, "a packet before CONNECT"
        if kind == 3:
            qos = one[0] >> 1 & 3
            end = at + 2 + (one[at] << 8 | one[at + 1])
            if qos:
                packet_id = one[end] << 8 | one[end + 1]
                end += 2
            payload = one[end + len(extra) :]
            if qos == 2:
                if packet_id not in self.releasing:
                    self.releasing[packet_id] = payload
                else:
                    assert self.releasing[packet_id] == payload, "a packet id in use was used for another message"
                self.output += pubrec(packet_id)
            else:
                self.received.append((qos, payload))
                if qos:
                    self.output += puback(packet_id)
            return
        if kind == 12:
            self.output += b"\xd0\0"
            return
        if kind == 14:
            self.drop()
            return
        packet_id = one[at] << 8 | one[at + 1]
        if kind == 6:
            if packet_id in self.releasing:
                self.received.append((2, self.releasing.pop(packet_id)))
            self.output += pubcomp(packet_id)
        elif kind in (4, 5, 7):
            for flight in self.flying:
                if flight[0] == packet_id:
                    if kind == 5:
                        assert flight[1] == 2
                        flight[3] = True
                        self.send(flight, 0)
                    else:
                        assert kind == (4 if flight[1] == 1 else 7)
                        self.flying.remove(flight)
                    break

    def send(self, flight, dup):
        packet_id, qos, payload, released = flight
        if released:
            self.output += pubrel(packet_id)
        else:
            extra = b"\0" if self.level == 5 else b""
            self.output += packet(0x30 | dup | qos << 1, text(b"t"), number(packet_id) if qos else b"", extra, payload)

    def work(self):
        """Send as many queued messages as the window allows."""
        while self.online and self.queue and len(self.flying) < self.window:
            qos, payload = self.queue.pop(0)
            self.next_id = self.next_id % 11 + 1  # only 11 packet ids, so that they are soon reused
            while self.next_id in [one[0] for one in self.flying]:
                self.next_id = self.next_id % 11 + 1
            flight = [self.next_id, qos, payload, False]
            if qos:
                self.flying.append(flight)
            self.send(flight, 0)


class World:
    """One board, one broker, and random events for both.

    `open_store(world)` returns the store as it is after a power cut, and an empty store at the first call.
    """

    def __init__(self, seed, open_store, level=4, window=4, broker_window=4, hold_limit=40):
        self.random = Random(seed)
        self.refuse_after = 5 * (seed & 1)  # half of the simulations send suspect messages alone
        self.open_store = open_store
        self.level = level
        self.window = window
        self.hold_limit = hold_limit
        self.broker = Broker(level, broker_window)
        self.now = 1000
        self.published = []  # (qos, payload) of the messages whose publish() returned
        self.count = 0
        self.taken = []  # (qos, payload) of the messages handed over to the application
        self.sent = []  # (qos, payload) of the messages that the broker had for the client
        self.excused = []  # handed over, but the power was cut before the discard was durable: a repeat is allowed
        self.unsure = []
        self.cuts = self.drops = 0
        self.maybe = []  # the power was cut inside publish(): the message may be stored or not
        self.up = b""
        self.boot()

    def boot(self):
        self.store = self.open_store(self)
        five = None
        if self.level == 5:
            from flashmqtt.session.level5 import Level5

            five = Level5()
        self.session = Session(self.store, self.level, self.window, 128, 128, refuse_after=self.refuse_after)
        self.connection = Connection(self.session, b"me", buffer_bytes=128, five=five, response_ms=0, keep_alive_s=0)
        self.up = b""

    # --- the random events ---

    def publish(self):
        self.count += 1
        qos = 1 + self.random.below(2)
        payload = b"%d" % self.count
        if self.random.below(12) == 0:
            payload += b"." * 300  # longer than the buffers
        self.maybe.append((qos, payload))
        self.session.publish(b"t", payload, qos)
        self.maybe.remove((qos, payload))
        self.published.append((qos, payload))
        self.connection.pump(self.now)

    def inbound(self):
        self.count += 1
        qos = self.random.below(3)
        if qos == 0 and not self.broker.online:
            return
        self.broker.queue.append((qos, b"%d" % self.count))
        self.sent.append((qos, b"%d" % self.count))
        self.broker.work()

    def connect(self):
        if self.connection.state == CLOSED:
            self.connection.start(self.now)

    def process(self):
        connection = self.connection
        if connection.state == CLOSED:
            return
        while True:
            event = connection.process(self.now)
            if event == NOTHING:
                return
            assert event != REFUSED, "a message was refused because of a lost link"
            if event == OUTPUT:
                self.write(1000)
            elif event == MESSAGE:
                one = (self.session.message.qos, self.session.message.payload)
                assert self.session.message.topic == "t"
                self.unsure = []  # the messages handed over before are durably discarded
                self.taken.append(one)
                if one[0] == 2:
                    self.unsure.append(one)
                if self.random.below(2):
                    self.session.acknowledge()
            elif event == 8:
                self.write(1000)
                self.broker.take(self.up)
                self.drop()
                self.connect()
                return

    def write(self, n):
        if self.connection.output.end:
            self.up += take(self.connection, self.now, n)
            self.unsure = []  # `write_to` has made all changes durable

    def move_up(self):
        """The client writes some bytes, and the broker reads some of them."""
        self.write(1 + self.random.below(60))
        n = min(len(self.up), 1 + self.random.below(60))
        self.broker.take(self.up[:n])
        self.up = self.up[n:]
        self.broker.work()

    def move_down(self):
        """The client reads some of the bytes that the broker wrote."""
        broker = self.broker
        n = min(len(broker.output), 1 + self.random.below(40))
        if n and self.connection.state:
            room = self.connection.decoder.room()
            n = min(n, len(room))
            room[:n] = broker.output[:n]
            broker.output = broker.output[n:]
            self.connection.decoder.received(n)
            self.connection.received_ms = self.now
            self.process()

    def drop(self):
        if self.connection.state:
            self.session.failed(ConnectionLost("by the test"))
        self.connection.close()
        self.unsure = []
        self.broker.drop()
        self.up = b""
        self.drops += 1

    def cut(self):
        """Cut the power: everything outside the store is lost, and so are the bytes in transit."""
        self.excused += self.unsure
        self.unsure = []
        self.broker.drop()
        self.cuts += 1
        self.boot()

    def check_time(self):
        """Let the connection act on its deadlines, after time has passed."""
        if self.connection.state == OPEN:
            self.connection.check(self.now)

    def step(self):
        self.now += self.random.below(5)
        if self.random.below(20) == 0:
            self.now += 600
            self.check_time()
        choice = self.random.below(100)
        if choice < 12:
            self.publish()
        elif choice < 22:
            self.inbound()
        elif choice < 55:
            self.move_up()
        elif choice < 88:
            self.move_down()
        elif choice < 95:
            self.connect()
        elif choice < 98:
            self.drop()
        else:
            self.cut()

    def settle(self):
        """Run without further faults until all messages are delivered."""
        for turn in range(20000):
            self.now += 1
            self.connect()
            if turn % 20 == 0:
                self.now += 600
                self.check_time()
            self.move_up()
            self.move_down()
            self.process()
            broker = self.broker
            busy = (
                self.session.store.waiting
                or self.up
                or broker.output
                or broker.flying
                or broker.queue
                or self.connection.output.end
            )
            if not busy and self.connection.state == OPEN:
                return
        raise AssertionError("messages are not delivered in time: pending %d" % self.session.store.waiting)

    def run(self, steps):
        self.settle()  # the clean start of an empty store discards the broker's session: let it happen before the first step
        for _ in range(steps):
            self.step()
        self.settle()
        self.verdict()

    def verdict(self):
        for qos in (1, 2):
            wanted = [payload for q, payload in self.published if q == qos]
            got = [payload for q, payload in self.broker.received if q == qos]
            for one in self.maybe:  # it may arrive once, in its order
                if one[1] in got:
                    wanted.append(one[1])
                    wanted.sort(key=_number)
                    assert qos == one[0]
            if qos == 2:
                assert got == wanted, ("QoS 2 out", missing(wanted, got))
            else:
                assert firsts(got) == wanted, ("QoS 1 out", missing(wanted, firsts(got)))
        for qos in (1, 2):
            wanted = [payload for q, payload in self.sent if q == qos]
            got = [payload for q, payload in self.taken if q == qos]
            if qos == 2:
                for one in self.excused:
                    if got.count(one[1]) > 1:
                        got.remove(one[1])
                assert sorted(got) == sorted(wanted), ("QoS 2 in", missing(wanted, got))
            else:
                assert sorted(firsts(got)) == sorted(wanted), ("QoS 1 in", missing(wanted, got))
        for one in self.taken:
            assert one in self.sent, ("received, but never sent", one)


def _number(payload):
    return int(payload.split(b".")[0])


def firsts(items):
    seen = set()
    return [one for one in items if not (one in seen or seen.add(one))]


def missing(wanted, got):
    return (
        "lost",
        [one for one in wanted if one not in got][:5],
        "twice",
        [one for one in firsts(got) if got.count(one) > 1][:5],
        "order",
        [pair for pair in zip(wanted, got) if pair[0] != pair[1]][:3],  # noqa: B905,
    )
