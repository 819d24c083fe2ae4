# mypy: ignore-errors
"""The board's side of the chip's figures: the same operations on an emulated Pico and on a unix port.

`measure(CASE, COUNT, REGION)` returns what each of COUNT operations took, in microseconds; `prepare(KIND, REGION)` makes the
journal that a case begins with. REGION is a call that opens the region. On a unix port: `chip.py measure CASE COUNT IMAGE`,
`chip.py prepare KIND 0 IMAGE`. Only the library's public calls are used.

The socket costs nothing: writes and reads are calls of a RingIO, which is C, and the broker's answers are made between the
measured stretches.
"""

import gc
import io
import sys
from time import ticks_diff, ticks_us

from micropython import RingIO

TOPIC = b"bench/01234567890123"  # 20 characters
PAYLOAD = b"x" * 64
MESSAGE = b"m" * 100
SECTORS, SECTOR_BYTES = 64, 4096
POLLS = 50  # more than an acknowledgement can take


class Socket(io.IOBase):
    """A socket in memory; the broker's side is `answer`."""

    def __init__(self, *_):
        self.incoming = RingIO(256)
        self.outgoing = RingIO(2048)
        self.write = self.outgoing.write
        self.read = self.incoming.read
        self.setblocking = self.connect = bool

    def readinto(self, room):
        """Read what there is; None where there is nothing."""
        return self.incoming.readinto(room) or None

    def setsockopt(self, *_):
        """There is nothing to set."""

    def ioctl(self, request, argument):
        """Poll: it can always be written."""
        return argument & (5 if self.incoming.any() else 4) if request == 3 else 0

    def answer(self):
        """Take the packets that were written, and answer each."""
        sent = self.outgoing.read()
        at = 0
        while at < len(sent):
            kind = sent[at] >> 4
            body = at + 2
            if sent[at + 1] & 0x80:
                body += 1  # no longer ones are written here
            at = body + (sent[at + 1] & 0x7F) + ((sent[at + 2] << 7) if body - at == 3 else 0)
            if kind == 1:
                self.incoming.write(b"\x20\x02\x00\x00")
            elif kind == 3 and sent[body - 2] & 6:
                kind = 4 if sent[body - 2] & 2 else 5
                id_at = body + 2 + sent[body + 1]
                self.incoming.write(bytes((kind << 4, 2, sent[id_at], sent[id_at + 1])))
            elif kind == 8:
                self.incoming.write(bytes((0x90, 3, sent[body], sent[body + 1], sent[at - 1])))
            elif kind == 6:
                self.incoming.write(bytes((0x70, 2, sent[body], sent[body + 1])))


class Network:
    """Stands for the module `socket`."""

    SOCK_STREAM = 1
    last = None

    @staticmethod
    def getaddrinfo(*_):
        """Know every name."""
        return [(2, 1, 0, "", ("", 1883))]

    class socket(Socket):  # noqa: N801
        """The one socket, where `Network.last` finds it."""

        def __init__(self, *_):
            super().__init__()
            Network.last = self


class Watch:
    """A stopwatch that knows what it costs itself."""

    def __init__(self):
        self.total = 0
        self.stretches = 0
        gc.collect()
        costs = []
        for _ in range(5):
            begin = ticks_us()
            costs.append(ticks_diff(ticks_us(), begin))
        self.own = min(costs)

    def add(self, begin, end):
        """Count a stretch."""
        self.total += ticks_diff(end, begin)
        self.stretches += 1

    def take(self):
        """Return what was counted, and begin again."""
        total = self.total - self.stretches * self.own
        self.total = self.stretches = 0
        return total


def connected(store, *subscription):
    """Return a client with a connection, and perhaps a subscription."""
    sys.modules["socket"] = Network
    from flashmqtt.client import Client

    client = Client("broker", 1883, b"bench", store)
    if subscription:
        client.subscribe(*subscription)
    client.start()
    for _ in range(POLLS):
        client.poll(0)
        if client.connected and not Network.last.outgoing.any():
            return client
        if Network.last:
            Network.last.answer()
    raise OSError("not connected")


def publish(store, qos, count):
    """Return what each message took, until it was acknowledged for good."""
    client = connected(store)
    link = Network.last
    watch = Watch()
    took = []
    for _ in range(count):
        begin = ticks_us()
        client.publish(TOPIC, PAYLOAD, qos)
        watch.add(begin, ticks_us())
        link.answer()
        polls = 0
        while qos and client.pending:
            begin = ticks_us()
            client.poll(0)
            watch.add(begin, ticks_us())
            link.answer()
            polls += 1
            if polls > POLLS:
                raise OSError("not acknowledged")
        took.append(watch.take())
    return took


def peer_client():
    """Return an umqtt.simple client, and its socket."""
    sys.modules["socket"] = Network
    if "usocket" not in sys.modules:
        sys.modules["usocket"] = Network
    from umqtt.simple import MQTTClient

    client = MQTTClient(b"bench", "broker")
    client.sock = link = Socket()
    return client, link


def peer(qos, count):
    """Return what each of umqtt.simple's messages took."""
    client, link = peer_client()
    watch = Watch()
    took = []
    for number in range(1, count + 1):
        link.incoming.write(bytes((0x40, 2, number >> 8, number & 255)) if qos else b"")
        begin = ticks_us()
        client.publish(TOPIC, PAYLOAD, False, qos)
        watch.add(begin, ticks_us())
        link.outgoing.read()
        took.append(watch.take())
    return took


