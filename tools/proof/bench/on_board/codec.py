"""The board's side of the codec's figures; runs on MicroPython: `codec.py WHAT COUNT`.

WHAT is `ours` or `umqtt`, a dot, and a case. Both libraries do the same work on the same stream in memory. To encode, they make
and write a packet, and at QoS 1 read the PUBACK. To decode, they read a packet, call a function with topic and payload, and at
QoS 1 write the PUBACK. Prints the heap that a message allocates, and then runs COUNT messages.
"""

import gc
import io
import sys

WHAT = sys.argv[1]
TOPIC = b"bench/01234567890123"  # 20 characters
PAYLOAD = b"x" * 64
HEAD0 = b"\x30\x56\x00\x14" + TOPIC
HEAD1 = b"\x32\x58\x00\x14" + TOPIC + b"\x00\x01"


class Link:
    """A socket that repeats the same incoming bytes and discards the outgoing bytes."""

    def __init__(self, incoming):
        self._in = io.BytesIO(incoming)
        self._out = io.BytesIO(bytearray(256))
        self.read = self._in.read
        self.readinto = self._in.readinto
        self.write = self._out.write
        self.setblocking = bool

    def again(self):
        """Start both streams from the beginning."""
        self._in.seek(0)
        self._out.seek(0)


def taken(topic, payload):
    """Take the place of the application's message handler."""


def ours(case):
    """Return a function that runs a case with our codec."""
    from flashmqtt.codec.decode import Decoder
    from flashmqtt.codec.encode import put_ack, put_publish

    qos = int(case[6])
    out = bytearray(256)
    end = put_publish(out, 0, TOPIC, PAYLOAD, qos, packet_id=qos)
    packet = bytes(out[:end])
    written = memoryview(out)[:end]
    decoder = Decoder(256)
    if case.startswith("encode"):
        link = Link(b"\x40\x02\x00\x01")

        def run(count):
            for _ in range(count):
                link.again()
                put_publish(out, 0, TOPIC, PAYLOAD, qos, False, False, qos)
                link.write(written)
                if qos:
                    decoder.received(link.readinto(decoder.room()))
                    if decoder.next() != 4 or decoder.packet_id != 1:
                        raise ValueError

    else:
        link = Link(packet)
        ack = memoryview(out)[:4]

        def run(count):
            for _ in range(count):
                link.again()
                decoder.received(link.readinto(decoder.room()))
                if decoder.next() != 3:
                    raise ValueError
                taken(decoder.topic, decoder.payload)
                if qos:
                    put_ack(out, 0, 4, decoder.packet_id)
                    link.write(ack)

    return run


def umqtt(case):
    """Return a function that runs a case with umqtt.simple."""
    from umqtt.simple import MQTTClient

    qos = int(case[6])
    client = MQTTClient(b"bench", "127.0.0.1")
    client.set_callback(taken)
    client.sock = link = Link(b"\x40\x02\x00\x01" if case.startswith("encode") else (HEAD1 if qos else HEAD0) + PAYLOAD)
    if case.startswith("encode"):

        def run(count):
            for _ in range(count):
                link.again()
                client.pid = 0
                client.publish(TOPIC, PAYLOAD, False, qos)

    else:

        def run(count):
            for _ in range(count):
                link.again()
                client.wait_msg()

    return run


side, case = WHAT.split(".")
run = (ours if side == "ours" else umqtt)(case)
run(10)
gc.collect()
gc.disable()
before = gc.mem_alloc()
run(100)
print((gc.mem_alloc() - before) // 100)
gc.enable()
run(int(sys.argv[2]))
