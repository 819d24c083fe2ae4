"""The blocking client with brokers that refuse a message: they close the connection, or never acknowledge the message (R3)."""

import pytest

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.errors import Refused
from loopback import Loopback, poll_until
from wire import packet, puback

PATIENCE_S = 60  # deadline for expected events, on a busy machine


class Picky(Loopback):
    """A broker that calls `refusal(self)` for each PUBLISH for which `refuses(packet)` is true."""

    def __init__(self, refuses, refusal):
        super().__init__()
        self.refuses = refuses
        self.refusal = refusal
        self.tries = 0

    def take(self, one):
        if one[0] >> 4 == 3 and self.refuses(one):
            self.tries += 1
            self.present = 1
            self.refusal(self)
        else:
            super().take(one)
            self.present = 1

    def give(self, *packets):
        if self.link:  # the broker may just have closed the connection
            super().give(*packets)


def client(broker, **options):
    options.setdefault("refuse_after", 2)
    mqtt = Client(
        "127.0.0.1",
        broker.port,
        "me",
        feed=broker,
        backoff=Backoff(base_ms=20, cap_ms=100, lasting_ms=50),
        timeout_s=PATIENCE_S,
        **options,
    )
    mqtt.reports = []
    mqtt.on_refused = lambda handle, code: mqtt.reports.append((handle, code))
    mqtt.connect()
    return mqtt


def check_refused(broker, payload, qos, code, **options):
    """Publish a message and another one; check that the first is refused with this code and the other is delivered."""
    mqtt = client(broker, **options)
    bad = mqtt.publish("a", payload, qos)
    good = mqtt.publish("a", "yes", qos=1)
    poll_until(mqtt, lambda: mqtt.session.is_done(bad) and mqtt.session.is_done(good))
    assert mqtt.delivered(good)
    for _ in range(2):
        with pytest.raises(Refused):
            mqtt.delivered(bad)
    assert not mqtt.pending
    mqtt.disconnect()
    assert mqtt.reports == [(bad, code)]
    broker.close()


@pytest.mark.req("R3")
def test_broker_that_closes_the_connection_on_qos_2_gets_all_other_messages():
    check_refused(Picky(lambda one: one[0] & 4, Picky.drop), "exactly once", 2, 0x100)


@pytest.mark.req("R3")
def test_max_qos_1_avoids_connections_closed_on_qos_2():
    broker = Picky(lambda one: one[0] & 4, Picky.drop)
    mqtt = client(broker, max_qos=1)
    handle = mqtt.publish("a", "exactly once, if that can be", qos=2)
    poll_until(mqtt, lambda: mqtt.delivered(handle))
    assert broker.tries == 0 and broker.connects == 1
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("R3")
def test_connection_closed_during_a_long_message_blocks_no_other_message():
    broker = Picky(lambda one: False, None)
    broker.longest = 3000
    check_refused(broker, b"x" * 30000, 1, 0x100)


@pytest.mark.req("R3")
def test_connection_closed_because_of_a_qos_0_message_is_no_failed_trial_of_another_message():
    broker = Picky(
        lambda one: broker.tries < 3 if one[0] & 6 else broker.tries == 3,
        lambda broker: broker.tries == 3 or broker.drop(),
    )
    mqtt = client(broker, refuse_after=1)
    mqtt.publish("a", "0")
    handle = mqtt.publish("a", "1", qos=1)
    poll_until(mqtt, lambda: broker.tries == 3)  # its trial
    mqtt.publish("a", "0")
    poll_until(mqtt, lambda: mqtt.delivered(handle))
    assert broker.tries == 4 and not mqtt.reports
    mqtt.disconnect()
    broker.close()


def ends_with_mark(one):
    return one[-1:] == b"!"


@pytest.mark.req("R3")
def test_unanswered_message_is_refused_and_blocks_no_other_message():
    check_refused(Picky(ends_with_mark, lambda broker: None), "no!", 1, 0x101, response_s=6, refuse_after=1)


@pytest.mark.req("R3")
def test_wrong_packet_id_in_answers_blocks_no_other_message():
    check_refused(Picky(ends_with_mark, lambda broker: broker.give(puback(500))), "no!", 1, 0x101, response_s=3)


@pytest.mark.req("R3", "W12")
@pytest.mark.parametrize(
    "qos, code, reported",
    [
        (1, b"\x96", 0x102),  # "message rate too high": only a DISCONNECT may have it
        (2, b"\x96", 0x102),
        (1, b"\x95", 0x95),  # "packet too large", which PUBACK and PUBREC should not have; mosquitto sends it
        (2, b"\x95", 0x95),
    ],
)
def test_invalid_reason_code_for_a_message_blocks_no_other_message(qos, code, reported):
    def refuses(one):
        broker.packet_id = one[5:7]
        return ends_with_mark(one)

    broker = Picky(refuses, lambda broker: broker.give(packet(0x40 if qos == 1 else 0x50, broker.packet_id + code)))
    check_refused(broker, "no!", qos, reported, level=5)
    assert reported == 0x102 or broker.connects == 1


@pytest.mark.req("R3")
def test_broker_that_drops_every_connection_refuses_no_message():
    seen = []

    def third(one):
        seen.append(one)
        return len(seen) % 3 == 0

    broker = Picky(third, Picky.drop)
    mqtt = client(broker)
    handles = [mqtt.publish("a", "x%d" % i, qos=1) for i in range(7)]
    poll_until(mqtt, lambda: not mqtt.pending)
    assert broker.tries >= 3 and not mqtt.reports
    assert all(mqtt.delivered(handle) for handle in handles)
    mqtt.disconnect()
    broker.close()


@pytest.mark.req("R3", "Q2")
def test_puback_to_a_qos_2_message_completes_it_without_repeats():
    broker = Picky(lambda one: True, None)
    broker.refusal = lambda broker: broker.give(puback(broker.tries))
    mqtt = client(broker)
    for i in range(5):
        mqtt.publish("a", "x%d" % i, qos=2)
    assert mqtt.drain(PATIENCE_S) and broker.tries == 5 and mqtt.downgraded == 5
    mqtt.disconnect()
    broker.close()