def received(qos, number):
    """Return a PUBLISH packet as a broker sends it."""
    identity = bytes((number >> 8, number & 255)) if qos else b""
    body = bytes((0, len(TOPIC))) + TOPIC + identity + PAYLOAD
    return bytes((0x30 | qos << 1, len(body))) + body


def timed_receive(qos, count, link, take, got):
    """Return how long `take` took with each message that came alone, acknowledged; the handler appends to `got`."""
    watch = Watch()
    took = []
    for number in range(1, count + 1):
        link.incoming.write(received(qos, number))
        begin = ticks_us()
        take()
        watch.add(begin, ticks_us())
        if len(got) != number or len(link.outgoing.read() or b"") != 4 * qos:
            raise OSError("not received")
        took.append(watch.take())
    return took


def receive(qos, count):
    """Return how long each received message took, without the wait for it."""
    from flashmqtt.session.ram import RamStore

    got = []
    client = connected(RamStore(), TOPIC, qos, lambda message: got.append(1))
    client.poll(0)
    return timed_receive(qos, count, Network.last, client.poll, got)


def peer_receive(qos, count):
    """Return how long each message took that umqtt.simple received."""
    client, link = peer_client()
    got = []
    client.set_callback(lambda topic, payload: got.append(1))
    return timed_receive(qos, count, link, client.wait_msg, got)


def append(region, policy, count):
    """Return what each `append` of 100 bytes took."""
    from flashmqtt.journal import journal

    store = journal.Journal(region, policy=getattr(journal, policy))
    watch = Watch()
    took = []
    for _ in range(count):
        begin = ticks_us()
        store.append(MESSAGE, 100)
        watch.add(begin, ticks_us())
        took.append(watch.take())
    return took


def mount(region):
    """Return what a mount took."""
    from flashmqtt.journal.journal import Journal

    watch = Watch()
    begin = ticks_us()
    Journal(region)
    watch.add(begin, ticks_us())
    return [watch.take()]


def imports():
    """Return what the import of client and journal took."""
    sys.modules["socket"] = Network
    watch = Watch()
    begin = ticks_us()
    from flashmqtt.client import Client  # noqa: F401
    from flashmqtt.journal.journal import Journal  # noqa: F401

    watch.add(begin, ticks_us())
    return [watch.take()]


def measure(case, count, region):
    """Return what each operation of a case took, in microseconds."""
    if case == "import":
        return imports()
    if case == "mount":
        return mount(region())
    if case.startswith("append"):
        return append(region(), "DROP_OLDEST" if case == "append_full" else "REFUSE", count)
    qos = int(case[-1])
    if case.startswith("umqtt_in"):
        return peer_receive(qos, count)
    if case.startswith("umqtt"):
        return peer(qos, count)
    if case.startswith("in"):
        return receive(qos, count)
    if case.startswith("ram"):
        from flashmqtt.session.ram import RamStore

        return publish(RamStore(), qos, count)
    from flashmqtt.journal.journal import Journal

    return publish(Journal(region()), qos, count)


def prepare(kind, region):
    """Make a journal: `empty`, with `some` messages (300), or `full`: it went round and drops the oldest."""
    from flashmqtt.journal import journal

    store = journal.Journal(region(), policy=journal.DROP_OLDEST)
    if kind == "some":
        for _ in range(300):
            store.append(MESSAGE, 100)
    elif kind == "full":
        while store.dropped < 100:
            store.append(MESSAGE, 100)


class Memory:
    """A block device in memory, as rp2.Flash is one: 64 sectors, and bits are only cleared."""

    def __init__(self, path):
        self.cells = bytearray(b"\xff" * SECTORS * SECTOR_BYTES)
        try:
            with open(path, "rb") as file:
                file.readinto(self.cells)
        except OSError:
            pass
        self._view = memoryview(self.cells)

    def readblocks(self, block, buf, offset=0):
        """Fill buf."""
        at = block * SECTOR_BYTES + offset
        buf[:] = self._view[at : at + len(buf)]

    def writeblocks(self, block, buf, offset=0):
        """Clear bits."""
        at = block * SECTOR_BYTES + offset
        end = at + len(buf)
        both = int.from_bytes(self._view[at:end], "little") & int.from_bytes(buf, "little")
        self.cells[at:end] = both.to_bytes(len(buf), "little")

    def ioctl(self, request, argument):
        """Tell the size, or erase."""
        if request == 6:
            at = argument * SECTOR_BYTES
            self.cells[at : at + SECTOR_BYTES] = b"\xff" * SECTOR_BYTES
        return {4: SECTORS, 5: SECTOR_BYTES}.get(request, 0)


def main(what, case, count, path):
    """Run on a unix port."""
    device = Memory(path)

    def opened():
        from flashmqtt.flash.block import BlockRegion

        return BlockRegion(device)

    if what == "prepare":
        prepare(case, opened)
        with open(path, "wb") as file:
            file.write(device.cells)
    elif case != "nothing":
        print(measure(case, count, opened))


if __name__ == "__main__" and len(sys.argv) == 5:
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
