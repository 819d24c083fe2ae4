"""A small broker in the test's own thread: it works whenever the client, while it waits, feeds its watchdog.

So a test of a blocking client needs no second process, on either interpreter, and stays deterministic. It answers everything as a
broker would unless told otherwise, and keeps what it received.
"""

import random
import select
import socket

from flashmqtt.compat import ticks_diff, ticks_ms
from tools.proof.packets import split
from wire import connack, id_of, packet, puback, pubcomp, pubrec, suback

PATIENCE_MS = 60_000  # for what has to happen, on a busy machine


def poll_until(mqtt, condition):
    """Poll a client until the condition holds."""
    begin = ticks_ms()
    while not condition():
        assert ticks_diff(ticks_ms(), begin) < PATIENCE_MS, "waited in vain"
        mqtt.poll(20)


class Loopback:
    def __init__(self):
        self.present = 0
        self.code = 0
        self.granted = None  # a result for every filter, instead of the QoS asked for
        self.silent = False  # receives, and answers nothing
        self.deaf = False  # does not even receive
        self.answers_publish = True
        self.longest = (
            0  # the longest packet that it takes; it closes the connection as soon as it has more bytes of one
        )
        self.packets = []
        self.connects = 0
        self.feeds = 0
        self.link = None
        self._octets = b""
        self.listener = None
        self.open()

    def open(self, port=None):
        while True:
            self.port = port or random.randint(20000, 60000)
            self.listener = socket.socket()
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self.listener.bind(socket.getaddrinfo("127.0.0.1", self.port)[0][-1])
                break
            except OSError:
                self.listener.close()
                if port:
                    raise
        self.listener.listen(5)
        self._wait = select.poll()
        self._wait.register(self.listener, 1)

    def close(self):
        self.drop()
        self.listener.close()
        self.listener = None

    def drop(self):
        if self.link:
            self.link.close()
            self.link = None
        self._octets = b""

    def __call__(self):
        """Work: this is what the client calls as its `feed`."""
        self.feeds += 1
        self._receive()  # what a connection left behind that ended meanwhile, before the next one
        if self.listener and self._wait.poll(0):
            self.drop()
            self.link = self.listener.accept()[0]
            self.link.setblocking(False)
            self._receive()

    def _receive(self):
        while self.link and not self.deaf:
            try:
                some = self.link.recv(4096)
            except OSError:
                return
            if not some:
                self.drop()
                return
            self._octets += some
            whole, self._octets = split(self._octets)
            for one in whole:
                self.take(one)
            if self.longest and len(self._octets) > self.longest:
                self.drop()

    def give(self, *packets):
        for one in packets:
            self.link.send(one)

    def take(self, one):
        self.packets.append(one)
        if self.silent:
            return
        kind = one[0] >> 4
        if kind == 1:
            self.connects += 1
            self.give(connack(0 if self.code else self.present, self.code))
        elif kind == 3 and one[0] & 6 and self.answers_publish:
            at = 1
            while one[at] > 127:
                at += 1
            at += 3 + (one[at + 1] << 8 | one[at + 2])
            packet_id = one[at] << 8 | one[at + 1]
            self.give(puback(packet_id) if one[0] & 2 else pubrec(packet_id))
        elif kind == 6:
            self.give(pubcomp(id_of(one)))
        elif kind == 8:
            codes = []
            at = 4
            while at < len(one):
                at += 2 + (one[at] << 8 | one[at + 1])
                codes.append(one[at] if self.granted is None else self.granted)
                at += 1
            self.give(suback(id_of(one), *codes))
        elif kind == 10:
            self.give(packet(0xB0, one[2:4]))
        elif kind == 12:
            self.give(b"\xd0\x00")

    def of(self, kind):
        """Return the packets of a type that were received."""
        return [one for one in self.packets if one[0] >> 4 == kind]


class Flooding(Loopback):
    """Sends without end: there is always something to be read."""

    def __init__(self):
        super().__init__()
        self.flood = b""
        self.turn = 0  # how many messages were handled in this turn of the client's
        self._rest = b""

    def __call__(self):
        super().__call__()
        while self.flood and self.link:
            self._rest = self._rest or self.flood
            try:
                self._rest = self._rest[self.link.send(self._rest) :]
            except OSError:
                return

    def begin(self, flood):
        """Answer nothing any more, and send this again and again."""
        self.silent = True
        self.flood = flood
        self()

    def handle(self, message):
        """Be the handler of these messages."""
        self.turn += 1
        assert self.turn < 100000, "for ever"
        self()
