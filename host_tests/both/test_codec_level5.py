"""The rules of level 5 (W12): the packets, counts and values that each property allows; reason codes and errors."""

import pytest

from flashmqtt import errors
from flashmqtt.codec import properties, reasons
from flashmqtt.codec.decode import LONG, Decoder
from flashmqtt.codec.packets import AUTH, CONNACK, DISCONNECT, PINGRESP, PUBACK, PUBLISH, connect_error
from flashmqtt.errors import MalformedPacket, UsageError
from tools.proof import packets as p

WILL = 0
ALL = "connect connack publish puback pubrec pubrel pubcomp subscribe suback unsubscribe unsuback disconnect auth will"
NUMBERS = {
    "will": 0, "connect": 1, "connack": 2, "publish": 3, "puback": 4, "pubrec": 5, "pubrel": 6, "pubcomp": 7, "subscribe": 8,
    "suback": 9, "unsubscribe": 10, "unsuback": 11, "disconnect": 14, "auth": 15,
}  # fmt: skip

# MQTT 5, table 2-4, typed in from the standard: identifier, a valid value, the packets that may have the property.
PROPERTIES = [
    (0x01, 1, "publish will"),
    (0x02, 60, "publish will"),
    (0x03, "text", "publish will"),
    (0x08, "re/ply", "publish will"),
    (0x09, b"\x00\xff", "publish will"),
    (0x0B, 268435455, "publish subscribe"),
    (0x11, 0xFFFFFFFF, "connect connack disconnect"),
    (0x12, "id", "connack"),
    (0x13, 0, "connack"),
    (0x15, "method", "connect connack auth"),
    (0x16, b"data", "connect connack auth"),
    (0x17, 0, "connect"),
    (0x18, 0, "will"),
    (0x19, 1, "connect"),
    (0x1A, "info", "connack"),
    (0x1C, "server", "connack disconnect"),
    (0x1F, "why", "connack puback pubrec pubrel pubcomp suback unsuback disconnect auth"),
    (0x21, 1, "connect connack"),
    (0x22, 0, "connect connack"),
    (0x23, 1, "publish"),
    (0x24, 0, "connack"),
    (0x25, 0, "connack"),
    (0x26, ("name", "value"), ALL),
    (0x27, 1, "connect connack"),
    (0x28, 0, "connack"),
    (0x29, 1, "connack"),
    (0x2A, 1, "connack"),
]


@pytest.mark.req("W12")
def test_property_constants_have_the_standard_identifiers():
    assert [identifier for identifier, _, _ in PROPERTIES] == [
        properties.PAYLOAD_FORMAT_INDICATOR,
        properties.MESSAGE_EXPIRY_INTERVAL,
        properties.CONTENT_TYPE,
        properties.RESPONSE_TOPIC,
        properties.CORRELATION_DATA,
        properties.SUBSCRIPTION_IDENTIFIER,
        properties.SESSION_EXPIRY_INTERVAL,
        properties.ASSIGNED_CLIENT_IDENTIFIER,
        properties.SERVER_KEEP_ALIVE,
        properties.AUTHENTICATION_METHOD,
        properties.AUTHENTICATION_DATA,
        properties.REQUEST_PROBLEM_INFORMATION,
        properties.WILL_DELAY_INTERVAL,
        properties.REQUEST_RESPONSE_INFORMATION,
        properties.RESPONSE_INFORMATION,
        properties.SERVER_REFERENCE,
        properties.REASON_STRING,
        properties.RECEIVE_MAXIMUM,
        properties.TOPIC_ALIAS_MAXIMUM,
        properties.TOPIC_ALIAS,
        properties.MAXIMUM_QOS,
        properties.RETAIN_AVAILABLE,
        properties.USER_PROPERTY,
        properties.MAXIMUM_PACKET_SIZE,
        properties.WILDCARD_SUBSCRIPTION_AVAILABLE,
        properties.SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        properties.SHARED_SUBSCRIPTION_AVAILABLE,
    ]


