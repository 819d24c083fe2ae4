"""The library's decoder, extended to read a client's packets: the fuzzer and the codec's tests use it. No product code does.

It reads both directions of a connection with the library's own functions, so that the fuzzer also reaches these with CONNECT,
SUBSCRIBE and UNSUBSCRIBE. It runs on MicroPython, too, and may allocate. What speaks for a broker in tests and proofs uses
`tools.proof.packets` instead, which shares nothing with the library.
"""

from flashmqtt.codec.decode import Decoder
from flashmqtt.codec.level5 import read_properties, read_reason
from flashmqtt.codec.topics import check_filter, is_shared
from flashmqtt.codec.utf8 import text_kind
from flashmqtt.compat import TYPE_CHECKING
from flashmqtt.errors import InvalidTopic, MalformedPacket

if TYPE_CHECKING:
    from typing import Any


class ServerDecoder(Decoder):
    """A Decoder that also reads a client's packets, so that it can read either direction of a connection.

    CONNECT sets `level` for all later packets, and `clean`, `keep_alive_s`, `client_id`, `will_topic` (None: no will),
    `will_payload`, `will_qos`, `will_retain`, `will_properties`, `user` and `password` (None: absent), as bytes.
    SUBSCRIBE sets `filters`, a list of (filter, options); UNSUBSCRIBE a list of filters.
    """

    clean = will_retain = False
    keep_alive_s = will_qos = 0
    client_id = will_payload = will_properties = b""
    will_topic: "bytes | None" = None
    user: "bytes | None" = None
    password: "bytes | None" = None
    filters: "list[Any]" = []
    _cursor = 0

    def _check_flags(self, packet_type: int, flags: int) -> None:
        if packet_type in (8, 10):  # [MQTT-3.8.1-1] [MQTT-3.10.1-1]
            if flags == 2 or (flags == 10 and self.level == 3):
                return
        elif not flags and packet_type in (1, 12, 14):
            return
        super()._check_flags(packet_type, flags)

    def _other(self, buf: "bytearray | memoryview", at: int, end: int) -> None:
        packet_type = self.packet_type
        if packet_type == 1:
            self._connect(buf, at, end)
        elif packet_type in (8, 10):
            self._filters(buf, at, end)
        elif packet_type == 12 or (packet_type == 14 and self.level != 5):
            if at != end:
                raise MalformedPacket("PINGREQ or DISCONNECT")
        elif packet_type > 13:
            read_reason(self, buf, at, end)
        else:
            super()._other(buf, at, end)

    def _binary(self, buf: "bytearray | memoryview", end: int) -> bytes:
        """Return the binary field at `self._cursor`, and move the cursor after it."""
        at = self._cursor
        start = at + 2
        if start > end:
            raise MalformedPacket("end of packet")
        at = start + (buf[at] << 8) + buf[at + 1]
        if at > end:
            raise MalformedPacket("end of packet")
        self._cursor = at
        return bytes(buf[start:at])

    def _text(self, buf: "bytearray | memoryview", end: int) -> "Any":
        value = self._binary(buf, end)
        if text_kind(value, 0, len(value)) < 0:
            raise MalformedPacket("not UTF-8")
        return value

    def _connect(self, buf: "bytearray | memoryview", at: int, end: int) -> None:
        """Read a CONNECT (§3.1)."""
        self._cursor = at
        name = self._binary(buf, end)
        at = self._cursor + 4
        if at > end:
            raise MalformedPacket("CONNECT")
        level = buf[at - 4]
        if (name, level) not in ((b"MQIsdp", 3), (b"MQTT", 4), (b"MQTT", 5)):
            raise MalformedPacket("protocol %r %d" % (name, level))
        flags = buf[at - 3]
        has_will = flags & 4
        # [MQTT-3.1.2-3], [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.2-22]
        if (
            (flags & 1 and level > 3)
            or flags & 0x18 == 0x18
            or (not has_will and flags & 0x38)
            or (flags & 0xC0 == 0x40 and level < 5)
        ):
            raise MalformedPacket("CONNECT flags")
        self.level = level
        self.clean = bool(flags & 2)
        self.keep_alive_s = buf[at - 2] << 8 | buf[at - 1]
        if level == 5:
            at = read_properties(self, buf, at, end, end)
        self._cursor = at
        self.client_id = self._text(buf, end)
        if (level == 3 and not self.client_id) or (level == 4 and not self.client_id and not self.clean):
            raise MalformedPacket("client id")
        self.will_topic = self.user = self.password = None
        self.will_qos = flags >> 3 & 3
        self.will_retain = bool(flags & 32)
        if has_will:
            if level == 5:
                self._will_properties(buf, end)
            self.will_topic = self._text(buf, end)
            if not self.will_topic or text_kind(self.will_topic, 0, len(self.will_topic)):
                raise MalformedPacket("will topic")
            self.will_payload = self._binary(buf, end)
        if flags & 128:
            self.user = self._text(buf, end)
        if flags & 64:
            self.password = self._binary(buf, end)
        if self._cursor != end:
            raise MalformedPacket("CONNECT's length")

    def _will_properties(self, buf: "bytearray | memoryview", end: int) -> None:
        start, stop = self.properties_start, self.properties_end
        self.packet_type = 0
        self._cursor = read_properties(self, buf, self._cursor, end, end)
        self.packet_type = 1
        self.will_properties = bytes(buf[self.properties_start : self.properties_end])
        self.properties_start, self.properties_end = start, stop

    def _filters(self, buf: "bytearray | memoryview", at: int, end: int) -> None:
        """Read a SUBSCRIBE (§3.8) or an UNSUBSCRIBE (§3.10)."""
        at = self._read_id(buf, at, end)
        if self.level == 5:
            at = read_properties(self, buf, at, end, end)
        self._cursor = at
        self.filters = []
        while self._cursor < end:
            filter_ = self._binary(buf, end)
            try:
                check_filter(filter_)
            except InvalidTopic as error:
                raise MalformedPacket(error.args[0])
            if self.packet_type == 10:
                self.filters.append(filter_)
                continue
            if self._cursor == end:
                raise MalformedPacket("no options")
            options = buf[self._cursor]
            self._cursor += 1
            if options & 3 == 3 or options > (0x2E if self.level == 5 else 2):
                raise MalformedPacket("options 0x%02x" % options)
            if options & 4 and is_shared(filter_):  # [MQTT-3.8.3-4]
                raise MalformedPacket("no local on a shared subscription", 0x82)
            self.filters.append((filter_, options))
        if not self.filters:
            raise MalformedPacket("no filter", 0x82)
