"""On a 32-bit board an integer of 2^30 or more is a heap object; the codec's steady state makes none.

MicroPython's unix port has 64-bit words, so its locked heap can't show this. This test checks every local variable and every
attribute, line by line, while messages of all sizes are coded. (Level 5's four-byte properties are read and written at connect
time only, in `pack` and `unpack`, which are not run here.)
"""

import sys

import pytest

from flashmqtt.codec.aliases import InboundAliases
from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.encode import put_ack, put_publish, put_publish_head
from flashmqtt.codec.properties import pack
from flashmqtt.errors import MalformedPacket

SMALL = 1 << 30


class Watch:
    """Checks all integers in the frames of the codec."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame, event, argument):
        if "/flashmqtt/codec/" not in frame.f_code.co_filename:
            return None
        self.lines += 1
        for name, value in frame.f_locals.items():
            self.look(name, value, frame)
        if isinstance(frame.f_locals.get("self"), Decoder):
            for name, value in vars(frame.f_locals["self"]).items():
                self.look(name, value, frame)
        return self

    @staticmethod
    def look(name, value, frame):
        """Fail where a value would not be a small integer."""
        if isinstance(value, int) and not -SMALL <= value < SMALL:
            pytest.fail(f"{name} = {value:#x} at {frame.f_code.co_filename}:{frame.f_lineno}")


@pytest.mark.req("W4", "W13")
def test_steady_state_integers_stay_below_2_to_the_30():
    block = pack(3, [(0x02, 0xFFFFFFFF), (0x0B, 268435455), (0x23, 65535), (0x26, ("a", "b"))])
    watch = Watch()
    buf = bytearray(70000)
    decoders = [Decoder(size, level, stream) for size in (64, 600) for level in (3, 4, 5) for stream in (False, True)]
    sys.settrace(watch)
    try:
        for level in (3, 4, 5):
            properties = block if level == 5 else None
            for qos, packet_id in ((0, 0), (1, 65535), (2, 0x8000)):
                for n in (0, 200, 5000):
                    end = put_publish(buf, 0, b"t/x", bytes(n), qos, True, bool(qos), packet_id, level, properties)
                    for decoder in (one for one in decoders if one.level == level):
                        through(decoder, buf, end)
                end = put_publish_head(buf, 0, b"t", 268435400, qos, False, False, packet_id, level)
                for decoder in (one for one in decoders if one.level == level):
                    through(decoder, buf, end + 600)
            for kind in (4, 5, 6, 7):
                end = put_ack(buf, 0, kind, 65535, level)
                through(decoders[-1], buf, end)
        for bad in (b"\x30\xff\xff\xff\x7f", b"\x30\xff\xff\xff\xff\x7f", b"\x30\xff\xff\xff\x7f\xff\xff"):
            for decoder in decoders:
                through(decoder, bad, len(bad))
    finally:
        sys.settrace(None)
    assert watch.lines > 10000


def through(decoder, stream, end):
    """Let a decoder receive a stream."""
    decoder.reset()
    decoder.aliases = InboundAliases(65535)
    at = 0
    try:
        while at < end:
            room = decoder.room()
            n = min(len(room), end - at)
            room[:n] = stream[at : at + n]
            decoder.received(n)
            at += n
            while kind := decoder.next():
                if kind == 3:
                    assert decoder.topic and decoder.payload is not None
    except MalformedPacket:
        pass
