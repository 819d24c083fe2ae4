"""Invalid arguments raise an error that names the mistake, before anything is stored or sent."""

from array import array

import pytest

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.codec.properties import (
    CONTENT_TYPE,
    MESSAGE_EXPIRY_INTERVAL,
    REASON_STRING,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
    WILL_DELAY_INTERVAL,
)
from flashmqtt.errors import BufferTooSmall, InvalidTopic, UsageError
from flashmqtt.session.level5 import Level5
from flashmqtt.session.ram import RamStore
from loopback import Loopback, poll_until
from test_client import connected


def client(**options):
    return Client("127.0.0.1", 1, "me", **options)


def refuses(text, call, *arguments, **options):
    """Check that a call raises UsageError with this text."""
    with pytest.raises(UsageError) as caught:
        call(*arguments, **options)
    assert str(caught.value) == text


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
def test_payload_that_is_neither_text_nor_bytes_is_refused(qos):
    mqtt = client()
    mqtt.publish("a", b"x", 1)
    for topic in ("a", "another"):  # the topic of the previous message, and another one
        for payload in (21.5, 21, True, None, [1, 2], {}, range(5), an_iterator(), Sized(), array("i", [1]), object()):
            with pytest.raises(UsageError):
                mqtt.publish(topic, payload, qos)
        for payload in ("text", b"bytes", bytearray(b"more"), memoryview(b"view"), "", b""):
            mqtt.publish(topic, payload, qos)
    assert mqtt.pending == 1 + (12 if qos else 0)


@pytest.mark.req("W9")
@pytest.mark.parametrize("level,qos", [(4, 1), (4, 2), (5, 1)])
def test_invalid_topic_is_refused_even_if_its_buffer_was_valid_before(level, qos):
    mqtt = client(level=level)
    topic = bytearray(b"a/b")
    mqtt.publish(topic, b"x", qos)
    mqtt.publish(topic, b"x", qos)
    topic[1] = ord("#")
    for wrong in (topic, topic, "a/#", "a/#", "", "a" * 65536, b"a+"):
        for _ in range(2):
            with pytest.raises(InvalidTopic):
                mqtt.publish(wrong, b"x", qos)
    assert mqtt.pending == 2


@pytest.mark.req("W9")
@pytest.mark.parametrize("level", [4, 5])
def test_empty_topic_is_refused_at_qos_1_and_2(level):
    mqtt = client(level=level)
    for qos in (1, 2):
        for properties in (None, {USER_PROPERTY: ("a", "b")}) if level == 5 else (None,):
            with pytest.raises(InvalidTopic):
                mqtt.publish("", b"x", qos, properties=properties)
    assert mqtt.pending == 0


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
def test_invalid_property_is_refused(properties):
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
def test_message_with_a_valid_property_is_stored():
    mqtt = client(level=5)
    mqtt.publish("a", b"x", 1, properties={CONTENT_TYPE: "text"})
    assert mqtt.pending == 1


@pytest.mark.req("W12")
def test_property_not_allowed_in_unsubscribe_is_refused():
    mqtt = client(level=5)
    for properties in ({REASON_STRING: "why"}, {SUBSCRIPTION_IDENTIFIER: 1}):
        with pytest.raises(UsageError):
            mqtt.unsubscribe("a", properties=properties)


@pytest.mark.req("W12")
def test_disconnect_refuses_invalid_codes_and_expiry():
    mqtt = client(level=5)
    for code in (1, 0x89, 0x8B, "4", None, 4.5, -1, 256, (4,)):
        with pytest.raises(UsageError):
            mqtt.disconnect(code=code, expiry_s=60)
    for code in (1, 0x89, 0x8B):
        with pytest.raises(UsageError):
            mqtt.disconnect(code=code)
    for expiry_s in (-1, 1 << 32, 1.5, "60", b"60", [60]):
        refuses("expiry_s %r: 0 to 4294967295" % (expiry_s,), mqtt.disconnect, expiry_s=expiry_s)
    mqtt.disconnect(code=4, expiry_s=60)
    with pytest.raises(UsageError):  # MQTT 5, section 3.14.2.2.2
        client(level=5, clean=True).disconnect(expiry_s=60)
    client(level=5, clean=True).disconnect(expiry_s=0)


