"""A program without a durable store resumes the session that the broker has kept, and clears its packet ids (Q8, W8)."""

import pytest

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.connection import DELIVERED
from flashmqtt.errors import DeadlineExpired
from flashmqtt.session.ram import RamStore
from loopback import Loopback
from wire import CutStore, peer, puback, pubcomp, publish, pubrec, pubrel


def restarted(**options):
    """Return a peer with an empty RAM store; the broker still has the session of an earlier run."""
    return peer(RamStore(), settled=False, **options)


@pytest.mark.req("Q8")
@pytest.mark.parametrize("level", [3, 4])
def test_queued_messages_arrive_on_first_connection_after_restart(level):
    broker = restarted(level=level)
    assert broker.connect(level > 3) == []
    assert not broker.connect_packet[11 if level == 3 else 9] & 2
    broker.give(*[publish(b"t", b"%d" % i, 1, 10 + i) for i in range(3)])
    assert [message[1] for message in broker.messages] == [b"0", b"1", b"2"]
    assert broker.took() == [puback(10), puback(11), puback(12)]


@pytest.mark.req("Q8", "W8")
def test_old_packet_id_is_cleared_before_qos_2_message_reuses_it():
    broker = restarted()
    handles = [broker.session.publish(b"a", b"new %d" % i, 2) for i in range(2)]
    assert broker.connect(1) == [pubrel(1)]  # the broker may hold a message of the earlier run under this id
    assert broker.took() == []
    broker.give(pubcomp(1))
    assert broker.took() == [publish(b"a", b"new 0", 2, 1), pubrel(2)]
    broker.give(pubrec(1) + pubcomp(2))
    assert broker.took() == [pubrel(1), publish(b"a", b"new 1", 2, 2)]
    broker.give(pubcomp(1) + pubrec(2) + pubcomp(2))
    assert broker.handled[1:] == [(DELIVERED, 1), (DELIVERED, 2)]
    assert all(broker.session.delivered(handle) for handle in handles)
    assert broker.session.publish(b"a", b"live", 1) == 3 and broker.took() == [pubrel(2), publish(b"a", b"live", 1, 3)]


@pytest.mark.req("Q8", "W8")
def test_qos_1_messages_are_sent_without_clearing_packet_ids():
    broker = restarted()
    for i in range(3):
        broker.session.publish(b"a", b"%d" % i, 1)
    assert broker.connect(1) == [publish(b"a", b"%d" % i, 1, 1 + i) for i in range(3)]


@pytest.mark.req("Q8", "W8")
def test_broker_without_session_needs_no_packet_id_clearing():
    broker = restarted()
    broker.session.publish(b"a", b"x", 2)
    assert broker.connect(0) == [publish(b"a", b"x", 2, 1)]
    broker.drop()
    assert broker.connect(1) == [publish(b"a", b"x", 2, 1, dup=1)]  # the broker's session was made by this run


@pytest.mark.req("Q8", "W8")
def test_packet_id_clearing_restarts_after_a_lost_connection():
    broker = restarted()
    broker.session.publish(b"a", b"x", 2)
    assert broker.connect(1) == [pubrel(1)]
    broker.drop()
    assert broker.connect(1) == [pubrel(1)]
    broker.give(pubcomp(1))
    assert broker.took() == [publish(b"a", b"x", 2, 1)]
    broker.drop()
    assert broker.connect(1) == [publish(b"a", b"x", 2, 1, dup=1)]  # the packet id now belongs to this message


@pytest.mark.req("Q8", "B4")
def test_unanswered_packet_id_clearing_raises_deadline_expired():
    broker = restarted(response_ms=3000)
    broker.session.publish(b"a", b"x", 2)
    broker.connect(1)
    with pytest.raises(DeadlineExpired):
        for _ in range(10):
            broker.now += 600
            broker.connection.check(broker.now)


@pytest.mark.req("Q8", "W8")
def test_empty_durable_store_still_clears_the_broker_session():
    broker = peer(CutStore(), settled=False)
    assert broker.connect(1) == [b"\xe0\x00"]


@pytest.mark.req("Q8", "R3")
@pytest.mark.parametrize("silent", [False, True])
def test_message_is_sent_after_packet_id_clearing_failed_three_times(silent):
    class Broker(Loopback):
        def take(self, one):
            if one[0] >> 4 == 6 and not self.of(3):
                self.packets.append(one)
                if not silent:
                    self.drop()
            else:
                super().take(one)

    broker = Broker()
    broker.present = 1
    client = Client(
        "127.0.0.1", broker.port, "me", feed=broker, response_s=1, refuse_after=3, backoff=Backoff(20, 40, 50)
    )
    client.connect()
    handles = [client.publish("a", "x", 2), client.publish("a", "y", 1)]
    assert client.drain(60) and [client.delivered(handle) for handle in handles] == [True, True]
    assert len(broker.of(6)) == 4 and broker.connects == 4  # the first three connections failed
    client.disconnect()
    broker.close()


@pytest.mark.req("Q8")
@pytest.mark.parametrize("level", [4, 5])
def test_client_without_store_receives_queued_messages(level):
    class Keeps(Loopback):
        def take(self, one):
            super().take(one)
            if one[0] >> 4 == 1:
                extra = b"\0" if level == 5 else b""
                for i in range(3):
                    body = b"\0\1t" + bytes([0, 10 + i]) + extra + b"queued"
                    self.give(bytes([0x32, len(body)]) + body)

    broker = Keeps()
    broker.present = 1
    if level == 5:
        give = broker.give
        broker.give = lambda *packets: give(*[b"\x20\x03\1\0\0" if one[0] == 0x20 else one for one in packets])
    got = []
    client = Client("127.0.0.1", broker.port, "me", level=level, feed=broker)
    client.on_message = lambda message: got.append(message.payload)
    assert client.connect() is True
    for _ in range(500):
        if len(got) >= 3:
            break
        client.poll(20)
    assert got == [b"queued"] * 3 and broker.connects == 1
    client.disconnect()
    broker.close()
