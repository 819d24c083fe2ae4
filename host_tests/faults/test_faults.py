"""Link cuts at every place and broker kills lose and duplicate no message; and the harness finds planted faults."""

import asyncio
import random
from argparse import ArgumentTypeError
from dataclasses import replace

import pytest

from tools.proof import packets as p
from tools.proof.broker import Broker, find_mosquitto
from tools.proof.faults import power
from tools.proof.faults.audit import audit
from tools.proof.faults.cases import Case, Outcome, Wire, judge, places_of
from tools.proof.faults.peer import Peer
from tools.proof.faults.runner import HEAP
from tools.proof.faults.suites import FULL, SHORT, Suite, find
from tools.proof.program import Program, holds
from tools.proof.proxy import Cut, Proxy, Seen
from tools.proof.tally import Tally

WORKERS = 8
needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="no mosquitto")


@needs_mosquitto
@pytest.mark.req("Q0", "Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q8")
@pytest.mark.parametrize("suite", SHORT, ids=[suite.name for suite in SHORT])
def test_cut_at_any_place_keeps_the_delivery_guarantees(suite):
    tally = Tally()
    asyncio.run(replace(suite, workers=WORKERS).run(tally.add))
    assert tally.failing == []
    assert tally.counts["cases"] > 2 * len(suite.bases)
    assert tally.counts["not_reached"] <= tally.counts["cases"] // 20


@needs_mosquitto
@pytest.mark.req("Q8")
@pytest.mark.parametrize("broker", ["lost", "lostdrop"])
@pytest.mark.parametrize("level", [4, 5])
def test_message_past_pubrec_is_in_doubt_when_the_connack_that_reports_the_loss_is_lost(level, broker):
    case = find(f"{level}-q2-out-mpy-ram-{broker}-w2x4/down6.after.action+down1.before.rst")
    verdicts = []
    asyncio.run(Suite("in doubt", (case,)).run(verdicts.append))
    (verdict,) = verdicts
    assert verdict.problems == []
    assert verdict.made == 2 and verdict.wire.forgot
    lost = {1, 2, 3, 4}.difference(verdict.received)
    assert lost and lost == set(verdict.doubtful)


@needs_mosquitto
@pytest.mark.req("B2")
def test_window_of_8_with_journal_fits_the_full_runs_heap():
    (tight,) = (suite for suite in FULL if suite.heap != HEAP)
    tally = Tally()
    asyncio.run(replace(tight, manners=(), workers=WORKERS).run(tally.add))
    assert tally.failing == []
    assert tally.counts["cases"] == len(tight.bases)


@needs_mosquitto
@pytest.mark.req("S1", "S2", "Q1", "Q2", "Q3", "Q4", "Q6", "B4")
@pytest.mark.parametrize("level", [4, 5])
def test_board_killed_at_random_neither_loses_nor_repeats_messages(level):
    verdicts = []
    asyncio.run(Suite("power", (power.Case(level, 12, seed=level),), workers=1).run(verdicts.append))
    (verdict,) = verdicts
    assert verdict.problems == []
    assert verdict.kills == 12
    assert verdict.published == 12 * power.MESSAGES_A_KILL


@needs_mosquitto
def test_board_waits_while_its_journal_is_full(tmp_path):
    async def until(condition, living):
        while not condition() and not living.done():
            await asyncio.sleep(0.01)
        assert condition()

    async def scene(broker):
        peer = await Peer(broker.port, "peer").start()
        await peer.subscribe("board/out")
        proxy = Proxy(broker.port, random.Random(0))
        proxy.refuse("full")
        await proxy.start()
        told = power.Verdict(case=power.Case(4, 40, 0))  # 480 messages, more than its flash can hold
        board = power.Board(Program("mpy", tmp_path, power.HEAP), tmp_path / "board.flash", proxy.port, told)
        living = await board.on()
        try:
            await until(lambda: board.was_full, living)
            proxy.admit("full")
            await until(lambda: told.published == 40 * power.MESSAGES_A_KILL, living)
            for qos in (1, 2):
                peer.send("board/in", b"end", qos)
            await living
            assert await holds(lambda: len(peer.received["board/out"]) == told.published, 60)
        finally:
            await board.off(random.Random(0))
            await asyncio.gather(living, return_exceptions=True)
            await proxy.stop()
            await peer.stop()

    with Broker(tmp_path / "broker", kind="mosquitto") as broker:
        asyncio.run(asyncio.wait_for(scene(broker), 120))


