"""Subscriptions of a session: requested, granted, refused, restored (requirements W11, Q8). Packets are written by hand."""

import pytest

from flashmqtt.errors import BufferTooSmall, InvalidTopic, ProtocolError, Refused, UsageError
from flashmqtt.session.several import unwant
from flashmqtt.session.subscriptions import DECLINED, GRANTED, requests_of
from wire import connack, connected, id_of, packet, peer, puback, suback, subscribed, text, unsuback


@pytest.mark.req("Q8")
def test_subscriptions_are_restored_only_after_a_lost_session():
    broker = connected()
    requests_of(broker.session).want(b"x", 1)
    requests_of(broker.session).want(b"y/#", 2)
    (first,) = broker.took()
    assert first == packet(0x82, first[2:4], text(b"x"), b"\1", text(b"y/#"), b"\2")
    broker.give(suback(id_of(first), 1, 2))
    broker.drop()
    assert broker.connect(1) == []
    broker.drop()
    (again,) = broker.connect(0)
    assert again[4:] == first[4:]


@pytest.mark.req("Q8")
def test_shared_subscription_is_made_again_with_every_connection():
    """mosquitto 2 forgets shared subscriptions when it restarts, but keeps the session."""
    broker = subscribed(b"$share/group/x", 1)
    requests_of(broker.session).want(b"x", 1)
    broker.give(suback(id_of(broker.took()[0]), 1))
    broker.drop()
    (again,) = broker.connect(1)
    assert again[4:] == text(b"$share/group/x") + b"\1"
    broker.give(suback(id_of(again), 1))
    assert broker.took() == []


@pytest.mark.req("Q8")
def test_subscriptions_are_restored_after_a_lost_connack():
    broker = subscribed(b"x", 1)
    broker.drop()
    broker.start()  # its CONNACK, with session_present 0, is lost
    broker.drop()
    (again,) = broker.connect(1)
    assert again[0] == 0x82


@pytest.mark.req("Q8", "W11")
def test_refused_subscription_is_requested_again_on_next_connection():
    broker = connected()
    entry = requests_of(broker.session).want(b"x", 1)
    other = requests_of(broker.session).want(b"y", 1)
    broker.give(suback(id_of(broker.took()[0]), 0x80, 0))
    assert entry.state == DECLINED
    assert other.state == GRANTED and other.code == 0
    broker.drop()
    (again,) = broker.connect(1)
    assert again[4:] == text(b"x") + b"\1"
    broker.give(suback(id_of(again), 1))
    assert entry.state == GRANTED
    broker.drop()
    assert broker.connect(1) == []


@pytest.mark.req("Q8", "W11")
def test_refused_subscription_is_requested_again_after_doubling_delays():
    broker = connected()
    requests_of(broker.session).want(b"x", 1)
    broker.give(suback(id_of(broker.took()[0]), 0x80))
    began = broker.now
    asked = []
    while broker.now < began + 80000:
        broker.now += 500
        broker.connection.check(broker.now)
        for one in broker.took():
            if one[0] == 0x82:
                asked.append(broker.now - began)
                broker.give(suback(id_of(one), 0x80))
            else:
                broker.give(b"\xd0\0")
    assert asked == [10000, 30000, 70000]


@pytest.mark.req("Q8", "W11", "R4")
def test_subscription_on_which_the_broker_closes_the_connection_does_not_stop_the_others_and_messages():
    broker = connected()
    session = broker.session
    bad = requests_of(session).want(b"forbidden", 1)
    good = requests_of(session).want(b"good", 0)
    began = broker.now
    asked = []
    connections = 0

    def serve():
        """Answer all but SUBSCRIBE for the filter `forbidden`; return whether the connection is still there."""
        for one in broker.took():
            if one[0] != 0x82:
                broker.give(b"\xd0\0" if one[0] == 0xC0 else puback(one[5] << 8 | one[6]))
            elif b"forbidden" in one:
                asked.append(broker.now - began)
                broker.fail()
                return False
            else:
                broker.give(suback(id_of(one), 0))
        return True

    handle = session.publish(b"a", b"x", 1)
    while broker.now < began + 80000:
        broker.now += 500
        broker.connection.check(broker.now)
        if not serve():
            connections += 1
            if connections == 3:
                assert not session.delivered(handle)
            broker.start()
            broker.give(connack(1))
    assert asked == [500, 1000, 1500, 11000, 31000, 71000] and connections == 6
    assert session.delivered(handle) and good.state == GRANTED
    assert bad.state == DECLINED and bad.code == 0x100
    with pytest.raises(Refused):
        requests_of(session).want(b"forbidden", 1).granted()  # not asked for before its time
    assert broker.took() == []


@pytest.mark.req("Q8", "W11")
@pytest.mark.parametrize("sent", [False, True])
def test_subscription_that_was_not_answered_is_made_again_after_unsubscribe(sent):
    broker = connected()
    requests_of(broker.session).want(b"x", 1)
    for _ in range(3):
        broker.took()
        broker.fail()
        broker.connect(1)
    unwant(broker.session, b"x")
    if sent:
        (ends,) = broker.took()
    entry = requests_of(broker.session).want(b"x", 1)
    if sent:
        broker.give(unsuback(id_of(ends)))
    (request,) = broker.took()
    assert request[0] == 0x82
    broker.give(suback(id_of(request), 1))
    assert entry.state == GRANTED and broker.session.subscriptions == [entry]


