"""The fuzzer's cases; they run on CPython and on MicroPython.

`attack` feeds one stream of bytes in several ways and checks: no other error than MalformedPacket is raised; the events do not
depend on how the stream is cut, nor on what was in the buffer before; every payload is a part of the stream.
A case is made from a seed alone, so that a failing case is replayed by its number.
"""

from flashmqtt.codec.aliases import InboundAliases
from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.properties import unpack
from flashmqtt.errors import MalformedPacket
from tools.flashsim.nor import Random

HEADS = b"\x10\x20\x30\x31\x32\x33\x34\x3b\x3d\x40\x50\x62\x70\x82\x90\xa2\xb0\xc0\xd0\xe0\xf0"
TELLING = b"\x00\x01\x02\x03\x04\x05\x7f\x80\xff\xfe\x23\x2b\x2f\x24\x1f\x26\x0b\x11\xc2\xc0\xed\xa0"


class WrongEvent(Exception):
    """One of the checks of `attack` failed."""


def _new(size, level, streaming, filler):
    decoder = Decoder(size, level, streaming)
    decoder.buffer[:] = bytes([filler]) * size
    decoder.aliases = InboundAliases(4)  # type: ignore[assignment]
    return decoder


def _event(decoder, kind, sent):
    """Check the decoder's fields of a packet; return them."""
    size = len(decoder.buffer)
    event = [kind]
    if kind == 3:
        topic = decoder.topic
        payload = bytes(decoder.payload)
        if not 0 <= decoder.topic_start <= decoder.topic_end <= decoder.payload_start <= decoder.payload_end <= size:
            raise WrongEvent("spans")
        if not topic or 0 in topic or 43 in topic or 35 in topic:
            raise WrongEvent("topic")
        topic.decode()
        if decoder.level < 5 and bytes(topic) != bytes(decoder.buffer[decoder.topic_start : decoder.topic_end]):
            raise WrongEvent("topic of another message")
        if bool(decoder.packet_id) != bool(decoder.qos) or decoder.qos > 2 or (decoder.dup and not decoder.qos):
            raise WrongEvent("packet id or DUP")
        if payload not in sent or decoder.payload_offset + len(payload) > decoder.payload_total:
            raise WrongEvent("payload")
        if decoder.more != (decoder.payload_offset + len(payload) < decoder.payload_total):
            raise WrongEvent("more")
        event += [topic, payload, decoder.payload_offset, decoder.payload_total, decoder.more]
        event += [decoder.qos, decoder.dup, decoder.retain, decoder.packet_id]
    elif 3 < kind < 12:
        event.append(decoder.packet_id)
        if not 0 < decoder.packet_id < 65536:
            raise WrongEvent("packet id")
        if kind in (9, 11):
            event.append(bytes(decoder.buffer[decoder.codes_start : decoder.codes_end]))
    elif kind == 2:
        event += [decoder.session_present, decoder.code]
    if decoder.level == 5 and kind not in (12, 13):
        at, end = decoder.properties_start, decoder.properties_end
        if not 0 <= at <= end <= size:
            raise WrongEvent("properties")
        event.append(sorted(unpack(decoder.buffer, at, end)))
        if 3 < kind < 8 or kind > 13:
            event.append(decoder.code)
    return event


def _decode(decoder, stream, cuts):
    """Decode a stream in pieces; return its events, and the name of the error that ended it, or ""."""
    events = []
    at = i = 0
    while at < len(stream):
        room = decoder.room()
        n = min(cuts[i % len(cuts)], len(room), len(stream) - at)
        if not n:
            raise WrongEvent("no room")
        i += 1
        room[:n] = stream[at : at + n]
        decoder.received(n)
        at += n
        try:
            while True:
                kind = decoder.next()
                if not kind:
                    break
                events.append(_event(decoder, kind, stream))
        except MalformedPacket as error:
            try:
                decoder.next()
            except type(error):
                return events, type(error).__name__
            raise WrongEvent("the error does not last")
    return events, ""


