# mypy: ignore-errors
"""The board's side of the chip's figures: `measure(CASE, COUNT, REGION)` returns the time of each of COUNT operations, in
microseconds. REGION is a function that opens the journal's region. Only the library's public calls are used.

The socket costs almost nothing: its writes, and its reads of available bytes, are calls of a RingIO, which is C code as
MicroPython's own socket is. The broker's answers are made between the measured intervals.
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
POLLS = 50  # more polls than an acknowledgement can need


class Socket(io.IOBase):
    """A socket in memory; the broker's side is `answers`."""

    def __init__(self, *_):
        self.incoming = RingIO(256)
        self.outgoing = RingIO(2048)
        self.write = self.outgoing.write
        self.read = self.incoming.read
        self.setblocking = self.connect = bool

    def available(self, room):
        """Read the available bytes; return None if there are none."""
        return self.incoming.readinto(room) or None

    readinto = available

    def arrive(self, octets):
        """Make these bytes available to the measured operation, which must take them all with one read.

        This read is a call of C code, like that of MicroPython's socket; another one would see the end of the stream.
        """
        self.incoming.write(octets)
        self.readinto = self.incoming.readinto if octets else self.available

    def setsockopt(self, *_):
        """Do nothing: this socket has no options."""

    def ioctl(self, request, argument):
        """Answer a poll: the socket is always writable."""
        return argument & (5 if self.incoming.any() else 4) if request == 3 else 0

    def answers(self):
        """Read the packets that the client wrote; return the answers."""
        sent = self.outgoing.read()
        answers = b""
        at = 0
        while at < len(sent):
            kind = sent[at] >> 4
            body = at + 2
            if sent[at + 1] & 0x80:
                body += 1  # the client writes no packet whose length needs more than two bytes
            at = body + (sent[at + 1] & 0x7F) + ((sent[at + 2] << 7) if body - at == 3 else 0)
            if kind == 1:
                answers += b"\x20\x02\x00\x00"
            elif kind == 3 and sent[body - 2] & 6:
                kind = 4 if sent[body - 2] & 2 else 5
                id_at = body + 2 + sent[body + 1]
                answers += bytes((kind << 4, 2, sent[id_at], sent[id_at + 1]))
            elif kind == 8:
                answers += bytes((0x90, 3, sent[body], sent[body + 1], sent[at - 1]))
            elif kind == 6:
                answers += bytes((0x70, 2, sent[body], sent[body + 1]))
        return answers


class Network:
    """Replaces the module `socket`."""

    SOCK_STREAM = 1
    last = None

    @staticmethod
    def getaddrinfo(*_):
        """Resolve every name."""
        return [(2, 1, 0, "", ("", 1883))]

    class socket(Socket):  # noqa: N801
        """A socket; `Network.last` is the newest one."""

        def __init__(self, *_):
            super().__init__()
            Network.last = self


class Watch:
    """A stopwatch that subtracts its own cost."""

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
        """Add an interval."""
        self.total += ticks_diff(end, begin)
        self.stretches += 1

    def take(self):
        """Return the total time without the stopwatch's own cost, and start again at 0."""
        total = self.total - self.stretches * self.own
        self.total = self.stretches = 0
        return total


def connected(store, *subscription):
    """Return a connected client, with a subscription if one is given."""
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
            Network.last.incoming.write(Network.last.answers())
    raise OSError("not connected")


def publish(store, qos, count):
    """Return the time of each message, up to its last acknowledgement."""
    client = connected(store)
    link = Network.last
    watch = Watch()
    took = []
    for _ in range(count):
        link.arrive(b"")  # on a slow machine `publish` reads
        begin = ticks_us()
        client.publish(TOPIC, PAYLOAD, qos)
        watch.add(begin, ticks_us())
        answers = link.answers()
        polls = 0
        while qos and client.pending:
            link.arrive(answers)
            begin = ticks_us()
            client.poll(0)
            watch.add(begin, ticks_us())
            answers = link.answers()
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
    """Return the time of each message that umqtt.simple publishes."""
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


def timed_receive(count, link, take, got):
    """Return the time that `take` needs for each message at QoS 1, with its acknowledgement; the handler appends to `got`.

    Each message arrives alone.
    """
    watch = Watch()
    took = []
    for number in range(1, count + 1):
        body = bytes((0, len(TOPIC))) + TOPIC + bytes((number >> 8, number & 255)) + PAYLOAD
        link.arrive(bytes((0x32, len(body))) + body)
        begin = ticks_us()
        take()
        watch.add(begin, ticks_us())
        if len(got) != number or len(link.outgoing.read() or b"") != 4:
            raise OSError("not received")
        took.append(watch.take())
    return took


def receive(count):
    """Return the time to receive each message, without the wait for its arrival."""
    got = []
    client = connected(None, TOPIC, 1, lambda message: got.append(1))
    client.poll(0)
    return timed_receive(count, Network.last, client.poll, got)


def peer_receive(count):
    """Return the time that umqtt.simple needs to receive each message."""
    client, link = peer_client()
    got = []
    client.set_callback(lambda topic, payload: got.append(1))
    return timed_receive(count, link, client.wait_msg, got)


def append(region, policy, count):
    """Return the time of each `append` of 100 bytes."""
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
    """Return the time of a mount."""
    from flashmqtt.journal.journal import Journal

    watch = Watch()
    begin = ticks_us()
    Journal(region)
    watch.add(begin, ticks_us())
    return [watch.take()]


def imports():
    """Return the time to import client and journal."""
    sys.modules["socket"] = Network
    watch = Watch()
    begin = ticks_us()
    from flashmqtt.client import Client  # noqa: F401
    from flashmqtt.journal.journal import Journal  # noqa: F401

    watch.add(begin, ticks_us())
    return [watch.take()]


def measure(case, count, region):
    """Return the time of each operation of a case, in microseconds."""
    if case == "import":
        return imports()
    if case == "mount":
        return mount(region())
    if case.startswith("append"):
        return append(region(), "DROP_OLDEST" if case == "append_full" else "REFUSE", count)
    if case == "umqtt_in1":
        return peer_receive(count)
    if case == "in1":
        return receive(count)
    qos = int(case[-1])
    if case.startswith("threshold"):  # as in the README's program
        gc.threshold(16384)
    if case.startswith("umqtt"):
        return peer(qos, count)
    if case.startswith("ram"):
        return publish(None, qos, count)  # a RamStore
    from flashmqtt.journal.journal import Journal

    return publish(Journal(region()), qos, count)


class Memory:
    """A block device in memory, like rp2.Flash: 64 sectors, and a write only clears bits. For runs on a unix port."""

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
        """Clear the bits that are 0 in buf."""
        at = block * SECTOR_BYTES + offset
        end = at + len(buf)
        both = int.from_bytes(self._view[at:end], "little") & int.from_bytes(buf, "little")
        self.cells[at:end] = both.to_bytes(len(buf), "little")

    def ioctl(self, request, argument):
        """Return the number or size of the sectors, or erase one."""
        if request == 6:
            at = argument * SECTOR_BYTES
            self.cells[at : at + SECTOR_BYTES] = b"\xff" * SECTOR_BYTES
        return {4: SECTORS, 5: SECTOR_BYTES}.get(request, 0)
