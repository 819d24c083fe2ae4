"""A message that the broker does not take is set aside, and nothing else ever is (R3): every end of a trial at every stage."""

import pytest

from flashmqtt.connection import CONNECTED, DELIVERED, IN_DOUBT, REFUSED
from flashmqtt.errors import ConnectionLost, DeadlineExpired, ProtocolError
from flashmqtt.session import suspect
from flashmqtt.session.session import Session
from wire import (
    PINGREQ,
    PINGRESP,
    CutStore,
    Peer,
    connack,
    connected,
    in_flight,
    packet,
    peer,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    suback,
)

RESET = OSError(104, "")  # ECONNRESET


def check(broker, ms=600):
    """Let time pass."""
    broker.now += ms
    broker.connection.check(broker.now)


def end(broker, error=None):
    """End the connection as the link does, by an error; or, without one, as the program does."""
    if error == "fin":
        with pytest.raises(ConnectionLost) as raised:
            broker.connection.received(0, broker.now)
        error = raised.value
    if error:
        broker.session.failed(error)
    broker.drop()


def suspected(qos=1, **options):
    """Return a peer whose first message (2) was twice unanswered at a connection's end; 3 to 5 were sent with it, 6 was not."""
    broker = connected(**options)
    for i in range(5):
        broker.session.publish(b"a", bytes([i]), qos)
    for _ in range(2):
        assert len(broker.took()) >= 3
        end(broker, "fin")
        if not broker.session.suspect:
            broker.connection.start(broker.now)
            broker.took()
            broker.give(connack(1))
    assert broker.session.suspect
    return broker


def settled(broker):
    """Connect; return when the broker was asked whether it has read all that went before the message."""
    assert broker.connect(1) == []
    check(broker)
    assert broker.took() == []
    check(broker)
    check(broker)
    assert broker.took() == [PINGREQ]


def tried(broker):
    """Connect; return the message that goes out alone."""
    settled(broker)
    broker.give(PINGRESP)
    one, ping = broker.took()
    assert ping == PINGREQ
    return one


def refused(broker):
    """Return what was reported as refused, with its code."""
    broker.process()
    return [handle for event, handle in broker.handled if event == REFUSED]


@pytest.mark.req("R3")
def test_a_message_that_the_broker_closes_on_is_set_aside_and_what_is_behind_it_flows():
    broker = suspected()
    for _ in range(5):
        assert not refused(broker)
        assert tried(broker) == publish(b"a", b"\0", 1, 2, dup=1)
        end(broker, "fin")
    assert broker.connect(1) == []
    assert refused(broker) == [2] and broker.session.code == suspect.CLOSED
    assert not broker.session.delivered(2) and broker.session.is_done(2) and broker.session.store.dropped == 1
    for _ in range(3):
        check(broker)
    assert broker.took() == [PINGREQ]
    broker.give(PINGRESP)
    sent = broker.took()
    for seq in (3, 4, 5):  # what was in flight with it goes alone, too
        assert sent[-2:] == [publish(b"a", bytes([seq - 2]), 1, seq, dup=1), PINGREQ]
        broker.give(puback(seq) + PINGRESP)
        sent = broker.took()
    assert sent == [publish(b"a", b"\4", 1, 6)] and not broker.session.suspect
    broker.give(puback(6))
    assert broker.session.pending() == 0 and broker.session.delivered(6)


@pytest.mark.req("R3")
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_the_number_of_trials_is_the_programs(limit):
    broker = suspected(refuse_after=limit)
    for _ in range(limit):
        assert not refused(broker)
        tried(broker)
        end(broker, RESET)
    broker.connect(1)
    assert refused(broker) == [2]


@pytest.mark.req("R3")
def test_no_message_is_set_aside_where_the_program_wants_none_to_be():
    broker = connected(refuse_after=0)
    broker.session.publish(b"a", b"x", 1)
    broker.took()
    for _ in range(20):
        end(broker, "fin")
        assert broker.connect(1) == [publish(b"a", b"x", 1, 2, dup=1)]
    assert not broker.session.suspect


# What may be the state of a trial when the connection ends ...
def before_connack(broker):
    broker.connection.start(broker.now)
    broker.took()


def settling(broker):
    broker.connect(1)


def asking(broker):
    settled(broker)


def unsent(broker):
    """The message is in the output, and nothing of it has left."""
    settled(broker)
    broker.give(PINGRESP)


