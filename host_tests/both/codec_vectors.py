"""Reads the golden vectors (`host_tests/vectors`, made by `python -m tools.proof.check.vectors`) for the tests of the codec."""

import json
from binascii import unhexlify

from flashmqtt.codec import encode, packets, properties, subscribe
from flashmqtt.codec.aliases import InboundAliases
from flashmqtt.codec.decode import Decoder
from paths import HOST_TESTS

BINARY = (properties.CORRELATION_DATA, properties.AUTHENTICATION_DATA)
ACKS = {"puback": 4, "pubrec": 5, "pubrel": 6, "pubcomp": 7}
TYPES = {"connect": 1, "connack": 2, "publish": 3, "subscribe": 8, "suback": 9, "unsubscribe": 10, "unsuback": 11}
TYPES.update({"pingreq": 12, "pingresp": 13, "disconnect": 14, "auth": 15})
TYPES.update(ACKS)
NOT_WRITTEN = ("connack", "suback", "unsuback", "pingresp", "auth")  # a client only reads these

SIZE = 17000


def vectors(name, level=None):
    """Yield the vectors of a file one by one: a board's heap has no room for all of them."""
    with open(HOST_TESTS + "vectors/" + name + ".jsonl", encoding="utf-8") as file:
        for line in file:
            vector = json.loads(line)
            if level is None or vector["level"] == level:
                yield vector


def forms(vector):
    """Return the encodings of a vector's packet: first the one that the encoder writes, then others with the same meaning."""
    then = unhexlify(vector["then"]["repeat"]) * vector["then"]["times"] if "then" in vector else b""
    others = [unhexlify(text) for text in vector.get("also", ())]
    others.insert(0, unhexlify(vector["hex"]) + then)
    return others


def block(packet_type, listed):
    """Return the property block that encodes a vector's list of properties."""
    pairs = []
    for identifier, value in listed:
        if identifier in BINARY:
            value = unhexlify(value)
        elif isinstance(value, list):
            value = tuple(value)
        pairs.append((identifier, value))
    return properties.pack(packet_type, pairs)


def payload_of(fields, key="payload"):
    """Return the payload that a vector's fields describe."""
    value = fields.get(key, "")
    return unhexlify(value) if isinstance(value, str) else unhexlify(value["repeat"]) * value["times"]


def written(vector, buf):
    """Encode the vector's packet into buf; return the encoded bytes."""
    fields, level, put = vector["fields"], vector["level"], vector["put"]
    kind = TYPES[put]
    extra = {}
    if "properties" in fields:
        extra["properties"] = block(kind, fields["properties"])
    if fields.get("dup"):
        extra["dup"] = True
    if put == "connect":
        for key in ("clean", "keep_alive_s", "will_qos", "will_retain"):
            if key in fields:
                extra[key] = fields[key]
        for key in ("user", "will_topic"):
            if key in fields:
                extra[key] = fields[key].encode()
        for key in ("password", "will_payload"):
            if key in fields:
                extra[key] = unhexlify(fields[key])
        if "will_properties" in fields:
            extra["will_properties"] = block(properties.WILL, fields["will_properties"])
        end = encode.put_connect(buf, 0, fields["client_id"].encode(), level, **extra)
    elif put == "publish":
        for key in ("qos", "retain", "packet_id"):
            if key in fields:
                extra[key] = fields[key]
        end = encode.put_publish(buf, 0, fields["topic"].encode(), payload_of(fields), level=level, **extra)
    elif put in ACKS:
        end = encode.put_ack(buf, 0, kind, fields["packet_id"], level, fields.get("code", 0), **extra)
    elif put == "subscribe":
        filters = [(filter_.encode(), options) for filter_, options in fields["filters"]]
        end = subscribe.put_subscribe(buf, 0, fields["packet_id"], filters, level, **extra)
    elif put == "unsubscribe":
        filters = [filter_.encode() for filter_ in fields["filters"]]
        end = subscribe.put_unsubscribe(buf, 0, fields["packet_id"], filters, level, **extra)
    elif put == "pingreq":
        end = encode.put_pingreq(buf, 0)
    else:
        end = encode.put_disconnect(buf, 0, level, fields["code"], **extra)
    return bytes(buf[:end])


