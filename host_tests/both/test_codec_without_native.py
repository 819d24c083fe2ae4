"""A MicroPython without the native emitter (or files compiled for another processor) runs the same codec in bytecode."""

import sys

import pytest


class _Nothing:
    """Replaces the module of machine code; imports from it fail."""


sys.modules["flashmqtt.codec.quick_native"] = _Nothing()  # type: ignore[assignment]
sys.modules["flashmqtt.fast.native"] = _Nothing()  # type: ignore[assignment]

import codec_vectors  # noqa: E402
from flashmqtt.codec import quick, quick_plain  # noqa: E402
from flashmqtt.codec.decode import Decoder  # noqa: E402
from flashmqtt.codec.encode import put_publish  # noqa: E402
from flashmqtt.errors import InvalidTopic, MalformedPacket  # noqa: E402

del sys.modules["flashmqtt.codec.quick_native"], sys.modules["flashmqtt.fast.native"]


@pytest.mark.req("W7", "W9")
def test_plain_loops_are_in_use():
    assert quick.plain_end is quick_plain.plain_end
    assert quick.put_message is quick_plain.put_message


@pytest.mark.req("W7", "W9", "W13")
@pytest.mark.parametrize("level", [3, 4, 5])
def test_valid_vectors_are_written_and_read(level):
    buf = bytearray(codec_vectors.SIZE)
    for vector in codec_vectors.vectors("valid", level):
        if vector["put"] not in ("publish", "puback", "connack"):
            continue
        form = codec_vectors.forms(vector)[0]
        if vector["put"] not in codec_vectors.NOT_WRITTEN:
            assert codec_vectors.written(vector, buf) == form
        if vector["from"] != "client":
            decoder = codec_vectors.new_decoder(vector, len(form))
            decoder.feed(form)
            decoder.next()
            codec_vectors.check_fields(vector, decoder)


@pytest.mark.req("W9")
def test_invalid_topics_are_refused():
    buf = bytearray(64)
    for bad in (b"", b"a/+", b"a#", b"\x00", b"\xff", b"\xed\xa0\x80"):
        with pytest.raises(InvalidTopic):
            put_publish(buf, 0, bad, b"")
        if bad:
            decoder = Decoder(64)
            decoder.feed(bytes([0x30, 2 + len(bad), 0, len(bad)]) + bad)
            with pytest.raises(MalformedPacket):
                decoder.next()
