"""A small broker that runs in the test's own thread. The client calls it as its `feed` function whenever the client waits.

So a test of a blocking client needs no second process on either interpreter, and is deterministic. The broker answers every
packet as a real broker does, unless the test sets another behaviour, and keeps the packets that it received.
"""

import random
import select
import socket

from flashmqtt.compat import ticks_diff, ticks_ms
from wire import connack, id_of, packet, puback, pubcomp, pubrec, suback, whole_packets

PATIENCE_MS = 60_000  # deadline for expected events, on a busy machine


def poll_until(mqtt, condition, wait_ms=20):
    """Poll a client until the condition holds."""
    begin = ticks_ms()
    while not condition():
        assert ticks_diff(ticks_ms(), begin) < PATIENCE_MS, "the condition did not become true in time"
        mqtt.poll(wait_ms)


class Loopback:
    def __init__(self):
        self.present = 0
        self.code = 0
        self.granted = None  # the SUBACK code for every filter; None: the requested QoS
        self.silent = False  # True: receives packets, but answers none
        self.deaf = False  # True: does not even receive
        self.answers_publish = True
        self.longest = 0  # longest accepted packet, 0: no limit; more bytes of one packet close the connection
        self.packets = []
        self.connects = 0
        self.feeds = 0
        self.link = None
        self._octets = b""
        self.listener = None
        self.open()

    def open(self, port=None):
        while True:
            # Below the ports of outgoing connections: one of those may take a closed broker's port before it opens again.
            self.port = port or random.randint(20000, 32000)
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
        """Receive, answer and accept connections; the client calls this as its `feed`."""
        self.feeds += 1
        self._receive()  # the last bytes of an ended connection, before the next connection is accepted
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
            whole, self._octets = whole_packets(self._octets)
            for one in whole:
                self.take(one)
            if self.longest and len(self._octets) > self.longest:
                self.drop()

    def give(self, *packets):
        for one in packets:
            try:
                self.link.send(one)
            except OSError:  # the client has closed the connection, and its last packets are still to be read
                return

    def take(self, one):
        self.packets.append(one)
        if self.silent:
            return
        kind = one[0] >> 4
        if kind == 1:
            self.connects += 1
            self.give(connack(0 if self.code else self.present, self.code, level=one[8]))
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
        elif kind == 14:
            self.drop()

    def of(self, kind):
        """Return the packets of a type that were received."""
        return [one for one in self.packets if one[0] >> 4 == kind]


class Flooding(Loopback):
    """Sends endlessly: the client always has something to read."""

    def __init__(self):
        super().__init__()
        self.flood = b""
        self.turn = 0  # messages handled during the client's current call
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
        """From now on answer nothing, and send these bytes again and again."""
        self.silent = True
        self.flood = flood
        self()

    def handle(self, message):
        """Handle a message of the flood; the client's message handler."""
        self.turn += 1
        assert self.turn < 100000, "the client's call does not return"
        self()