@pytest.mark.req("W3", "W9", "S6")
@pytest.mark.parametrize("level", [4, 5])
def test_invalid_qos_is_refused_and_stores_nothing(level):
    mqtt = client(level=level)
    for _ in range(2):  # first with a new topic, then with the topic of the previous call
        for qos in (3, -1, 256, "1", b"1", None, (1,), len):
            if qos is not None:
                with pytest.raises(UsageError):
                    mqtt.publish("a", b"x", qos)
            refuses("qos %r for b'a': 0 to 2" % (qos,), mqtt.subscribe, "a", qos)
            with pytest.raises(UsageError):
                mqtt.subscribe([("b", 1), ("a", qos)])
        assert mqtt.pending == 0 and mqtt.session.subscriptions == []
    with pytest.raises(UsageError):
        mqtt.publish("b", b"x", 1.5)


@pytest.mark.req("W9", "W11")
def test_list_with_an_invalid_filter_subscribes_nothing():
    mqtt = client()
    for wrong in (5, None, "a/#/b", "", b"\xff", ("b",), ("b", 1, 2), {}, "x" * 2000):
        with pytest.raises(UsageError):
            mqtt.subscribe(["a", wrong])
        with pytest.raises(UsageError):
            mqtt.unsubscribe(["a", wrong])
        if not isinstance(wrong, tuple):
            with pytest.raises(UsageError):
                mqtt.unsubscribe(wrong)
    assert mqtt.session.subscriptions == []


@pytest.mark.req("W11")
def test_handler_that_is_not_callable_is_refused():
    mqtt = client()
    for handler in ("print", 5, [print]):
        with pytest.raises(UsageError):
            mqtt.subscribe("a", 1, handler)
    assert mqtt.session.subscriptions == []
    mqtt.subscribe("a", 1, print)


@pytest.mark.req("W11")
def test_filter_is_copied_when_subscribing():
    mqtt = client()
    filter_ = bytearray(b"a/b")
    mqtt.subscribe(filter_, 1)
    filter_[0] = 0x23
    assert mqtt.session.subscriptions[0].filter == b"a/b"


@pytest.mark.req("W10")
def test_fields_of_connect_are_copied_when_the_client_is_made():
    broker = Loopback()
    fields = [bytearray(b"AB") for _ in range(5)]
    name, user, password, topic, payload = fields
    mqtt = Client(
        "127.0.0.1", broker.port, name, user=user, password=password, will=(topic, payload, 0, False), feed=broker
    )
    for field in fields:
        field[:] = b"xx"  # as a program that wipes a password
    mqtt.connect()
    assert broker.of(1)[0].count(b"\0\2AB") == 5
    mqtt.disconnect()


@pytest.mark.req("W12")
def test_clients_with_one_level5_object_share_no_state():
    five = Level5(alias_maximum=3)
    broker, mqtt = connected(level=5, five=five)
    other = client(level=5, five=five, clean=True)
    assert other.connection.five is not mqtt.connection.five
    broker.drop()
    poll_until(mqtt, lambda: len(broker.of(1)) == 2)
    assert broker.of(1)[0] == broker.of(1)[1]
    mqtt.disconnect()