def check_fields(vector, decoder):
    """Assert that the decoder's fields equal the vector's fields."""
    fields, level, put = vector["fields"], vector["level"], vector["put"]
    assert decoder.packet_type == TYPES[put]
    if "packet_id" in fields:
        assert decoder.packet_id == fields["packet_id"]
    if "code" in fields and (level == 5 or put == "connack"):
        assert decoder.code == fields["code"]
    if level == 5 and put not in ("pingreq", "pingresp"):
        start, end = decoder.properties_start, decoder.properties_end
        want = block(TYPES[put], fields.get("properties", []))
        assert bytes(decoder.buffer[start:end]) == want
        if want:
            unpacked = properties.unpack(decoder.buffer, start, end)
            for identifier, value in fields["properties"]:
                got = unpacked[identifier]
                if identifier == properties.USER_PROPERTY:
                    assert tuple(value) in got
                elif identifier == properties.SUBSCRIPTION_IDENTIFIER:
                    assert value in got
                else:
                    assert got == (unhexlify(value) if identifier in BINARY else value)
                at = properties.find(decoder.buffer, start, end, identifier)
                assert start < at < end and decoder.buffer[at - 1] == identifier
            assert len(properties.pack(TYPES[put], unpacked)) == len(want)
            assert properties.find(decoder.buffer, start, end, 0x30) == -1
    if put == "publish":
        assert decoder.qos == fields.get("qos", 0)
        assert decoder.dup == fields.get("dup", False) and decoder.retain == fields.get("retain", False)
        assert decoder.topic == fields["topic"].encode() and bytes(decoder.payload) == payload_of(fields)
        assert not decoder.more and decoder.payload_offset == 0 and decoder.payload_total == len(decoder.payload)
    elif put == "connack":
        assert decoder.session_present == fields["session_present"]
    elif put in ("suback", "unsuback"):
        assert list(decoder.buffer[decoder.codes_start : decoder.codes_end]) == fields["codes"]


def check_client_packet(vector, packet):
    """Assert that a client's packet, read by the tests' own codec, has the vector's fields."""
    fields, level, put = vector["fields"], vector["level"], vector["put"]
    assert packet.kind == TYPES[put] and packet.packet_id == fields.get("packet_id", 0)
    if level == 5 and put != "pingreq":
        assert packet.properties == block(TYPES[put], fields.get("properties", []))
    if put in ("disconnect", "auth"):
        assert packet.code == fields.get("code", 0)
    elif put == "subscribe":
        assert packet.filters == [tuple(entry) for entry in fields["filters"]]
    elif put == "unsubscribe":
        assert packet.filters == [(filter_, 0) for filter_ in fields["filters"]]
    elif put == "connect":
        assert packet.level == level and packet.client_id == fields["client_id"]
        assert packet.clean == fields.get("clean", True) and packet.keep_alive_s == fields.get("keep_alive_s", 0)
        assert packet.user == fields.get("user")
        assert packet.password == (unhexlify(fields["password"]) if "password" in fields else None)
        assert packet.topic == fields.get("will_topic", "") and packet.payload == payload_of(fields, "will_payload")
        assert packet.will_qos == fields.get("will_qos", 0) and packet.will_retain == fields.get("will_retain", False)
        will = "will_topic" in fields and level == 5
        assert packet.will_properties == (block(properties.WILL, fields.get("will_properties", [])) if will else b"")


def new_decoder(vector, size):
    """Return a decoder for a vector."""
    decoder = Decoder(size, vector["level"])
    allow_aliases(decoder)
    return decoder


def allow_aliases(decoder):
    """Allow the peer to set topic aliases, as a Topic Alias Maximum in CONNECT does."""
    decoder.aliases = InboundAliases(16)


def from_server(kind):
    """Return whether a client's Decoder accepts this packet type."""
    return kind not in (packets.CONNECT, packets.SUBSCRIBE, packets.UNSUBSCRIBE, packets.PINGREQ)