@pytest.mark.req("W12")
@pytest.mark.clause("5:MQTT-2.2.2-1")
def test_each_property_is_accepted_only_in_its_packets():
    assert len(PROPERTIES) == 27
    for identifier, value, where in PROPERTIES:
        for name, packet_type in NUMBERS.items():
            pairs = [(identifier, value)]
            if identifier == 0x16:
                pairs.append((0x15, "method"))
            if name in where.split():
                block = properties.pack(packet_type, pairs)
                unpacked = properties.unpack(block, 0, len(block))
                assert unpacked[identifier] == ([value] if identifier in (0x0B, 0x26) else value)
                assert properties.find(block, 0, len(block), identifier) == 1
            else:
                with pytest.raises(UsageError):
                    properties.pack(packet_type, pairs)
    for identifier in list(range(256)):
        if identifier not in [row[0] for row in PROPERTIES]:
            for packet_type in NUMBERS.values():
                with pytest.raises(MalformedPacket):
                    properties.check(packet_type, bytes([identifier, 1, 0, 0, 0, 0]), 0, 6)
                with pytest.raises(UsageError):
                    properties.pack(packet_type, [(identifier, 1)])


@pytest.mark.req("W12")
def test_only_user_properties_and_subscription_ids_of_publish_may_repeat():
    for identifier, value, where in PROPERTIES:
        for name in where.split():
            pairs = [(identifier, value), (identifier, value)]
            if identifier == 0x16:
                pairs.append((0x15, "method"))
            if identifier == 0x26 or (identifier == 0x0B and name == "publish"):
                block = properties.pack(NUMBERS[name], pairs)
                assert properties.unpack(block, 0, len(block))[identifier] == [value, value]
                assert properties.pack(NUMBERS[name], {identifier: [value, value]}) == block
            else:
                with pytest.raises(UsageError):
                    properties.pack(NUMBERS[name], pairs)


@pytest.mark.req("W12")
def test_property_block_cut_anywhere_is_malformed():
    for identifier, value, where in PROPERTIES:
        packet_type = NUMBERS[where.split()[0]]
        pairs = [(identifier, value)]
        if identifier == 0x16:
            pairs.insert(0, (0x15, "method"))
        block = properties.pack(packet_type, pairs)
        ends = (0, len(block)) if identifier != 0x16 else (0, 9, len(block))
        for cut in range(len(block)):
            if cut not in ends:
                with pytest.raises(MalformedPacket):
                    properties.check(packet_type, block, 0, cut)
                # The zero bytes behind the cut must not be read.
                with pytest.raises(MalformedPacket):
                    properties.check(packet_type, block + b"\x00" * 8, 0, cut)


BAD_VALUES = [
    (1, 0x21, 0),
    (1, 0x27, 0),
    (1, 0x17, 2),
    (1, 0x19, 2),
    (2, 0x24, 2),
    (2, 0x25, 2),
    (2, 0x28, 2),
    (2, 0x29, 2),
    (2, 0x2A, 2),
    (3, 0x01, 2),
    (3, 0x0B, 0),
    (3, 0x23, 0),
    (3, 0x08, "re/#"),
    (3, 0x08, "+"),
    (1, 0x11, -1),
    (1, 0x11, 1 << 32),
    (1, 0x21, 65536),
    (3, 0x0B, 1 << 28),
    (3, 0x03, b"\xff"),
    (3, 0x03, "a\x00"),
    (3, 0x26, ("a", b"\xed\xa0\x80")),
    (3, 0x03, "x" * 65536),
    (1, 0x16, b"data without method"),
]


@pytest.mark.req("W12", "W13")
@pytest.mark.clause(
    "MQTT-3.3.2-8", "MQTT-3.3.2-13", "MQTT-3.3.2-14", "MQTT-3.3.2-19", "MQTT-1.5.7-1", "MQTT-1.5.4-1", "MQTT-1.5.4-2"
)
@pytest.mark.parametrize("packet_type, identifier, value", BAD_VALUES)
def test_invalid_property_value_is_refused(packet_type, identifier, value):
    with pytest.raises(UsageError):
        properties.pack(packet_type, [(identifier, value)])