@pytest.mark.req("R3", "R4", "S6", "W10", "W12")
@pytest.mark.parametrize(
    "options,error",
    [
        ({"host": ""}, "no host"),
        ({"port": 0}, "port 0: 1 to 65535"),
        ({"port": 99999}, "port 99999: 1 to 65535"),
        ({"timeout_s": 0}, "timeout_s 0: more than 0"),
        ({"waiting": 0}, "waiting 0: 1 or more"),
        ({"attempts": 0}, "attempts 0: 1 or more"),
        ({"unclaimed": "lose"}, 'unclaimed \'lose\': "drop" or "keep"'),
        ({"window": 33}, "window 33: 1 to 32"),
        ({"max_qos": 0}, "max_qos 0: 1 or 2"),
        ({"refuse_after": 255}, "refuse_after 255: 0 to 254; or retry_ms at level 5, which allows none"),
        ({"level": 2}, "level 2: 3 to 5"),
        ({"level": "4"}, "level '4': a number is needed"),
        ({"host": b"\xff"}, "not UTF-8: b'\\xff'"),
        ({"client_id": "i" * 24, "level": 3}, "client_id 24: 1 to 23"),
        ({"password": "secret"}, "password without user"),
        ({"keep_alive_s": 65536}, "keep_alive_s 65536: 0 to 65535"),
        ({"will": ("a", "x", True, 1)}, "will ('a', 'x', True, 1): (topic, payload, qos, retain)"),
        ({"will": ("a", "x", 3, True)}, "will_qos 3: 0 to 2"),
        (
            {"will": ("a/#", "x", 1, True)},
            "not a topic name: b'a/#': # is a wildcard, which only a subscription may have",
        ),
        ({"will": ("a", b"x", 1)}, "will ('a', b'x', 1): (topic, payload, qos, retain)"),
        ({"will": ("a",)}, "will ('a',): (topic, payload, qos, retain)"),
        ({"will": 5}, "will 5: (topic, payload, qos, retain)"),
        ({"will": {"topic": "a"}}, "will {'topic': 'a'}: (topic, payload, qos, retain)"),
        ({"will": ("a", b"x", "1", False)}, "will ('a', b'x', '1', False): (topic, payload, qos, retain)"),
        ({"will": ("a", 5, 0, False)}, "will must be str or bytes, not int: convert it first, such as with str()"),
        ({"max_qos": 3}, "max_qos 3: 1 or 2"),
        ({"max_qos": "1"}, "max_qos '1': 1 or 2"),
        ({"max_qos": (1, 2)}, "max_qos (1, 2): 1 or 2"),
        ({"unclaimed": (1, 2)}, 'unclaimed (1, 2): "drop" or "keep"'),
        ({"refuse_after": -1}, "refuse_after -1: not below 0"),
        ({"window": 0}, "window 0: 1 to 32"),
        ({"buffer_bytes": 15}, "16 bytes, room for 15"),
        ({"store": "x"}, "store 'x': a Journal or a RamStore is needed, or None"),
        ({"store": []}, "store []: a Journal or a RamStore is needed, or None"),
        ({"tls": True}, "tls True: an SSLContext is needed, as flashmqtt.tls.context(ca=...) makes it"),
        ({"tls": "ca.pem"}, "tls 'ca.pem': an SSLContext is needed, as flashmqtt.tls.context(ca=...) makes it"),
        ({"buffer_bytes": -1}, "buffer_bytes -1: not below 0"),
        ({"buffer_bytes": 0}, "16 bytes, room for 0"),
        ({"keep_alive_s": -1}, "keep_alive_s -1: not below 0"),
        ({"response_s": -0.5}, "response_s -0.5: not below 0"),
        ({"unclaimed_s": -1}, "unclaimed_s -1: not below 0"),
        ({"retry_ms": "20"}, "retry_ms '20': a number is needed"),
        ({"retry_ms": 1.5}, "retry_ms 1.5: a whole number is needed"),
        ({"retry_ms": -5}, "retry_ms -5: not below 0"),
        ({"waiting_bytes": "64"}, "waiting_bytes '64': a number is needed"),
        ({"waiting_bytes": -64}, "waiting_bytes -64: not below 0"),
        ({"backoff": 5}, "backoff 5: a Backoff is needed"),
        ({"backoff": (1, 2)}, "backoff (1, 2): a Backoff is needed"),
        ({"backoff": Backoff(base_ms=-1)}, "backoff: base_ms -1, cap_ms 120000: 0 to 536870911"),
        ({"backoff": Backoff(cap_ms=1 << 29)}, "backoff: base_ms 500, cap_ms 536870912: 0 to 536870911"),
        ({"five": 5}, "five 5: a Level5 is needed"),
        ({"five": 5, "level": 5}, "five 5: a Level5 is needed"),
        ({"server_name": 5}, "server_name 5: a str is needed"),
        ({"server_name": b"broker"}, "server_name b'broker': a str is needed"),
        ({"feed": 5}, "feed 5: a function is needed"),
        ({"feed": (1, 2)}, "feed (1, 2): a function is needed"),
        ({"log": "log.txt"}, "log 'log.txt': a function is needed"),
    ],
)
def test_invalid_argument_is_refused_by_name_when_the_client_is_made(options, error):
    expected = InvalidTopic if error.startswith("not a topic") else BufferTooSmall if "room" in error else UsageError
    arguments = {"host": "127.0.0.1", "client_id": "me"}
    arguments.update(options)
    with pytest.raises(expected) as caught:
        Client(**arguments)
    assert str(caught.value) == error


