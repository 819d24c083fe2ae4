"""A message is refused only if the broker does not accept it (R3): each kind of connection end in each state of a trial."""

import pytest

from flashmqtt.connection import CONNECTED, DELIVERED, IN_DOUBT, REFUSED
from flashmqtt.errors import CLOSED_BY_PEER, ConnectionLost, DeadlineExpired, ProtocolError
from flashmqtt.session import suspect
from flashmqtt.session.session import Session
from flashmqtt.session.subscriptions import requests_of
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
    take,
)

RESET = OSError(104, "")  # ECONNRESET


def pass_time(broker, ms=600):
    """Let time pass, then check deadlines as a poll loop does."""
    broker.now += ms
    broker.connection.check(broker.now)


def answer_ping(broker):
    """Wait for the PINGREQ of a trial, and answer it."""
    for _ in range(3):
        pass_time(broker)
    assert broker.took() == [PINGREQ]
    broker.give(PINGRESP)


def end_connection(broker, error=None):
    """End the connection: an error stands for a failure of the link, no error for a disconnect by the program."""
    if error == "fin":
        error = ConnectionLost(CLOSED_BY_PEER)
    if error:
        broker.session.failed(error)
    broker.drop()


def suspected(qos=1, **options):
    """Return a peer that suspects its first message (2): two connections ended without an answer to it.

    Messages 3 to 5 were in flight with it, message 6 was not sent yet.
    """
    broker = connected(**options)
    for i in range(5):
        broker.session.publish(b"a", bytes([i]), qos)
    for _ in range(2):
        assert len(broker.took()) >= 3
        end_connection(broker, "fin")
        if not broker.session.suspect:
            broker.start()
            broker.give(connack(1))
    assert broker.session.suspect
    return broker


def connect_until_pingreq(broker):
    """Connect, and wait for the PINGREQ that is sent before the suspect message."""
    assert broker.connect(1) == []
    pass_time(broker)
    assert broker.took() == []
    pass_time(broker)
    pass_time(broker)
    assert broker.took() == [PINGREQ]


def start_trial(broker):
    """Connect; return the suspect message, which is sent alone."""
    connect_until_pingreq(broker)
    broker.give(PINGRESP)
    one, ping = broker.took()
    assert ping == PINGREQ
    return one


def refused(broker):
    """Return the handles of the messages that were reported as refused."""
    broker.process()
    return [handle for event, handle in broker.handled if event == REFUSED]


@pytest.mark.req("R3")
def test_message_that_makes_broker_close_is_refused_and_others_delivered():
    broker = suspected()
    for _ in range(5):
        assert not refused(broker)
        assert start_trial(broker) == publish(b"a", b"\0", 1, 2, dup=1)
        end_connection(broker, "fin")
    assert broker.connect(1) == []
    assert refused(broker) == [2] and broker.session.code == suspect.CLOSED
    assert not broker.session.delivered(2) and broker.session.is_done(2) and broker.session.store.dropped == 1
    answer_ping(broker)
    sent = broker.took()
    for seq in (3, 4, 5):  # messages that were in flight with it are sent alone, too
        assert sent[-2:] == [publish(b"a", bytes([seq - 2]), 1, seq, dup=1), PINGREQ]
        broker.give(puback(seq) + PINGRESP)
        sent = broker.took()
    assert sent == [publish(b"a", b"\4", 1, 6)] and not broker.session.suspect
    broker.give(puback(6))
    assert broker.session.store.waiting == 0 and broker.session.delivered(6)


@pytest.mark.req("R3")
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_refuse_after_sets_the_number_of_trials(limit):
    broker = suspected(refuse_after=limit)
    for _ in range(limit):
        assert not refused(broker)
        start_trial(broker)
        end_connection(broker, RESET)
    broker.connect(1)
    assert refused(broker) == [2]


@pytest.mark.req("R3")
def test_refuse_after_0_never_refuses_a_message():
    broker = connected(refuse_after=0)
    broker.session.publish(b"a", b"x", 1)
    broker.took()
    for _ in range(20):
        end_connection(broker, "fin")
        assert broker.connect(1) == [publish(b"a", b"x", 1, 2, dup=1)]
    assert not broker.session.suspect


# The states of a trial when the connection ends. Each function brings a peer into one state.
def before_connack(broker):
    broker.start()