@pytest.mark.req("W12")
def test_four_byte_values_keep_all_their_bits():
    for value in (0, 1, (1 << 30) - 1, 1 << 30, 1 << 31, 0xFFFFFFFE, 0xFFFFFFFF):
        block = properties.pack(1, {properties.SESSION_EXPIRY_INTERVAL: value})
        assert properties.unpack(block, 0, 5) == {properties.SESSION_EXPIRY_INTERVAL: value}
    for value in (1, 127, 128, 16383, 16384, 2097151, 2097152, 268435455):
        block = properties.pack(8, {properties.SUBSCRIPTION_IDENTIFIER: value})
        assert properties.unpack(block, 0, len(block)) == {properties.SUBSCRIPTION_IDENTIFIER: [value]}


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.2.2-8", "MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1", "MQTT-3.7.2-1", "MQTT-3.14.2-1")
@pytest.mark.clause("MQTT-3.9.3-2", "MQTT-3.11.3-2", "MQTT-3.15.2-1")
def test_reason_code_is_accepted_only_in_its_packets():
    allowed = {
        2: "00 80 81 82 83 84 85 86 87 88 89 8A 8C 90 95 97 99 9A 9B 9C 9D 9F",
        # 95 is not in the standard's tables: mosquitto sends it.
        4: "00 10 80 83 87 90 91 95 97 99",
        5: "00 10 80 83 87 90 91 95 97 99",
        6: "00 92",
        7: "00 92",
        9: "00 01 02 80 83 87 8F 91 97 9E A1 A2",
        11: "00 11 80 83 87 8F 91",
        # The codes that a server may send, by table 3-13.
        14: "00 80 81 82 83 87 89 8B 8D 8E 8F 90 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F A0 A1 A2",
        15: "00 18",
    }
    for packet_type, text in allowed.items():
        codes = [int(pair, 16) for pair in text.split()]
        for code in range(256):
            if packet_type == 2:
                packet = bytes([0x20, 3, 0, code, 0])
            elif packet_type in (9, 11):
                packet = bytes([packet_type << 4, 4, 0, 1, 0, code])
            elif packet_type > 13:
                packet = bytes([packet_type << 4, 1, code])
            else:
                packet = bytes([packet_type << 4 | (2 if packet_type == 6 else 0), 3, 0, 1, code])
            decoder = Decoder(16, 5)
            decoder.feed(packet)
            if code in codes:
                assert decoder.next() == packet_type
                if packet_type not in (9, 11):
                    assert decoder.code == code
            else:
                with pytest.raises(MalformedPacket):
                    decoder.next()


@pytest.mark.req("W10", "W12")
def test_every_connack_reason_code_has_an_error_text():
    seen = set()
    codes = "80 81 82 83 84 85 86 87 88 89 8A 8C 90 95 97 99 9A 9B 9C 9D 9F"
    for text in codes.split():
        code = int(text, 16)
        error = connect_error(code, 5)
        assert isinstance(error, errors.ConnectRefused) and error.refusal
        assert error.code == code and error.level == 5
        seen.add(str(error))
        assert reasons.name(code) != hex(code)
    assert len(seen) == len(codes.split())
    assert str(connect_error(0x85, 5)) == "client identifier not valid (level 5, code 0x85)"
    assert str(connect_error(0x8A, 5)) == "banned (level 5, code 0x8a)"


@pytest.mark.req("W12")
def test_reason_codes_have_names():
    assert reasons.name(0x00) == "SUCCESS" and reasons.name(0x9D) == "SERVER_MOVED"
    assert reasons.name(0x93) == "RECEIVE_MAXIMUM_EXCEEDED" and reasons.name(0x55) == "0x55"


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.1.2-2")
def test_connack_of_a_server_without_level_5_is_decoded():
    """Such a server answers a level 5 CONNECT with a CONNACK of its own level: code 1, without properties."""
    decoder = Decoder(16, 5)
    decoder.feed(b"\x20\x02\x00\x01")
    assert decoder.next() == CONNACK and decoder.code == 1
    assert str(connect_error(decoder.code, 5)) == "unacceptable protocol version (level 5, code 0x01)"


