"""Decodes a server's packets from a stream of bytes (chapters 2 and 3 of 3.1.1 and 5; 3.1's sections 2 and 3).

It has one buffer of a fixed size, filled by the caller (`room`, `received`) and read in place (`next`). A length field is only
compared; it never causes an allocation. `next` has three outcomes: a packet's type; 0, which means need more; MalformedPacket.
After an error every call raises the same error: bytes after a malformed packet are never decoded as a packet.

`chunks.py` reads a PUBLISH that is longer than the buffer. The decoder knows no session: the layers above decide whether a packet
is allowed now, and how it is answered.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import BufferTooSmall
from flashmqtt.fast import copy, raw_copy, raw_run

from .quick import plain_end
from .utf8 import text_kind

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_LAST_BYTES = const(48)

LONG = 16  # not a packet type: `next` may return it for a PUBLISH longer than the buffer

# The flags of a server's packets by type (§2.2.2) [MQTT-2.2.2-1] [MQTT-2.1.3-1] [MQTT-3.6.1-1]; FF: never, or see `_next`.
_FLAGS = b"\xff\xff\x00\xff\x00\x00\x02\x00\xff\x00\xff\x00\xff\x00\xff\xff"


class Decoder:
    """Packets from one network connection. The fields describe the packet that `next` returned last.

    packet_type             the result of `next`
    qos dup retain          PUBLISH
    packet_id               PUBLISH at QoS 1 and 2, the acknowledgements, SUBACK, UNSUBACK
    session_present         CONNACK (level 4 on)
    code                    CONNACK; level 5: the acknowledgements, DISCONNECT, AUTH (0 if absent)
    topic_start _end        PUBLISH: a span of `buffer`, like all spans below
    payload_start _end      PUBLISH: the payload, or the current chunk of it
    payload_offset          PUBLISH: the chunk's offset in the payload
    payload_total           PUBLISH: the length of the whole payload
    more                    PUBLISH: whether further chunks follow, each as a PUBLISH with the same fields (see `__init__`)
    headless                PUBLISH: whether it is skipped because its head is longer than the buffer
    codes_start _end        SUBACK, level 5's UNSUBACK: a result per filter, in their order [MQTT-3.9.3-1] [MQTT-3.11.3-1]
    properties_start _end   level 5: the properties, checked
    topic_alias             level 5, PUBLISH: 0 if there is none

    at stop                 buffer[at:stop] has the bytes that were received and not yet read

    Spans, and views on them, are valid until the next call of `next` or `room`.
    """

    if TYPE_CHECKING:
        _chunks: "Any"  # the module that reads a PUBLISH longer than the buffer
        _level5: "Any"  # the module for level 5
        _malformed: "Any"  # the module for malformed packets

    # Not in each object, as most need none of them: attribute stores take longer in a full table.
    topic_alias = codes_start = codes_end = 0
    headless = False
    aliases: "Any" = None  # level 5: aliases.InboundAliases, if CONNECT allows topic aliases

    def __init__(self, size: int, level: int = 4, stream: int = 0) -> None:
        """Make the buffer of `size` bytes.

        `stream` decides about a PUBLISH larger than the buffer. 0: it is refused. PUBLISH (or true): it comes in chunks. `LONG`:
        it comes in chunks for which `next` returns LONG. In this case, a PUBLISH whose head does not fit has empty chunks, and
        its topic may be cut (`headless`).
        """
        self.buffer = bytearray(size)
        self._size = size
        self.level = level
        self.packet_type = self.packet_id = self.code = self.qos = 0
        self.dup = self.retain = self.session_present = False
        self.topic_start = self.topic_end = self.payload_start = self.payload_end = 0
        self.properties_start = self.properties_end = 0
        # The last PUBLISH, up to its topic: the same bytes in the next PUBLISH need no check.
        self._last = bytearray(_LAST_BYTES)
        self._last_length = 0  # of the whole packet
        self.moved = True  # did a field of PUBLISH other than packet_id change? The session sets it to False
        self._stream = 3 if stream is True else stream
        self.streamed = False  # is the packet returned last a streamed PUBLISH?
        self._whole = view = memoryview(self.buffer)
        self._windows: "list[Any]" = []
        for i in range(0, size, size // 8 or 1):
            self._windows.append(view[i:])
        self._topic_length = -1  # of `topic`, if that is the topic name received last
        self._viewed = False  # is `payload` a view of the current payload?
        self.reset()

    def reset(self) -> None:
        """Discard all state of the last network connection; a new one starts."""
        self.at = 0  # where the next packet starts
        self.stop = 0  # where the received bytes end
        self._need = 0  # the length of an incomplete packet, if known
        self.more = False
        self._last_bytes = 0  # of `_last`; 0: the next PUBLISH is checked
        if self.streamed:
            self._chunks.end(self)
        if self.aliases:
            self.aliases = None

    def room(self) -> "Any":
        """Return the free part of the buffer for receiving; report with `received` how much of it was filled.

        The bytes of an incomplete packet are moved so that they end where one of eight prepared views starts, because a new view
        would be an allocation per read. Only a packet that would not fit then is moved to the start of the buffer.
        """
        if self.more:
            return self._chunks.room(self)
        left = self.stop - self.at
        if not left:
            self.at = self.stop = 0
            return self._whole
        size = self._size
        step = size // 8 or 1
        i = (left + step - 1) // step
        end = i * step
        at = end - left
        if end < size and at + self._need <= size:
            window = self._windows[i]
        else:
            at = 0
            end = left
            window = self._whole[left:]
        if at != self.at:
            copy(self.buffer, at, self.buffer, self.at, left)
        self.at = at
        self.stop = end
        return window

    def read_from(self, sock: "Any") -> "int | None":
        """Receive from a socket; return 0: end of stream, 1: the socket is empty, 2: the buffer is full, None: no bytes yet."""
        if self.at != self.stop or self.more:
            n = sock.readinto(self.room())
            if n:
                self.stop = n = self.stop + n
        else:
            n = sock.readinto(self._whole)
            self.stop = n or 0  # only now: Ctrl-C may end the read
            self.at = 0
        if n:
            n = 2 if n == self._size else 1
        return n

    def received(self, n: int) -> None:
        """Report that the first n bytes of `room` were filled."""
        self.stop += n

    def feed(self, packet: "bytes | bytearray | memoryview") -> None:
        """Receive these bytes; they must fit in `room`."""
        n = len(packet)
        room = self.room()
        if n > len(room):
            raise BufferTooSmall("%d bytes, room for %d" % (n, len(room)))
        room[:n] = packet
        self.stop += n

    def next(self) -> int:
        """Return the type of the next packet, with its fields set, or 0: more bytes are needed.

        Raises:
            MalformedPacket: a conforming server does not send this; or, with reason 0x95, the packet, or the head of a streamed
                PUBLISH, does not fit in the buffer.
        """
        at = self.at
        left = self.stop - at
        buf = self.buffer
        if left > 3:
            # PUBACK, the most frequent packet.
            if buf[at] == 0x40 and buf[at + 1] == 2 and self.level != 5 and not self.streamed:
                self.packet_id = left = buf[at + 2] << 8 | buf[at + 3]
                if left:
                    self.at = at + 4
                    self.packet_type = 4
                    return 4
            # A PUBLISH with the flags, the length and the topic of the last one, which was not streamed.
            elif (
                self._last_length <= left and self._last_bytes and raw_run(buf, self._last, self._last_bytes, at, 0, 0)
            ):
                at += self._last_length
                if at != self.payload_end:
                    self._move(at - self.payload_end)
                if self.qos:
                    left = self.topic_end
                    self.packet_id = left = buf[left] << 8 | buf[left + 1]
                else:
                    self.packet_id = 0
                if left:  # no packet id of 0
                    self.at = at
                    self.packet_type = 3
                    return 3
        elif not left and not self.streamed:
            return 0
        return self._next(buf, self.at, self.stop)

    def _move(self, by: int) -> None:
        """Move the last PUBLISH's spans by this many bytes: the next PUBLISH begins with the same bytes."""
        n = self._last_bytes
        self._last_bytes = 0  # if Ctrl-C ends this half-way, the packet is decoded anew
        self.topic_start += by
        self.topic_end += by
        self._place(self.payload_start + by, self.payload_end + by)
        self._last_bytes = n

    def _next(self, buf: "bytearray | memoryview", at: int, end: int) -> int:
        """Do what `next` does, for any packet. (Separate, because a frame with many locals is allocated on the heap.)"""
        if self.streamed:
            if self.more:
                return self._chunks.go_on(self)
            self._chunks.end(self)
            if at == end:
                return 0
        five = self.level == 5
        head = buf[at]
        packet_type = head >> 4
        flags = head & 15
        if packet_type == 3:  # QoS 3 [MQTT-3.3.1-4], DUP at QoS 0 [MQTT-3.3.1-2]
            wrong = flags & 6 == 6 or flags & 14 == 8
        else:  # 3.1: a repeated PUBREL. 5: DISCONNECT [MQTT-3.14.1-1], AUTH [MQTT-3.15.1-1]
            wrong = flags != _FLAGS[packet_type] and not (
                (packet_type == 6 and flags == 10 and self.level == 3) or (packet_type > 13 and not flags and five)
            )
        if wrong:  # [MQTT-2.2.2-2]
            raise self._malformed.wrong_flags(packet_type, flags)
        body = at + 2
        if body > end:
            return 0
        n = buf[at + 1]
        if n > 127:
            n &= 127
            shift = 7
            while True:
                if body == end:
                    return 0
                byte = buf[body]
                body += 1
                n |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
                if shift > 21:
                    raise self._malformed.wrong_length(self, n, shift)
            if not byte and five:  # [MQTT-1.5.5-1]
                raise self._malformed.wrong_length(self, n, shift)
        after = body + n
        if after > end:  # not complete yet
            self._need = after - at
            if after - at <= self._size:
                return 0
            if packet_type != 3 or not self._stream:
                raise self._malformed.beyond(self, after - at, after)
            # The first chunk is always a full buffer, so that the chunks do not depend on how the bytes arrive.
            if at or end < self._size:
                return 0
            self._last_bytes = 0
            return self._chunks.begin(self, body, after)
        self.packet_type = packet_type
        if packet_type != 3:
            if 3 < packet_type < 8:  # PUBACK, PUBREC, PUBREL, PUBCOMP (§3.4 to 3.7)
                if n == 2 and not five:
                    self.packet_id = n = buf[body] << 8 | buf[body + 1]
                    if not n:  # [MQTT-2.3.1-1]
                        raise self._malformed.wrong_id()
                else:
                    body = self._read_id(buf, body, after)
                    if five:
                        self._level5.read_reason(self, buf, body, after)
                    elif body != after:
                        raise self._malformed.wrong_size(self, body, after)
            else:
                self._other(buf, body, after)
            self.at = after
            return packet_type
        # PUBLISH (§3.3)
        start = body + 2
        topic_end = start + (buf[body] << 8) + buf[body + 1] if start <= after else start
        qos = flags >> 1 & 3
        body = topic_end + 2 if qos else topic_end
        if body > after:
            raise self._malformed.wrong_size(self, body, after)
        n = topic_end - start
        # The same topic as before needs no check.
        if n != self._topic_length or not raw_run(buf, self.topic, n, start, 0, 0):
            # UTF-8 [MQTT-3.3.2-1], no U+0000 [MQTT-1.5.3-2], no wildcards [MQTT-3.3.2-2]
            if plain_end(buf, start, topic_end) != topic_end and text_kind(buf, start, topic_end):
                raise self._malformed.wrong_topic(self, start, topic_end)
            if self._topic_length >= 0:
                self._topic_length = -1
                del self.topic
        packet_id = 0
        if qos:
            packet_id = buf[topic_end] << 8 | buf[topic_end + 1]
            if not packet_id:  # [MQTT-2.3.1-1]; 5: [MQTT-2.2.1-3]
                raise self._malformed.wrong_id()
        self.packet_id = packet_id
        self.moved = True
        self.topic_start = start
        self.topic_end = topic_end
        if five:
            body = self._level5.read_topic(self, buf, body, after, after)
        elif not n:  # [MQTT-4.7.3-1]
            raise self._malformed.wrong_topic(self, start, start)
        self.qos = qos
        self.dup = flags > 7
        self.retain = flags & 1 > 0
        if body != self.payload_start or after != self.payload_end:
            self._place(body, after)
        n = topic_end - at
        self._last_bytes = 0
        if n <= _LAST_BYTES and not five:
            raw_copy(self._last, buf, n, 0, at)
            self._last_length = after - at
            self._last_bytes = n
        self.at = after
        return 3

    def _place(self, start: int, end: int) -> None:
        """Set the span of the payload, or of its chunk."""
        self.moved = True
        self.payload_start = start
        self.payload_end = end
        if self._viewed:
            self._viewed = False
            del self.payload

    def _read_id(self, buf: "bytearray | memoryview", at: int, end: int) -> int:
        """Read a packet id; return the position after it."""
        if at + 2 > end:
            raise self._malformed.wrong_size(self, at + 2, end)
        self.packet_id = buf[at] << 8 | buf[at + 1]
        if not self.packet_id:  # [MQTT-2.3.1-1]; 5: [MQTT-2.2.1-3]
            raise self._malformed.wrong_id()
        return at + 2

    def _other(self, buf: "bytearray | memoryview", at: int, end: int) -> None:
        """Read a packet that is neither a PUBLISH nor an acknowledgement of one."""
        packet_type = self.packet_type
        level = self.level
        if packet_type == 13:  # PINGRESP (§3.13)
            if at != end:
                raise self._malformed.wrong_size(self, at, end)
        elif packet_type == 2:  # CONNACK (§3.2)
            at += 2
            if at > end:
                raise self._malformed.wrong_size(self, at, end)
            flags = buf[at - 2]
            code = buf[at - 1]
            self.code = code
            self.session_present = flags == 1 and level != 3  # 3.1 leaves the byte unused
            # [MQTT-3.2.2-4]; 5: [MQTT-3.2.2-1] [MQTT-3.2.2-6]
            if level != 3 and (flags > 1 or (flags and code)):
                raise self._malformed.wrong_present(flags)
            # A server without level 5 answers with an older CONNACK (§3.1.2.2).
            if level != 5 or (at == end and code == 1):
                self.properties_start = self.properties_end = end
                if at != end or code > 5:
                    raise self._malformed.wrong_code(2, code)
            else:
                self._level5.read_connack(self, buf, at, end)
        elif packet_type > 13:  # DISCONNECT, AUTH
            self._level5.read_disconnect_or_auth(self, buf, at, end)
        else:  # SUBACK (§3.9), UNSUBACK (§3.11)
            at = self._read_id(buf, at, end)
            if level == 5:
                at = self._level5.read_results(self, buf, at, end)
            elif (at == end) == (packet_type == 9):
                raise self._malformed.wrong_size(self, at + (packet_type == 9), end)
            self.codes_start = at
            self.codes_end = end
            while at < end and level != 5:
                if buf[at] > 2 and buf[at] != 0x80:  # [MQTT-3.9.3-2]
                    raise self._malformed.wrong_code(9, buf[at])
                at += 1

    def __getattr__(self, name: str) -> "Any":
        """Compute `topic` (bytes) and `payload` (a view) when they are first read; import a module when a packet needs it.

        Topic and payload are then kept as attributes while packets have the same topic, and their payload the same span: this
        allocates nothing, and the topic is not checked again. Offset and total length of the payload follow from its span, except
        for a streamed one.

        (A property in the class would make MicroPython search for properties at every attribute store. That triples the time of a
        store, and a PUBLISH needs a dozen of them.)
        """
        if name == "topic":
            self.topic = topic = bytes(self._whole[self.topic_start : self.topic_end])
            self._topic_length = len(topic)
            return topic
        if name == "payload":
            self.payload = payload = self._whole[self.payload_start : self.payload_end]
            self._viewed = True
            return payload
        if name == "payload_total":
            return self.payload_end - self.payload_start
        if name == "payload_offset":
            return 0
        module: "Any"
        if name == "_chunks":
            from . import chunks as module
        elif name == "_level5":
            from . import level5 as module
        elif name == "_malformed":
            from . import malformed as module
        else:
            raise AttributeError(name)
        setattr(Decoder, name, module)  # kept, because even an import of a loaded module allocates
        return module