def test_every_case_is_found_by_its_id():
    cases = {case for suite in (*FULL, *SHORT) for case in suite.bases}
    for case in cases:
        cut = find(f"{case}/up3.middle.rst+down12.after.fin")
        assert replace(cut, cuts=()) == case
        assert find(str(cut)) == cut
    for text in ("4-q3-out-mpy-ram-mosquitto-w2x4", "4-q2-out-mpy-ram-mosquitto-w2x4/up3.nowhere.rst"):
        with pytest.raises(ArgumentTypeError, match=f"not the id of a case: {text}"):
            find(text)


def test_places_to_cut_are_enumerated_once():
    trace = [Seen("up", b"\xc0\x00", 2, 1, 0), Seen("down", b"\x40\x02\x00\x01", 4, 1, 0)]
    places = [str(cut) for cut in places_of(trace, ("rst",))]
    assert places == [
        *("up1.before.rst", "up1.first.rst", "up1.after.rst"),
        *("down1.before.rst", "down1.first.rst", "down1.middle.rst", "down1.last.rst", "down1.after.rst"),
    ]


@pytest.mark.parametrize(
    ("qos", "received", "problem"),
    [
        (0, [1, 3], ""),
        (0, [1, 1], "twice"),
        (0, [2, 1], "out of order"),
        (1, [1, 2, 3, 4], ""),
        (1, [1, 2, 1, 2, 3, 4], ""),
        (1, [1, 2, 4], "lost: [3]"),
        (1, [1, 2, 1, 2, 1, 2, 3, 4], "repeated on a live connection"),
        (1, [2, 1, 3, 4], "out of order"),
        (2, [1, 2, 3, 4], ""),
        (2, [1, 2, 2, 3, 4], "twice"),
        (2, [1, 2, 3], "lost: [4]"),
        (2, [1, 2, 3, 4, 9], "never sent"),
    ],
)
def test_judge_finds_planted_delivery_faults(qos, received, problem):
    case = Case(4, qos, "in", cuts=(Cut("up", 1, "before", "rst"),))
    problems = judge(Outcome(case=case, handed=received, connections=2))
    assert bool(problems) == bool(problem)
    assert problem in "".join(problems)


def _wire(*packets):
    return [Seen(way, content, len(content), connection, 0) for connection, way, content in packets]


FIRST = p.publish("t", "1;", 2, 1)
AGAIN = p.publish("t", "1;", 2, 1, dup=True)
REC, REL, COMP = (p.ack(kind, 1) for kind in (p.PUBREC, p.PUBREL, p.PUBCOMP))


@pytest.mark.parametrize(
    ("trace", "problem"),
    [
        (_wire((1, "up", FIRST), (2, "up", AGAIN), (2, "down", REC), (2, "up", REL), (2, "down", COMP)), ""),
        (_wire((1, "up", FIRST), (2, "up", FIRST)), "again without DUP"),
        (_wire((1, "up", AGAIN)), "with DUP on the first connection"),
        (_wire((1, "up", FIRST), (1, "up", AGAIN)), "twice"),
        (_wire((1, "up", FIRST), (1, "down", REC), (1, "up", REL), (2, "up", AGAIN)), "after its PUBREL"),
        (_wire((1, "up", FIRST), (1, "up", REL)), "without a PUBREC"),
        (_wire((1, "up", p.publish("t", "2;", 1, 2)), (1, "up", p.publish("t", "1;", 1, 1))), "after 2"),
        (_wire(*((1, "up", p.publish("t", f"{n};", 1, n)) for n in (1, 2, 3))), "3 messages in flight"),
        (_wire((1, "up", p.ack(p.PUBACK, 7))), "answers nothing"),
        (_wire((1, "up", p.publish("t", "1;", 1, 1)), (2, "up", p.publish("t", "1;", 1, 2, dup=True))), "had id 1"),
        (_wire((1, "up", b"\x32\x05\x00\x01a\x00\x00")), "packet id of 0"),
    ],
)
def test_audit_finds_planted_violations(trace, problem):
    problems = audit(Case(4, 2, "out"), trace).problems
    assert bool(problems) == bool(problem), problems
    assert problem in "".join(problems)


