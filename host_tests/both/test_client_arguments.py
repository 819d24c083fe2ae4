"""Arguments that are none: a named error that says what is wrong, before anything is stored or sent."""

from array import array

import pytest

from flashmqtt.client import Client
from flashmqtt.codec.properties import (
    CONTENT_TYPE,
    MESSAGE_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
)
from flashmqtt.errors import InvalidTopic, UsageError


def client(**options):
    return Client("127.0.0.1", 1, "me", **options)


def an_iterator():
    yield b"x"


class Sized:
    """An iterator with a length."""

    def __iter__(self):
        return self

    def __next__(self):
        return b"x"

    def __len__(self):
        return 5


@pytest.mark.req("W7", "S6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_no_text_and_no_bytes_is_refused(qos):
    mqtt = client()
    mqtt.publish("a", b"x", 1)
    for topic in ("a", "another"):  # the last topic, and another one
        for payload in (21.5, 21, True, None, [1, 2], {}, range(5), an_iterator(), Sized(), array("i", [1]), object()):
            with pytest.raises(UsageError):
                mqtt.publish(topic, payload, qos)
        for payload in ("text", b"bytes", bytearray(b"more"), memoryview(b"view"), "", b""):
            mqtt.publish(topic, payload, qos)
    assert mqtt.pending == 1 + (12 if qos else 0)


@pytest.mark.req("W9")
@pytest.mark.parametrize("level", [4, 5])
def test_an_empty_topic_is_none_at_any_qos(level):
    mqtt = client(level=level)
    for qos in (1, 2):
        for properties in (None, {USER_PROPERTY: ("a", "b")}) if level == 5 else (None,):
            with pytest.raises(InvalidTopic):
                mqtt.publish("", b"x", qos, properties=properties)
    assert mqtt.pending == 0


@pytest.mark.req("W10")
@pytest.mark.parametrize(
    "will",
    [
        ("a", b"x", 1),
        ("a",),
        ("a", b"x", 3, False),
        ("a", b"x", "1", False),
        ("a/#", b"x", 0, False),
        ("a", 5, 0, False),
    ],
)
def test_a_will_that_is_none_is_refused_when_it_is_given(will):
    with pytest.raises(UsageError):
        client(will=will)


@pytest.mark.req("W12")
@pytest.mark.parametrize(
    "properties",
    [
        {"content type": "x"},
        {0: 1},
        {0x2B: 1},
        {4: 1},
        {CONTENT_TYPE: 5},
        {CONTENT_TYPE: None},
        {MESSAGE_EXPIRY_INTERVAL: "60"},
        {MESSAGE_EXPIRY_INTERVAL: 1.5},
        {MESSAGE_EXPIRY_INTERVAL: -1},
        {USER_PROPERTY: "name"},
        {USER_PROPERTY: ("name",)},
        {USER_PROPERTY: [("name", 5)]},
        {TOPIC_ALIAS: 7},
        {SUBSCRIPTION_IDENTIFIER: [7]},
        [CONTENT_TYPE],
        7,
    ],
)
def test_a_property_that_is_none_is_refused(properties):
    mqtt = client(level=5)
    for qos in (0, 1, 2):
        with pytest.raises(UsageError):
            mqtt.publish("a", b"x", qos, properties=properties)
    assert mqtt.pending == 0


@pytest.mark.req("W12")
def test_properties_below_level_5_are_refused():
    mqtt = client()
    for qos in (0, 1):
        with pytest.raises(UsageError):
            mqtt.publish("a", b"x", qos, properties={CONTENT_TYPE: "text"})
    with pytest.raises(UsageError):
        mqtt.subscribe("a", properties={SUBSCRIPTION_IDENTIFIER: 1})
    with pytest.raises(UsageError):
        mqtt.disconnect(code=4)


@pytest.mark.req("W12")
def test_a_disconnect_says_what_a_client_may_say():
    mqtt = client(level=5)
    for code, expiry_s in ((1, None), (0x89, None), (0x8B, None), (0, -1), (0, 1 << 32)):
        with pytest.raises(UsageError):
            mqtt.disconnect(code=code, expiry_s=expiry_s)
    mqtt.disconnect(code=4, expiry_s=60)
    with pytest.raises(UsageError):  # 5, section 3.14.2.2.2
        client(level=5, clean=True).disconnect(expiry_s=60)
    client(level=5, clean=True).disconnect(expiry_s=0)


@pytest.mark.req("R3")
@pytest.mark.parametrize(
    "options", [{"max_qos": 0}, {"max_qos": 3}, {"max_qos": "1"}, {"refuse_after": -1}, {"refuse_after": 255}]
)
def test_limits_that_are_none_are_refused(options):
    with pytest.raises(UsageError):
        client(**options)