@pytest.mark.req("W12", "W13")
def test_connack_without_properties_keeps_none_of_the_previous_connection():
    decoder = Decoder(16, 5)
    decoder.feed(b"\x20\x08\x00\x00\x05\x11\x00\x00\x00\x09")
    assert decoder.next() == CONNACK and decoder.properties_end - decoder.properties_start == 5
    decoder.reset()
    decoder.feed(b"\x20\x02\x00\x01")
    assert decoder.next() == CONNACK and decoder.properties_start == decoder.properties_end


@pytest.mark.req("W12")
def test_connack_properties_reach_the_session():
    block = properties.pack(
        CONNACK,
        [
            (properties.SESSION_EXPIRY_INTERVAL, 3600),
            (properties.RECEIVE_MAXIMUM, 20),
            (properties.MAXIMUM_PACKET_SIZE, 1 << 31),
            (properties.ASSIGNED_CLIENT_IDENTIFIER, "auto-7"),
            (properties.SERVER_KEEP_ALIVE, 30),
            (properties.TOPIC_ALIAS_MAXIMUM, 4),
            (properties.USER_PROPERTY, ("a", "b")),
        ],
    )
    decoder = Decoder(200, 5)
    decoder.feed(p.connack(5, 1, 0, block))
    assert decoder.next() == CONNACK and decoder.session_present and decoder.code == 0
    got = properties.unpack(decoder.buffer, decoder.properties_start, decoder.properties_end)
    assert got == {
        properties.SESSION_EXPIRY_INTERVAL: 3600,
        properties.RECEIVE_MAXIMUM: 20,
        properties.MAXIMUM_PACKET_SIZE: 1 << 31,
        properties.ASSIGNED_CLIENT_IDENTIFIER: "auto-7",
        properties.SERVER_KEEP_ALIVE: 30,
        properties.TOPIC_ALIAS_MAXIMUM: 4,
        properties.USER_PROPERTY: [("a", "b")],
    }


@pytest.mark.req("W12")
def test_user_properties_may_be_a_dict():
    user = properties.USER_PROPERTY
    block = properties.pack(PUBLISH, {user: {"value": "test"}})  # as programs for mqtt_as have it
    assert block == b"\x26\x00\x05value\x00\x04test"
    block = properties.pack(PUBLISH, {user: {"a": "1", "b": "2"}})
    assert sorted(properties.unpack(block, 0, len(block))[user]) == [("a", "1"), ("b", "2")]
    for wrong in (
        {user: {"a": 1}},
        {user: {5: "a"}},
        {properties.CONTENT_TYPE: {}},
        {properties.CONTENT_TYPE: [65]},
        {properties.CORRELATION_DATA: (1, 2)},
        {user: ([], "a")},
        {properties.CONTENT_TYPE: {"a": "b"}},
    ):
        with pytest.raises(UsageError):
            properties.pack(PUBLISH, wrong)


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-4.12.0-6", "MQTT-3.15.2-1")
def test_auth_packet_is_decoded():
    block = properties.pack(AUTH, [(properties.AUTHENTICATION_METHOD, "X"), (properties.AUTHENTICATION_DATA, b"\x01")])
    decoder = Decoder(64, 5)
    decoder.feed(p.packet(0xF0, bytes((reasons.CONTINUE_AUTHENTICATION, len(block))) + block))
    assert decoder.next() == AUTH and decoder.code == reasons.CONTINUE_AUTHENTICATION
    decoder.feed(p.packet(0xF0))
    assert decoder.next() == AUTH and decoder.code == 0