@pytest.mark.parametrize("answered", [(), ((1, "up", COMP),)])  # the broker may not have read that PUBCOMP
def test_broker_resend_after_pubrel_is_not_blamed_on_the_client(answered):
    trace = _wire((1, "down", FIRST), (1, "up", REC), (1, "down", REL), *answered, (2, "down", AGAIN), (2, "up", REC))
    wire = audit(Case(4, 2, "in"), trace)
    assert (wire.problems, wire.repeated) == ([], {1})


@pytest.mark.parametrize(
    "later",
    [
        ((1, "down", FIRST), (2, "down", AGAIN)),
        # Its first PUBLISH was written to a connection that ended: the proxy has not seen it.
        ((2, "down", p.publish("t", "2;", 2, 1, dup=True)), (3, "down", p.publish("t", "2;", 2, 1, dup=True))),
    ],
)
def test_new_message_with_the_id_of_an_earlier_one_is_no_repetition_by_the_broker(later):
    flow = ((1, "down", FIRST), (1, "up", REC), (1, "down", REL), (1, "up", COMP))
    assert audit(Case(4, 2, "in"), _wire(*flow, *later)).repeated == set()


CONNECT, CONNACK = p.connect("me", 4, clean=False), p.connack(4, 1)


@pytest.mark.req("Q2", "R3")
@pytest.mark.parametrize(
    ("store", "present", "packets", "problem"),
    [
        ("ram", 1, [("up", REL), ("down", COMP), ("up", FIRST)], ""),
        ("ram", 1, [("up", REL), ("down", COMP), ("up", FIRST), ("up", REL)], "without a PUBREC"),
        ("ram", 0, [("up", REL)], "without a PUBREC"),
        ("journal", 1, [("up", REL)], "without a PUBREC"),
    ],
)
def test_clearing_pubrel_needs_a_ram_store_and_a_present_session(store, present, packets, problem):
    trace = _wire((1, "up", CONNECT), (1, "down", p.connack(4, present)), *((1, *packet) for packet in packets))
    problems = audit(Case(4, 2, "out", store=store), trace).problems
    assert bool(problems) == bool(problem), problems
    assert problem in "".join(problems)


LATE = "DeadlineExpired no CONNACK for 1000 ms"


@pytest.mark.parametrize(
    ("manner", "told", "before", "problem"),
    [
        ("rst", [], [], ""),
        ("action", [], [], ""),
        ("fin", [], [], "without a PUBREC"),
        ("rst", [], [(1, "up", b"\xc0\x00")], "without a PUBREC"),
        # On a slow machine the device may give up just before it reads the CONNACK.
        ("fin", [LATE], [], ""),
        ("fin", [LATE], [(1, "up", b"\xc0\x00")], "without a PUBREC"),
        ("fin", ["DeadlineExpired no PINGRESP for 1000 ms"], [], "without a PUBREC"),
    ],
)
def test_connack_that_the_device_may_not_have_read_counts_as_unread(manner, told, before, problem):
    case = Case(4, 2, "out", store="ram", cuts=(Cut("down", 1, "after", manner),))
    trace = _wire((1, "up", CONNECT), (1, "down", p.connack(4, 0)), *before, (2, "up", CONNECT))
    trace += _wire((2, "down", p.connack(4, 1)), (2, "up", REL))
    problems = audit(case, trace, Outcome(case=case, texts=told).gave_up).problems
    assert bool(problems) == bool(problem), problems
    assert problem in "".join(problems)