@pytest.mark.req("Q8", "W11")
def test_subscription_is_asked_for_with_every_connection_that_the_program_ends_before_the_answer():
    broker = connected()
    requests_of(broker.session).want(b"x", 1)
    (request,) = broker.took()
    for _ in range(5):
        assert request[0] == 0x82
        broker.connection.disconnect()
        broker.took()
        broker.drop()
        (request,) = broker.connect(1)
    broker.give(suback(id_of(request), 1))
    assert broker.session.subscriptions[0].state == GRANTED


@pytest.mark.req("Q8", "W11")
def test_connections_without_an_answer_are_counted_anew_after_an_answer():
    broker = connected()
    requests_of(broker.session).want(b"x", 1)
    (request,) = broker.took()
    for _ in range(2):
        for _ in range(2):  # at the third one it would be refused
            broker.fail()
            (request,) = broker.connect(1)
        broker.give(suback(id_of(request), 1))
        broker.drop()
        (request,) = broker.connect(0)


@pytest.mark.req("W11")
def test_unsubscribe_of_unknown_filter_is_sent_to_the_broker():
    broker = connected()
    entry = unwant(broker.session, b"x")
    (request,) = broker.took()
    assert request == packet(0xA2, request[2:4], text(b"x"))
    assert entry.result() is None
    broker.give(unsuback(id_of(request)))
    assert entry.result() == 0
    assert broker.session.subscriptions == []
    with pytest.raises(InvalidTopic):
        unwant(broker.session, b"x#")
    assert broker.session.subscriptions == []


@pytest.mark.req("W11")
def test_unsubscribe_ends_a_subscription():
    broker = subscribed(b"x", 1)
    unwant(broker.session, b"x")
    (request,) = broker.took()
    assert request == packet(0xA2, request[2:4], text(b"x"))
    broker.give(unsuback(id_of(request)))
    assert broker.session.subscriptions == []


@pytest.mark.req("W11")
def test_unanswered_unsubscribe_is_repeated_after_reconnect():
    broker = subscribed(b"x", 1)
    unwant(broker.session, b"x")
    broker.took()
    broker.drop()
    (request,) = broker.connect(1)
    assert request[0] == 0xA2
    assert broker.session.subscriptions != []


@pytest.mark.req("W11", "R4")
def test_unsubscribe_on_which_the_broker_closes_the_connection_ends_refused_and_does_not_stop_messages():
    broker = subscribed(b"x", 1)
    handle = broker.session.publish(b"a", b"x", 1)
    entry = unwant(broker.session, b"x")
    for _ in range(3):
        assert broker.took()[0][0] == 0xA2 and entry.result() is None
        broker.fail()
        broker.start()
        broker.give(connack(1))
    (message,) = broker.took()
    assert message[0] >> 4 == 3 and broker.session.subscriptions == []
    broker.give(puback(message[5] << 8 | message[6]))
    assert broker.session.delivered(handle)
    with pytest.raises(Refused) as refused:
        entry.granted()
    assert refused.value.code == 0x100


@pytest.mark.req("W11")
def test_subscribing_again_before_suback_sends_another_subscribe():
    broker = connected()
    entry = requests_of(broker.session).want(b"x", 0)
    first = broker.took()[0]
    requests_of(broker.session).want(b"x", 2)
    requests_of(broker.session).want(b"y", 1)
    assert broker.took() == []
    broker.give(suback(id_of(first), 0))
    (second,) = broker.took()
    assert second[4:] == text(b"x") + b"\2" + text(b"y") + b"\1"
    unwant(broker.session, b"y")
    broker.give(suback(id_of(second), 2, 1))
    assert entry.state == GRANTED and entry.code == 2
    assert broker.took()[0][0] == 0xA2


@pytest.mark.req("W11", "Q8")
def test_many_subscriptions_are_restored_by_several_packets():
    broker = connected(out_bytes=64, packet_bytes=64, buffer_bytes=64)
    filters = [b"a/filter/number/%d" % i for i in range(7)]
    for filter_ in filters:
        requests_of(broker.session).want(filter_, 1)
        broker.give(suback(id_of(broker.took()[0]), 1))
    broker.drop()
    requests = broker.connect(0)
    asked = b""
    while requests:
        (request,) = requests
        asked += request[4:]
        broker.give(suback(id_of(request), *[1] * (len(request[4:]) // (len(text(filters[0])) + 1))))
        requests = broker.took()
    assert asked == b"".join([text(filter_) + b"\1" for filter_ in filters])
    assert [entry.state for entry in broker.session.subscriptions] == [GRANTED] * 7


@pytest.mark.req("W11")
def test_invalid_subscription_is_refused_at_once_and_not_kept():
    broker = peer(out_bytes=64, packet_bytes=64, buffer_bytes=64)
    for wrong, options, error in (
        (b"x" * 60, 1, BufferTooSmall),
        (b"x", 3, UsageError),
        (b"x", -1, UsageError),
        (b"x#", 1, InvalidTopic),
    ):
        with pytest.raises(error):
            requests_of(broker.session).want(wrong, options)
        requests_of(broker.session).want(b"good", 1)
        with pytest.raises(error):
            requests_of(broker.session).want(wrong, options)
    assert len(broker.session.subscriptions) == 1
    (request,) = broker.connect(0)
    assert request[4:] == text(b"good") + b"\1"


@pytest.mark.req("W11")
def test_suback_with_wrong_count_of_codes_ends_the_connection():
    broker = connected()
    requests_of(broker.session).want(b"x", 1)
    (request,) = broker.took()
    with pytest.raises(ProtocolError):
        broker.give(suback(id_of(request), 1, 1))