def begun(broker):
    """Some bytes of the message have left."""
    unsent(broker)
    broker.connection.output.offer()
    broker.connection.output.sent(1, broker.now)


def sent(broker):
    tried(broker)


def heard(broker):
    tried(broker)
    broker.give(PINGRESP)


def disturbed(broker):
    """The program has sent a QoS 0 message since."""
    tried(broker)
    broker.session.put_unstored(b"q", b"0")
    assert broker.took() == [publish(b"q", b"0")]


def subscribing(broker):
    """A SUBSCRIBE is unanswered."""
    tried(broker)
    broker.session.subscribe(b"s", 0)
    assert len(broker.took()) == 1


def silent(broker):
    """The broker answers PINGREQ for longer than any message takes."""
    heard(broker)
    check(broker, 5000)
    assert broker.took() == [PINGREQ]
    broker.give(PINGRESP)


def unheard(broker):
    """The second PINGREQ is not answered."""
    heard(broker)
    check(broker, 5000)
    assert broker.took() == [PINGREQ]


def wrong(broker):
    """The broker's answer is one to another flow."""
    tried(broker)
    with pytest.raises(ProtocolError):
        broker.give(pubcomp(2))


STATES = (before_connack, settling, asking, unsent, begun, sent, heard, disturbed, subscribing, silent, unheard, wrong)

# ... and what ends it.
ENDS = (
    None,
    "fin",
    RESET,
    OSError(32, ""),  # EPIPE
    OSError(-0x7280, ""),  # TLS: the peer has closed
    OSError(110, ""),  # ETIMEDOUT
    OSError(113, ""),  # EHOSTUNREACH
    OSError(103, ""),  # ECONNABORTED: lwIP gave up
    DeadlineExpired("no PINGRESP"),
    ConnectionLost("by the store"),
    ProtocolError("somewhere else"),
)
CLOSINGS = ("fin", RESET) + ENDS[3:5]  # noqa: RUF005  # MicroPython has no star here


@pytest.mark.req("R3")
@pytest.mark.parametrize("number_of_state", range(len(STATES)))
def test_only_the_brokers_own_end_of_a_lone_message_counts(number_of_state):
    state = STATES[number_of_state]
    for error in ENDS:
        broker = suspected(refuse_after=1)
        state(broker)
        end(broker, error)
        if state in (begun, sent, heard, unheard):
            fails = error in CLOSINGS
        else:
            fails = state in (silent, wrong)
        for _ in range(2):  # a trial that did not begin is followed by a connection without
            broker.connect(1)
            broker.process()
            broker.drop()
        assert refused(broker) == ([2] if fails else []), (state, error)


@pytest.mark.req("R3", "W12")
@pytest.mark.parametrize(
    "code", [0x00, 0x81, 0x82, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x90, 0x95, 0x97, 0x98, 0x99, 0x9B, 0x9C]
)
def test_a_disconnect_of_level_5_counts_where_its_reason_may_be_the_message(code):
    from flashmqtt.session.level5 import Level5

    def five(octets):
        return octets[:1] + bytes([octets[1] + 1]) + octets[2:] + b"\0"

    def connect(broker):
        broker.connection.start(broker.now)
        broker.took()
        broker.give(five(connack(1)))

    broker = peer(level=5, five=Level5(), refuse_after=1)
    broker.session.publish(b"a", b"x", 1)
    for _ in range(2):
        connect(broker)
        assert len(broker.took()) == 1
        end(broker, "fin")
    connect(broker)
    for _ in range(3):
        check(broker)
    assert broker.took() == [PINGREQ]
    broker.give(PINGRESP)
    assert len(broker.took()) == 2
    with pytest.raises(ConnectionLost) as raised:
        broker.give(packet(0xE0, bytes([code])))
    end(broker, raised.value)
    connect(broker)
    may_be = code in (0x81, 0x82, 0x87, 0x90, 0x95, 0x99, 0x9B)
    assert refused(broker) == ([2] if may_be else [])
    if may_be:
        assert broker.session.code == code


@pytest.mark.req("R3")
def test_a_broker_that_never_answers_a_message_gets_the_next_ones():
    broker = suspected(qos=2, response_ms=30000)
    for _ in range(5):
        silent(broker)
        with pytest.raises(DeadlineExpired):
            check(broker, 30000)
        end(broker, DeadlineExpired())
    broker.connect(1)
    assert refused(broker) == [2] and broker.session.code == suspect.SILENT