LOST = p.connack(4, 0)
LIVED = [(1, "up", CONNECT), (1, "down", LOST), (1, "up", FIRST), (1, "down", REC), (1, "up", REL)]
RETURNS = [(3, "up", CONNECT), (3, "down", CONNACK)]


@pytest.mark.req("Q8")
@pytest.mark.parametrize(
    ("manner", "passes", "after", "problem"),
    [
        # The device does not know of the loss.
        ("rst", False, [("up", REL), ("down", COMP)], ""),
        ("rst", False, [("up", AGAIN)], "after its PUBREL"),
        # It may know.
        ("rst", True, [("up", REL), ("down", COMP)], ""),
        ("rst", True, [("up", FIRST), ("down", REC), ("up", REL), ("down", COMP)], ""),
        ("rst", True, [("up", AGAIN), ("down", REC), ("up", REL), ("up", AGAIN)], "after its PUBREL"),
        # It knows.
        ("fin", True, [("up", FIRST), ("down", REC), ("up", REL), ("down", COMP)], ""),
        ("fin", True, [("up", REL)], "without a PUBREC"),
    ],
)
def test_flows_begin_again_when_the_device_may_know_that_its_session_is_lost(manner, passes, after, problem):
    case = Case(4, 2, "out", count=1, broker="lost", cuts=(Cut("down", 1, "after", manner),))
    lost = Seen("down", LOST, len(LOST) if passes else 0, 2, 0)
    trace = [*_wire(*LIVED, (2, "up", CONNECT)), lost, *_wire(*RETURNS, *((3, *packet) for packet in after))]
    wire = audit(case, trace)
    assert wire.forgot
    assert wire.uncertain == {1} if manner == "rst" else not wire.uncertain
    assert bool(wire.problems) == bool(problem), wire.problems
    assert problem in "".join(wire.problems)


@pytest.mark.req("Q8")
@pytest.mark.parametrize(
    ("broker", "doubtful", "uncertain", "problem"),
    [
        ("lostdrop", [3], set(), ""),
        ("lostdrop", [], {3}, "lost: [3]"),
        ("lost", [3], {3}, ""),
        ("lost", [3], set(), "lost: [3]"),
        ("lost", [], {3}, "lost: [3]"),
        ("kill", [3], {3}, "lost: [3]"),
    ],
)
def test_message_may_only_get_lost_if_it_is_reported_and_could_not_be_published_again(
    broker, doubtful, uncertain, problem
):
    case = Case(5, 2, "out", broker=broker)
    outcome = Outcome(
        case=case, received=[1, 2, 4], delivered=[1, 2, 4], doubtful=doubtful, wire=Wire(uncertain=uncertain)
    )
    problems = judge(outcome)
    assert bool(problems) == bool(problem), problems
    assert problem in "".join(problems)