def settling(broker):
    broker.connect(1)


def ping_sent(broker):
    connect_until_pingreq(broker)


def unsent(broker):
    """The message is in the output, but none of it was sent."""
    connect_until_pingreq(broker)
    broker.give(PINGRESP)


def begun(broker):
    """Some bytes of the message were sent."""
    unsent(broker)
    take(broker.connection, broker.now, 1)


def sent(broker):
    start_trial(broker)


def ping_answered(broker):
    start_trial(broker)
    broker.give(PINGRESP)


def other_message_sent(broker):
    """The program has sent a QoS 0 message after the suspect message."""
    start_trial(broker)
    broker.session.put_unstored(b"q", b"0")
    assert broker.took() == [publish(b"q", b"0")]


def subscribing(broker):
    """A SUBSCRIBE is unanswered."""
    start_trial(broker)
    requests_of(broker.session).want(b"s", 0)
    assert len(broker.took()) == 1


def message_unanswered(broker):
    """The broker answers PINGREQ, but not the message, for a long time."""
    ping_answered(broker)
    pass_time(broker, 5000)
    assert broker.took() == [PINGREQ]
    broker.give(PINGRESP)


def second_ping_unanswered(broker):
    """The second PINGREQ is not answered."""
    ping_answered(broker)
    pass_time(broker, 5000)
    assert broker.took() == [PINGREQ]


def wrong_answer(broker):
    """The broker's answer belongs to another flow."""
    start_trial(broker)
    with pytest.raises(ProtocolError):
        broker.give(pubcomp(2))


STATES = (
    before_connack,
    settling,
    ping_sent,
    unsent,
    begun,
    sent,
    ping_answered,
    other_message_sent,
    subscribing,
    message_unanswered,
    second_ping_unanswered,
    wrong_answer,
)

# The errors that end the connection; None: the program disconnects.
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
CLOSINGS = ("fin", RESET) + ENDS[3:5]  # noqa: RUF005  # MicroPython has no star in a tuple


@pytest.mark.req("R3")
@pytest.mark.parametrize("number_of_state", range(len(STATES)))
def test_only_broker_close_after_a_lone_message_fails_its_trial(number_of_state):
    state = STATES[number_of_state]
    for error in ENDS:
        broker = suspected(refuse_after=1)
        state(broker)
        end_connection(broker, error)
        if state in (begun, sent, ping_answered, second_ping_unanswered):
            fails = error in CLOSINGS
        else:
            fails = state in (message_unanswered, wrong_answer)
        for _ in range(2):  # after a trial that did not begin, the next connection makes no trial
            broker.connect(1)
            broker.process()
            broker.drop()
        assert refused(broker) == ([2] if fails else []), (state, error)


@pytest.mark.req("R3", "W12")
@pytest.mark.parametrize(
    "code", [0x00, 0x81, 0x82, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x90, 0x95, 0x97, 0x98, 0x99, 0x9B, 0x9C]
)
def test_level_5_disconnect_counts_if_reason_may_concern_the_message(code):
    from flashmqtt.session.level5 import Level5

    def five(octets):
        return octets[:1] + bytes([octets[1] + 1]) + octets[2:] + b"\0"

    def connect(broker):
        broker.start()
        broker.give(five(connack(1)))

    broker = peer(level=5, five=Level5(), refuse_after=1)
    broker.session.publish(b"a", b"x", 1)
    for _ in range(2):
        connect(broker)
        assert len(broker.took()) == 1
        end_connection(broker, "fin")
    connect(broker)
    answer_ping(broker)
    assert len(broker.took()) == 2
    with pytest.raises(ConnectionLost) as raised:
        broker.give(packet(0xE0, bytes([code])))
    end_connection(broker, raised.value)
    connect(broker)
    may_be = code in (0x81, 0x82, 0x87, 0x90, 0x95, 0x99, 0x9B)
    assert refused(broker) == ([2] if may_be else [])
    if may_be:
        assert broker.session.code == code


@pytest.mark.req("R3")
def test_message_that_broker_never_answers_is_refused():
    broker = suspected(qos=2, response_ms=30000)
    for _ in range(5):
        message_unanswered(broker)
        with pytest.raises(DeadlineExpired):
            pass_time(broker, 30000)
        end_connection(broker, DeadlineExpired())
    broker.connect(1)
    assert refused(broker) == [2] and broker.session.code == suspect.SILENT