def attack(stream, level, size, streaming, cuts):
    """Feed one stream in several ways; return how many packets it has."""
    whole = _decode(_new(size, level, streaming, 0x31), stream, (len(stream) or 1,))
    pieces = _decode(_new(size, level, streaming, 0x00), stream, cuts)
    if whole != pieces:
        raise WrongEvent("in pieces: %s, not %s" % (pieces, whole))
    return len(whole[0])


def mutations(packet, level):
    """Read a packet with every other value in every byte; return how many variants there were.

    Each is read in one piece, into a buffer with old bytes; one in 64 also runs through `attack`.
    """
    count = 0
    decoder = _new(256, level, False, 0)
    stream = bytearray(packet)
    for i in range(len(packet)):
        for value in range(256):
            if value == packet[i]:
                continue
            stream[i] = value
            decoder.reset()
            decoder.aliases = InboundAliases(4)
            decoder.feed(stream)
            try:
                while decoder.next():
                    pass
            except MalformedPacket:
                pass
            count += 1
            if not (i + value) & 63:
                attack(bytes(stream), level, 64, bool(value & 1), (1 + value % 7,))
        stream[i] = packet[i]
    return count


def random_stream(source, vectors, malformed):
    """Return a stream: golden packets mutated, cut and joined; or packets with valid headers and random bodies; or noise."""
    way = source.below(8)
    stream = bytearray()
    if way == 0:
        for _ in range(1 + source.below(40)):
            stream.append(source.below(256))
    elif way < 3:
        for _ in range(1 + source.below(3)):
            n = source.below(30)
            stream.append(source.pick(HEADS) if source.below(8) else source.below(256))
            stream.append(n if source.below(8) else source.pick(TELLING))
            for i in range(n):
                stream.append(source.pick(TELLING) if source.below(2) else 0 if i == 0 else source.below(256))
    else:
        for _ in range(1 + source.below(4)):
            stream.extend(source.pick(vectors if source.below(12) else malformed))
        for _ in range(source.below(4)):
            at = source.below(len(stream) or 1)
            what = source.below(6)
            if what == 0 and stream:
                stream[at] ^= 1 << source.below(8)
            elif what == 1 and stream:
                stream[at] = source.pick(TELLING)
            elif what == 2:
                stream = stream[:at] + bytes([source.pick(TELLING)]) + stream[at:]
            elif what == 3:
                stream = stream[:at] + stream[at + 1 :]
            elif what == 4:
                stream = stream[: at + 1]
            else:
                other = source.pick(vectors)
                start = source.below(len(other))
                stream = stream[:at] + other[start : start + source.below(9)] + stream[at:]
    return bytes(stream)


def random_case(seed, vectors):
    """Return the arguments of `attack` for a seed; `vectors` is by level."""
    source = Random(seed)
    level = 3 + source.below(3)
    stream = random_stream(source, vectors[level], vectors[-level])
    cuts = [1 + source.below(4 if source.below(2) else 60) for _ in range(1 + source.below(4))]
    size = source.pick((24, 48, 100, 400))
    return stream, level, size, bool(source.below(2)), cuts


def run(first, count, vectors):
    """Run the random cases first to first + count - 1; return how many packets they had."""
    packets = 0
    for seed in range(first, first + count):
        case = random_case(seed, vectors)
        try:
            packets += attack(*case)
        except Exception as error:
            raise WrongEvent("case %d: %s: %r" % (seed, case, error))
    return packets


def load(path):
    """Return the golden packets of up to 200 bytes: valid ones by level, malformed ones by minus the level."""
    import json
    from binascii import unhexlify

    vectors: dict = {3: [], 4: [], 5: [], -3: [], -4: [], -5: []}
    for name, sign in (("valid", 1), ("malformed", -1)):
        with open(path + "/" + name + ".jsonl", encoding="utf-8") as file:
            for line in file:
                vector = json.loads(line)
                if len(vector["hex"]) <= 400:
                    vectors[sign * vector["level"]].append(unhexlify(vector["hex"]))
    return vectors