def test_no_run_deletes_the_details_of_an_earlier_runs_failing_cases(tmp_path, monkeypatch):
    verdict = Outcome(case=Case(4, 2, "out"), trace=_wire((1, "up", FIRST)), problems=["planted"])
    logs = []
    for now in ("20260101T000000Z", "20260101T000001Z"):
        monkeypatch.setattr("time.strftime", lambda *_, now=now: now)
        tally = Tally(tmp_path)
        tally.add(verdict)
        assert tally.status() == 1
        logs.append(tally.log)
    assert sorted(tmp_path.iterdir()) == logs
    for log in logs:
        assert str(verdict.case) in log.read_text() and "planted" in log.read_text() and "PUBLISH 1" in log.read_text()


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("store", ["journal", "ram"])
@pytest.mark.parametrize(
    ("connack_passes", "delivered", "doubtful", "problem"),
    [
        (False, [], [1], ""),
        (False, [1], [], "reported as delivered, but in doubt: [1]"),
        (True, [1], [], ""),
        (True, [], [1], "in doubt without a reason: [1]"),
        (True, [], [], "reported as delivered []"),
    ],
)
def test_message_past_pubrec_is_in_doubt_after_an_unanswered_connect(
    level, store, connack_passes, delivered, doubtful, problem
):
    case = Case(level, 2, "out", count=1, store=store)
    connect, connack = p.connect("me", level, clean=False), p.connack(level, 1)
    first = p.publish("t", "1;", 2, 1, level)
    clearing = [(1, "up", REL), (1, "down", COMP)] if store == "ram" else []  # clears the packet id of an earlier run
    lost = Seen("down", connack, len(connack) if connack_passes else 0, 2, 0)
    trace = [
        *_wire((1, "up", connect), (1, "down", connack), *clearing),
        *_wire((1, "up", first), (1, "down", REC), (1, "up", REL)),
        *(*_wire((2, "up", connect)), lost),
        *_wire((3, "up", connect), (3, "down", connack), (3, "up", REL), (3, "down", COMP)),
    ]
    wire = audit(case, trace)
    assert wire.problems == []
    outcome = Outcome(case=case, received=[1], delivered=delivered, doubtful=doubtful, wire=wire)
    problems = judge(outcome)
    assert bool(problems) == bool(problem), problems
    assert problem in "".join(problems)


def test_peer_settles_after_its_flows_have_ended():
    ended = []

    async def broker(reader, writer):
        codec = p.Reader()
        pings = 0
        while chunk := await reader.read(100):
            for packet in codec.feed(chunk):
                if packet.kind == p.CONNECT:
                    writer.write(p.connack(4, 0))
                elif packet.kind == p.PINGREQ:
                    pings += 1
                    late = {2: p.publish("t", "1", 2, 1), 6: p.ack(p.PUBREL, 1)}.get(pings, b"")
                    ended.extend([pings] if pings == 6 else [])
                    writer.write(late + p.packet(0xD0))
        writer.close()

    async def scene():
        server = await asyncio.start_server(broker, "127.0.0.1", 0)
        async with server:
            peer = await Peer(server.sockets[0].getsockname()[1], "peer").start()
            await peer.settled()
            assert ended == [6] and peer.received["t"] == [b"1"]
            await peer.stop()

    asyncio.run(scene())


def test_peer_sends_what_it_got_between_connack_and_the_answer_to_its_ping():
    async def scene():
        asked, answer, sent = asyncio.Event(), asyncio.Event(), []

        async def broker(reader, writer):
            codec = p.Reader()
            while chunk := await reader.read(100):
                for packet in codec.feed(chunk):
                    if packet.kind == p.CONNECT:
                        writer.write(p.connack(4, 0))
                    elif packet.kind == p.PINGREQ:
                        asked.set()
                        await answer.wait()
                        writer.write(p.packet(0xD0))
                    elif packet.kind == p.PUBLISH:
                        sent.append(packet.payload)
                        writer.write(p.ack(p.PUBACK, packet.packet_id))
            writer.close()

        server = await asyncio.start_server(broker, "127.0.0.1", 0)
        async with server, asyncio.timeout(10):
            peer = Peer(server.sockets[0].getsockname()[1], "peer")
            starting = asyncio.ensure_future(peer.start())
            first = peer.send("t", b"before CONNACK", 1)
            await asked.wait()
            second = peer.send("t", b"after it", 1)
            answer.set()
            await asyncio.gather(starting, first, second)
            assert sent == [b"before CONNACK", b"after it"]
            await peer.stop()

    asyncio.run(scene())


@needs_mosquitto
def test_peer_sends_what_was_published_after_its_reconnection_but_before_the_end_of_the_wait(tmp_path):
    async def scenario(port):
        peer = await Peer(port, "peer").start()
        peer.wait()
        acknowledged = peer.send("t", b"x", 1)
        await peer.resumed()
        await asyncio.wait_for(acknowledged, 30)
        await peer.stop()

    with Broker(tmp_path / "broker") as broker:
        asyncio.run(scenario(broker.port))