@pytest.mark.req("R3", "Q2")
def test_message_past_pubrec_without_pubcomp_is_in_doubt():
    broker = suspected(qos=2)
    for i in range(5):
        one = start_trial(broker)
        assert one == (pubrel(2) if i else publish(b"a", b"\0", 2, 2, dup=1))
        if not i:
            broker.give(pubrec(2) + PINGRESP)
            assert broker.took() == [pubrel(2), PINGREQ]
        end_connection(broker, "fin")
    broker.connect(1)
    broker.process()
    assert broker.handled[-1] == (IN_DOUBT, 2) and not broker.session.delivered(2)


@pytest.mark.req("R3")
def test_acknowledgement_resets_the_count_of_failed_trials():
    broker = suspected(refuse_after=3)
    for _ in range(2):
        start_trial(broker)
        end_connection(broker, "fin")
    start_trial(broker)
    broker.give(puback(2) + PINGRESP)
    assert broker.handled[-1] == (DELIVERED, 2)
    assert broker.took() == [publish(b"a", b"\1", 1, 3, dup=1), PINGREQ]
    for _ in range(2):  # the same for the next message, from the beginning
        end_connection(broker, "fin")
        assert start_trial(broker) == publish(b"a", b"\1", 1, 3, dup=1)
    broker.give(puback(3) + PINGRESP)
    assert not refused(broker)


@pytest.mark.req("R3")
def test_bad_message_in_full_window_is_refused_and_others_delivered():
    """The broker closes the connection as soon as it reads message 5, and its answers to earlier messages are lost."""
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
                end_connection(broker, "fin")
                packets = broker.connect(1)
            else:
                broker.give(answers)
                packets = broker.took()
        pass_time(broker)
        broker.process()
        if not broker.session.store.waiting:
            break
    assert refused(broker) == [5]
    assert sorted(set(got)) == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.req("R3", "S1")
def test_trial_count_survives_resets_of_a_sleeping_board():
    broker = in_flight(1, CutStore(), refuse_after=3)
    pass_time(broker, 6000)  # the board is awake, but gets no answer
    end_connection(broker)
    wakes = 0
    while True:
        session = Session(broker.session.store.cut(), 4, 4, refuse_after=3)
        broker = Peer(session, b"me")
        assert broker.session.note.is_of(b"me", b"")
        if refused_after_connect(broker):
            break
        wakes += 1
        assert wakes < 9
        answer_ping(broker)
        assert broker.took() == [publish(b"a", b"x", 1, 2, dup=1), PINGREQ]
        broker.give(PINGRESP)
        pass_time(broker, 5000)
        broker.took()
        broker.give(PINGRESP)
        end_connection(broker)  # the board goes to sleep
    assert wakes == 3
    after = Peer(Session(broker.session.store.cut(), 4, 4, refuse_after=3), b"me")
    assert after.connect(1) == [] and not after.session.suspect and not after.session.delivered(2)


class NotedStore(CutStore):
    """Records the notes about a suspect: (failed trials, sequence & 255)."""

    def __init__(self):
        super().__init__()
        self.notes = []

    def write_note(self, note):
        super().write_note(note)
        self.notes.append((note[2], note[3]))


def acknowledge_all(broker):
    """Let the broker acknowledge all messages; return the notes written since the suspicion began."""
    notes = broker.session.store.notes
    start_trial(broker)
    for seq in range(2, 7):
        broker.give(puback(seq) + PINGRESP)
        broker.took()
    assert not broker.session.suspect and not broker.session.store.waiting
    return notes[2:]  # the first two: of the session's level, and of its first connection


@pytest.mark.req("R3", "S4")
def test_suspicion_without_failed_trial_writes_no_note():
    assert acknowledge_all(suspected(store=NotedStore())) == []


@pytest.mark.req("R3", "S4")
def test_failed_trials_and_their_end_are_noted_once_each():
    broker = suspected(store=NotedStore())
    for _ in range(2):
        start_trial(broker)
        end_connection(broker, "fin")
    assert acknowledge_all(broker) == [(1, 2), (2, 2), (0, 3), (255, 255)]