@pytest.mark.req("R3", "Q2")
def test_a_message_past_pubrec_that_is_not_completed_is_in_doubt():
    broker = suspected(qos=2)
    for i in range(5):
        one = tried(broker)
        assert one == (pubrel(2) if i else publish(b"a", b"\0", 2, 2, dup=1))
        if not i:
            broker.give(pubrec(2) + PINGRESP)
            assert broker.took() == [pubrel(2), PINGREQ]
        end(broker, "fin")
    broker.connect(1)
    broker.process()
    assert broker.handled[-1] == (IN_DOUBT, 2) and not broker.session.delivered(2)


@pytest.mark.req("R3")
def test_an_acknowledgement_ends_the_count():
    broker = suspected(refuse_after=3)
    for _ in range(2):
        tried(broker)
        end(broker, "fin")
    tried(broker)
    broker.give(puback(2) + PINGRESP)
    assert broker.handled[-1] == (DELIVERED, 2)
    assert broker.took() == [publish(b"a", b"\1", 1, 3, dup=1), PINGREQ]
    for _ in range(2):  # the same for the next message, from the beginning
        end(broker, "fin")
        assert tried(broker) == publish(b"a", b"\1", 1, 3, dup=1)
    broker.give(puback(3) + PINGRESP)
    assert not refused(broker)


@pytest.mark.req("R3")
def test_the_poison_in_a_full_window_is_found_and_the_others_are_delivered():
    """The broker closes as soon as it reads message 5; what it would have answered before is lost with the connection."""
    broker = connected(window=8)
    for i in range(8):
        broker.session.publish(b"a", bytes([i]), 1)
    got = []
    for _turn in range(60):
        packets = broker.took()
        while packets:
            answers = b""
            for one in packets:
                if one[0] >> 4 == 12:
                    answers += PINGRESP
                elif one[-1] == 3:
                    answers = None
                    break
                else:
                    got.append(one[-1])
                    answers += puback(one[-3] << 8 | one[-2])
            if answers is None:
                end(broker, "fin")
                packets = broker.connect(1)
            else:
                broker.give(answers)
                packets = broker.took()
        check(broker)
        broker.process()
        if not broker.session.pending():
            break
    assert refused(broker) == [5]
    assert sorted(set(got)) == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.req("R3", "S1")
def test_the_count_survives_resets_of_a_board_that_sleeps():
    broker = in_flight(1, CutStore(), refuse_after=3)
    check(broker, 6000)  # a wake without an answer
    end(broker)
    wakes = 0
    while True:
        session = Session(broker.session.store.cut(), 4, 4, refuse_after=3)
        broker = Peer(session, b"me")
        assert broker.session.has_note(b"me", b"")
        if refused_after_connect(broker):
            break
        wakes += 1
        assert wakes < 9
        for _ in range(3):
            check(broker)
        assert broker.took() == [PINGREQ]
        broker.give(PINGRESP)
        assert broker.took() == [publish(b"a", b"x", 1, 2, dup=1), PINGREQ]
        broker.give(PINGRESP)
        check(broker, 5000)
        broker.took()
        broker.give(PINGRESP)
        end(broker)  # it goes to sleep
    assert wakes == 3
    after = Peer(Session(broker.session.store.cut(), 4, 4, refuse_after=3), b"me")
    assert after.connect(1) == [] and not after.session.suspect and not after.session.delivered(2)