@pytest.mark.req("W10")
def test_bool_is_refused_as_qos():
    mqtt = client()
    with pytest.raises(UsageError):
        mqtt.publish("a", b"x", True)  # umqtt's third argument is `retain`
    assert mqtt.pending == 0


@pytest.mark.req("W9")
@pytest.mark.parametrize(
    "topic,reason",
    [
        ("", "b'': empty"),
        ("a" * 65536, "65536 bytes, at most 65535"),
        ("a/#", "b'a/#': # is a wildcard, which only a subscription may have"),
        ("a/+/b", "b'a/+/b': + is a wildcard, which only a subscription may have"),
        ("a\0b", "b'a\\x00b': U+0000 at byte 1"),
        (b"a\xffb", "b'a\\xffb': not UTF-8"),
    ],
)
def test_refused_topic_name_is_named_with_the_reason(topic, reason):
    for level in (4, 5):
        mqtt = client(level=level)
        for properties in (None, {USER_PROPERTY: ("a", "b")}) if level == 5 else (None,):
            with pytest.raises(InvalidTopic) as caught:
                mqtt.publish(topic, b"x", 1, properties=properties)
            assert str(caught.value).startswith("not a topic name: ") and reason in str(caught.value)


@pytest.mark.req("W9", "W11")
@pytest.mark.parametrize(
    "filter_,reason",
    [
        ("", "b'': empty"),
        ("a" * 65536, "65536 bytes, at most 65535"),
        ("a/#/b", "b'a/#/b': # must be the last level, alone"),
        ("a#", "b'a#': # must be the last level, alone"),
        ("a+/b", "b'a+/b': + must be a whole level"),
        ("a\0b", "b'a\\x00b': U+0000 at byte 1"),
        (b"a\xffb", "b'a\\xffb': not UTF-8"),
        ("$share/x", "b'$share/x': a shared subscription is $share/NAME/FILTER, NAME without wildcards"),
        ("$share/+/a", "a shared subscription is $share/NAME/FILTER"),
        ("$share/x/a#", "# must be the last level, alone"),
    ],
)
def test_refused_topic_filter_is_named_with_the_reason(filter_, reason):
    for call in (client().subscribe, client().unsubscribe):
        for given in (filter_, [filter_]):
            with pytest.raises(InvalidTopic) as caught:
                call(given)
            assert str(caught.value).startswith("not a topic filter: ") and reason in str(caught.value)