@pytest.mark.req("W12")
@pytest.mark.clause("MQTT-3.14.2-2")
def test_server_disconnect_has_its_reason_code_and_server_reference():
    decoder = Decoder(64, 5)
    decoder.feed(b"\xe0\x00")
    assert decoder.next() == DISCONNECT and decoder.code == 0
    decoder.feed(b"\xe0\x01\x8b")
    assert decoder.next() == DISCONNECT and decoder.code == reasons.SERVER_SHUTTING_DOWN
    decoder.feed(b"\xe0\x07\x9d\x05\x1c\x00\x02ab")
    assert decoder.next() == DISCONNECT and decoder.code == reasons.SERVER_MOVED
    got = properties.unpack(decoder.buffer, decoder.properties_start, decoder.properties_end)
    assert got == {properties.SERVER_REFERENCE: "ab"}
    decoder.feed(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x01")
    with pytest.raises(MalformedPacket) as wrong:
        decoder.next()
    assert wrong.value.reason == reasons.PROTOCOL_ERROR


@pytest.mark.req("W12", "W13")
def test_errors_carry_the_reason_code_for_disconnect():
    for error, code in (
        (errors.MalformedPacket("x"), reasons.MALFORMED_PACKET),
        (errors.MalformedPacket("x", 0x95), reasons.PACKET_TOO_LARGE),
        (errors.ProtocolError("x"), reasons.PROTOCOL_ERROR),
        (errors.ConnectionLost("x"), 0),
    ):
        assert error.reason == code and str(error) == "x"


@pytest.mark.req("W12")
def test_fields_of_the_previous_packet_are_cleared():
    decoder = Decoder(64, 5)
    decoder.feed(
        b"\x40\x03\x00\x01\x10"
        + b"\x40\x02\x00\x02"
        + b"\x30\x09\x00\x01a\x05\x02\x00\x00\x00\x09"
        + b"\x30\x04\x00\x01a\x00"
    )
    assert decoder.next() == PUBACK and decoder.code == 0x10
    assert decoder.next() == PUBACK and decoder.code == 0 and decoder.properties_start == decoder.properties_end
    assert decoder.next() == PUBLISH and decoder.properties_end - decoder.properties_start == 5
    assert decoder.next() == PUBLISH and decoder.properties_end == decoder.properties_start


@pytest.mark.req("R2", "W12", "W13")
def test_publish_whose_properties_do_not_fit_the_buffer_is_skipped():
    for n in range(70):
        block = b"\x26\x00" + bytes([n]) + b"n" * n + b"\x00\x01v"
        body = b"\x00\x01t\x12\x34" + bytes([len(block)]) + block + b"payload"
        stream = b"\x32" + bytes([len(body)]) + body + b"\xd0\x00"
        decoder = Decoder(48, 5, LONG)
        seen, payload = [], b""
        for octet in stream:
            decoder.room()[0] = octet
            decoder.received(1)
            kind = decoder.next()
            while kind:
                if kind != PINGRESP:
                    assert bytes(decoder.topic) == b"t" and decoder.qos == 1
                    payload += bytes(decoder.payload)
                    if not decoder.more:
                        assert decoder.packet_id == 0x1234
                seen.append((kind, decoder.headless))
                kind = decoder.next()
        whole = len(stream) - 2 <= 48
        headless = not whole and len(stream) - 2 - len(b"payload") >= 48
        assert set(seen[:-1]) == {(PUBLISH if whole else LONG, headless)} and seen[-1] == (PINGRESP, False), n
        assert payload == (b"" if headless else b"payload"), n


@pytest.mark.req("W12", "W13")
@pytest.mark.parametrize("packet", [b"\x30\x03\x00\x01a", b"\x30\x04\x00\x01a\x80", b"\xe0\x02\x00\x80"])
def test_packet_that_ends_before_its_property_length_in_a_full_buffer_is_malformed(packet):
    decoder = Decoder(len(packet), 5)
    decoder.feed(packet)
    with pytest.raises(MalformedPacket):
        decoder.next()