@pytest.mark.req("R3")
def test_session_without_notes_writes_no_note_about_a_suspect():
    broker = peer(NotedStore(), remember=False)
    for _ in range(2):
        broker.session.publish(b"a", b"x", 1)
        broker.connect(1)
        pass_time(broker, 6000)
        end_connection(broker)
    assert broker.session.suspect and broker.session.store.notes == []


@pytest.mark.req("R3", "S1")
@pytest.mark.parametrize("before", [0, 252, 253, 254])
def test_message_unanswered_twice_is_suspect_after_a_reset(before):
    store = CutStore()
    for _ in range(before):
        store.finish(store.append(b"-", 1))
    broker = connected(store)
    handles = [broker.session.publish(b"a", b"%d" % i, 1) for i in range(2)]
    broker.took()
    pass_time(broker, 6000)
    end_connection(broker)  # without an answer
    broker.connect(1)
    broker.give(puback(handles[0]))
    pass_time(broker, 6000)
    end_connection(broker)  # with an answer to the first only
    broker = Peer(Session(store.cut(), 4, 4), b"me")
    assert start_trial(broker) == publish(b"a", b"1", 1, handles[1], dup=1)


def refused_after_connect(broker):
    assert broker.connect(1) == []
    return refused(broker) == [2]


@pytest.mark.req("R3", "R5", "S1")
def test_power_cut_before_refusal_is_handled_repeats_the_report():
    broker = suspected(store=CutStore(), refuse_after=1)
    start_trial(broker)
    end_connection(broker, "fin")
    broker.start()
    broker.connection.decoder.feed(connack(1))
    assert broker.connection.process(broker.now) == CONNECTED
    assert broker.connection.process(broker.now) == REFUSED  # the power is cut while the handler runs
    store = broker.session.store
    store.flush()  # all other changes become durable
    broker = Peer(Session(store.cut(), 4, 4, refuse_after=1), b"me")
    broker.connect(1)
    assert refused(broker) == [2]
    assert not Session(broker.session.store.cut(), 4, 4).delivered(2)


@pytest.mark.req("R3")
def test_short_connections_still_make_progress():
    broker = suspected()
    delivered = 0
    while broker.session.store.waiting:
        delivered += 1
        assert delivered < 20
        for one in broker.connect(1)[:1]:
            broker.give(puback(one[5] << 8 | one[6]))
        end_connection(broker, RESET)
    assert not refused(broker)


@pytest.mark.req("R3", "Q5")
def test_unanswered_timed_retries_end_the_connection():
    broker = in_flight(1, retry_ms=1000, response_ms=3000)
    with pytest.raises(DeadlineExpired):
        for _ in range(20):
            pass_time(broker, 500)
            broker.took()
    assert broker.now < 1000 + 6000


@pytest.mark.req("R3", "Q2")
def test_puback_for_qos_2_message_counts_as_delivered_at_qos_1():
    broker = in_flight(2)
    broker.give(puback(2))
    assert broker.handled[-1] == (DELIVERED, 2) and broker.session.delivered(2)
    assert broker.session.downgraded == 1
    broker.drop()
    assert broker.connect(1) == []


@pytest.mark.req("R3", "Q2")
def test_puback_after_pubrec_is_a_protocol_error():
    broker = in_flight(2)
    broker.give(pubrec(2))
    broker.took()
    with pytest.raises(ProtocolError):
        broker.give(puback(2))


@pytest.mark.req("R3")
def test_max_qos_1_sends_stored_and_new_qos_2_messages_at_qos_1():
    broker = in_flight(2, CutStore())
    broker = Peer(Session(broker.session.store.cut(), 4, 4, max_qos=1), b"me")
    broker.session.publish(b"a", b"new", 2)
    assert broker.connect(1) == [publish(b"a", b"x", 1, 2, dup=1), publish(b"a", b"new", 1, 3)]
    broker.give(puback(2), puback(3))
    assert broker.session.store.waiting == 0 and broker.session.downgraded == 0


@pytest.mark.req("R3")
def test_trial_waits_for_the_suback():
    broker = suspected()
    requests_of(broker.session).want(b"s", 1)
    (request,) = broker.connect(1)
    for _ in range(4):
        pass_time(broker)
        assert broker.took() == []
    broker.give(suback(request[2] << 8 | request[3], 1))
    pass_time(broker)
    assert broker.took() == [PINGREQ]