@pytest.mark.req("W7", "W10")
@pytest.mark.parametrize("wrong", [None, 5, 1.5, [1], {1: 2}, object(), array("i", [1])])
def test_error_for_an_argument_that_is_not_text_names_the_argument(wrong):
    text = "must be str or bytes, not %s" % type(wrong).__name__
    mqtt = client()
    for name in ("host", "client_id", "user", "password"):
        if wrong is not None or name == "client_id":
            options = {"host": "127.0.0.1", "client_id": "me", "user": "me"}
            options[name] = wrong
            with pytest.raises(UsageError) as caught:
                Client(**options)
            assert str(caught.value).startswith("%s %s" % (name, text))
    calls = [
        ("topic", lambda: mqtt.publish(wrong, b"x", 1)),
        ("payload", lambda: mqtt.publish("a", wrong, 1)),
        ("will", lambda: client(will=(wrong, b"x", 0, False))),
        ("will", lambda: client(will=("a", wrong, 0, False))),
    ]
    if wrong != [1]:  # a list of filters
        for filter_ in (wrong, ["a", wrong]):
            calls.append(("filter_", lambda filter_=filter_: mqtt.subscribe(filter_)))
            calls.append(("filter_", lambda filter_=filter_: mqtt.unsubscribe(filter_)))
    for name, call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value).startswith("%s %s" % (name, text))


@pytest.mark.parametrize(("payload", "call"), [(21.5, "float: %s str()"), ({"t": 21}, "dict: %s json.dumps()")])
@pytest.mark.req("W7")
def test_error_for_a_payload_that_is_no_text_says_what_to_do(payload, call):
    remedy = call % "convert it first, such as with"
    refuses("payload must be str or bytes, not " + remedy, client().publish, "a", payload, 1)


SECONDS = ("timeout_s", "response_s", "unclaimed_s")
WHOLE = ("level", "port", "keep_alive_s", "window", "buffer_bytes", "refuse_after", "waiting", "attempts")


@pytest.mark.req("W10")
@pytest.mark.parametrize("name", SECONDS + WHOLE)
def test_error_for_an_argument_that_is_not_a_number_names_the_argument(name):
    for wrong in ("5", None, [5], 1.5, 2.0) if name in WHOLE else ("5", None, [5]):
        options = {"host": "127.0.0.1", "client_id": "me"}
        options[name] = wrong
        needed = "whole number" if isinstance(wrong, float) else "number"
        refuses("%s %r: a %s is needed" % (name, wrong, needed), Client, **options)


@pytest.mark.req("W8")
def test_delivered_refuses_what_is_no_number_and_knows_no_number_that_publish_never_returned():
    mqtt = client()
    handle = mqtt.publish("a", b"x", 1)
    assert not mqtt.delivered(handle)
    assert not mqtt.delivered(0)  # of QoS 0, and of a message that the store's policy dropped
    for wrong in ("a", None, [1], 1.0, b"1"):
        refuses("handle %r: give the number that publish returned" % (wrong,), mqtt.delivered, wrong)
    for number in (handle + 1, 1 << 40):  # such as a handle from before a reset, whose RamStore is lost
        assert not mqtt.delivered(number)


@pytest.mark.req("W10")
def test_endless_and_absurd_numbers_are_refused_by_name():
    for name in SECONDS:
        for wrong in (float("inf"), float("nan"), 1 << 40, 500000):  # milliseconds of a board's clock have 30 bits
            refuses("%s %r: less than 500000" % (name, wrong), client, **{name: wrong})
        client(**{name: 1.5})
    refuses("buffer_bytes %d: less than 536870912" % (1 << 40), client, buffer_bytes=1 << 40)


@pytest.mark.req("W10", "W13")
@pytest.mark.parametrize("wrong", ["5", b"5", [5], (5,), object(), float("nan"), float("inf"), 1 << 40])
def test_invalid_timeout_is_refused(wrong):
    mqtt = client()
    mqtt.publish("a", b"x", 1)
    for call in (
        lambda: mqtt.connect(wrong),
        lambda: mqtt.drain(wrong),
        lambda: mqtt.subscribe("a", 1, timeout_s=wrong),
        lambda: mqtt.unsubscribe("a", wrong),
        lambda: mqtt.poll(wrong),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value).startswith("timeout %r: a number of seconds (poll: whole milliseconds)" % (wrong,))
    mqtt.poll()
    assert mqtt.link.attempts == 0  # `connect` has not begun
    assert mqtt.session.subscriptions == []