class NotedStore(CutStore):
    """Lists the notes about a suspect: (failed trials, sequence & 255)."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def write_note(self, note):
        super().write_note(note)
        self.notes.append((note[2], note[3]))


def lifted(broker):
    """Let the broker take all messages; return what was noted since the suspicion began."""
    notes = broker.session.store.notes
    tried(broker)
    for seq in range(2, 7):
        broker.give(puback(seq) + PINGRESP)
        broker.took()
    assert not broker.session.suspect and not broker.session.pending()
    return notes[1:]


@pytest.mark.req("R3", "S4")
def test_a_suspicion_without_a_failed_trial_is_not_noted():
    assert lifted(suspected(store=NotedStore())) == []


@pytest.mark.req("R3", "S4")
def test_a_failed_trial_is_noted_once_and_so_is_the_end_of_the_count():
    broker = suspected(store=NotedStore())
    for _ in range(2):
        tried(broker)
        end(broker, "fin")
    assert lifted(broker) == [(1, 2), (2, 2), (0, 3), (255, 0)]


@pytest.mark.req("R3")
def test_a_session_that_keeps_no_note_notes_no_suspect():
    broker = peer(NotedStore(), remember=False)
    for _ in range(2):
        broker.session.publish(b"a", b"x", 1)
        broker.connect(1)
        check(broker, 6000)
        end(broker)
    assert broker.session.suspect and broker.session.store.notes == []


@pytest.mark.req("R3", "S1")
@pytest.mark.parametrize("before", [0, 252, 253, 254])
def test_a_wake_that_ends_with_another_message_unanswered_is_remembered_over_a_reset(before):
    store = CutStore()
    for _ in range(before):
        store.finish(store.append(b"-", 1))
    broker = connected(store)
    handles = [broker.session.publish(b"a", b"%d" % i, 1) for i in range(2)]
    broker.took()
    check(broker, 6000)
    end(broker)  # without an answer
    broker.connect(1)
    broker.give(puback(handles[0]))
    check(broker, 6000)
    end(broker)  # with an answer to the first only
    broker = Peer(Session(store.cut(), 4, 4), b"me")
    assert tried(broker) == publish(b"a", b"1", 1, handles[1], dup=1)


def refused_after_connect(broker):
    assert broker.connect(1) == []
    return refused(broker) == [2]


@pytest.mark.req("R3", "R5", "S1")
def test_power_that_goes_before_a_refusal_was_handed_over_loses_no_report():
    broker = suspected(store=CutStore(), refuse_after=1)
    tried(broker)
    end(broker, "fin")
    broker.connection.start(broker.now)
    broker.took()
    broker.connection.decoder.feed(connack(1))
    assert broker.connection.process(broker.now) == CONNECTED
    assert broker.connection.process(broker.now) == REFUSED  # the handler runs now, and the power goes
    store = broker.session.store
    store.flush()  # whatever else was written meanwhile
    broker = Peer(Session(store.cut(), 4, 4, refuse_after=1), b"me")
    broker.connect(1)
    assert refused(broker) == [2]
    assert not Session(broker.session.store.cut(), 4, 4).delivered(2)


@pytest.mark.req("R3")
def test_a_link_that_is_never_up_for_long_makes_progress():
    broker = suspected()
    delivered = 0
    while broker.session.pending():
        delivered += 1
        assert delivered < 20
        for one in broker.connect(1)[:1]:
            broker.give(puback(one[5] << 8 | one[6]))
        end(broker, RESET)
    assert not refused(broker)


@pytest.mark.req("R3", "Q5")
def test_a_message_that_timed_retries_repeat_in_vain_ends_the_connection():
    broker = in_flight(1, retry_ms=1000, response_ms=3000)
    with pytest.raises(DeadlineExpired):
        for _ in range(20):
            check(broker, 500)
            broker.took()
    assert broker.now < 1000 + 6000


@pytest.mark.req("R3", "Q2")
def test_a_broker_that_answers_qos_2_by_puback_has_it_at_qos_1():
    broker = in_flight(2)
    broker.give(puback(2))
    assert broker.handled[-1] == (DELIVERED, 2) and broker.session.delivered(2)
    assert broker.session.downgraded == 1
    broker.drop()
    assert broker.connect(1) == []


@pytest.mark.req("R3", "Q2")
def test_a_puback_after_pubrec_is_a_violation():
    broker = in_flight(2)
    broker.give(pubrec(2))
    broker.took()
    with pytest.raises(ProtocolError):
        broker.give(puback(2))


@pytest.mark.req("R3")
def test_max_qos_1_publishes_and_sends_what_was_stored_at_qos_2_at_qos_1():
    broker = in_flight(2, CutStore())
    broker = Peer(Session(broker.session.store.cut(), 4, 4, max_qos=1), b"me")
    broker.session.publish(b"a", b"new", 2)
    assert broker.connect(1) == [publish(b"a", b"x", 1, 2, dup=1), publish(b"a", b"new", 1, 3)]
    broker.give(puback(2), puback(3))
    assert broker.session.pending() == 0 and broker.session.downgraded == 0


@pytest.mark.req("R3")
def test_a_subscription_goes_before_the_lone_message():
    broker = suspected()
    broker.session.subscribe(b"s", 1)
    (request,) = broker.connect(1)
    for _ in range(4):
        check(broker)
        assert broker.took() == []
    broker.give(suback(request[2] << 8 | request[3], 1))
    check(broker)
    assert broker.took() == [PINGREQ]