@pytest.mark.req("W10", "W11")
def test_invalid_timeout_of_disconnect_is_refused_and_the_connection_stays():
    broker, mqtt = connected()
    with pytest.raises(UsageError):
        mqtt.disconnect("5")
    assert mqtt.connected
    mqtt.disconnect()
    poll_until(mqtt, lambda: broker.of(14))


@pytest.mark.req("W10")
def test_fraction_of_a_millisecond_is_refused_on_every_port():
    for wrong in (1.5, 20.0):  # MicroPython's poll objects take whole numbers only
        with pytest.raises(UsageError):
            client().poll(wrong)


@pytest.mark.req("W12")
def test_settings_of_level_5_are_refused_at_another_level():
    for level in (3, 4):  # a QoS 0 message would have level 5's layout
        refuses("five: a Level5 needs level=5", client, level=level, five=Level5())
    client(level=5, five=Level5())


@pytest.mark.req("W10")
def test_optional_arguments_may_be_0_or_none():
    client(retry_ms=0, waiting_bytes=0, backoff=None, five=None, server_name=None, feed=None, log=None, response_s=0)
    client(retry_ms=20, waiting_bytes=100, backoff=Backoff(), server_name="", feed=print, log=print, keep_alive_s=0)


def session_expiry_of(five):
    """Return the session expiry that a client with `clean` sends, 0 if none."""
    broker, mqtt = connected(level=5, clean=True, five=five)
    mqtt.disconnect()
    one = broker.of(1)[0]
    at = one.find(b"\x11", 12)  # the first property
    return one[at + 1] << 24 | one[at + 2] << 16 | one[at + 3] << 8 | one[at + 4]


@pytest.mark.req("W12")
def test_client_with_clean_keeps_the_session_expiry_that_was_given():
    assert session_expiry_of(None) == session_expiry_of(Level5()) == session_expiry_of(Level5(alias_maximum=2)) == 0
    # A will's delay ends with the session at the latest (MQTT 5, section 3.1.3.2.2).
    assert session_expiry_of(Level5(60, will_properties={WILL_DELAY_INTERVAL: 30})) == 60
    assert session_expiry_of(Level5(properties={SESSION_EXPIRY_INTERVAL: 70})) == 70


@pytest.mark.req("S6")
def test_messages_that_another_client_stored_in_ram_are_refused_at_another_level():
    store = RamStore()
    client(store=store).publish("a", "x", 1)
    with pytest.raises(UsageError) as caught:
        client(store=store, level=5)
    assert str(caught.value).startswith("messages of level 4 are stored")
    assert client(store=store, level=3).pending == 1


@pytest.mark.req("W10", "W12")
def test_connect_that_does_not_fit_with_its_properties_is_refused_when_the_client_is_made():
    properties = {USER_PROPERTY: [("name", "x" * 100)]}
    for five in (Level5(properties=properties), Level5(will_properties=properties)):
        client(level=5, will=("a", "b", 0, False), five=five, buffer_bytes=256)
        with pytest.raises(BufferTooSmall):
            client(level=5, will=("a", "b", 0, False), five=five, buffer_bytes=128)


@pytest.mark.req("S5")
@pytest.mark.parametrize("wrong", ["x", None, 0, -1, 5.0])
def test_ram_store_refuses_what_is_no_number_of_messages(wrong):
    for options in ({"limit": wrong}, {"hold_limit": wrong}, {"longest": wrong}):
        with pytest.raises(UsageError) as caught:
            RamStore(**options)
        assert str(caught.value) == "RamStore: %r: a whole number from 1 on is needed" % (wrong,)
