"""Every third case of `make brokers`, with a real mosquitto; and tests that the judge attributes a fault to the right side.

What has 1 MB there has 200,000 bytes here, and a journal that is as much smaller: a length of three bytes, too, and more than a
socket takes at once.
"""

from __future__ import annotations

import asyncio
import binascii
import shutil
import socket
from argparse import ArgumentTypeError
from dataclasses import replace

import pytest

from tools.proof import broker
from tools.proof import packets as p
from tools.proof.broker import find_mosquitto, free_port
from tools.proof.brokers import __main__ as command
from tools.proof.brokers import page, runner
from tools.proof.brokers.judge import Got, Message, Verdict, judge
from tools.proof.brokers.kinds import Amqtt, Mosquitto, NotHere, make_certificate
from tools.proof.brokers.runner import FACES, INTERPRETERS, Case, all_cases, find, run_broker
from tools.proof.brokers.scenarios import SCENARIOS
from tools.proof.device import body
from tools.proof.proxy import DOWN, UP, Seen

WORKERS = 6
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl, for the brokers' certificate"
)
SHORTER = 5


def shortened(case: Case) -> Case:
    """Return a case with messages of 200,000 bytes in place of 1 MB."""
    scenario = case.scenario
    if not scenario.name.startswith("long-"):
        return case
    steps = tuple(
        tuple(1_000_000 // SHORTER if word == 1_000_000 else word for word in step) for step in scenario.steps
    )
    settings = {**scenario.settings, "sectors": scenario.settings["sectors"] // SHORTER}
    heap = {"16M": "4M", "4M": "1M"}[scenario.heap]
    return replace(case, scenario=replace(scenario, steps=steps, settings=settings, heap=heap))


def third(cases: list[Case]) -> list[Case]:
    """Return every third case, with each scenario at each level, and with each pair of face and interpreter."""
    names = list(SCENARIOS)

    def turn(case: Case) -> int:
        return (
            names.index(case.scenario.name) + case.level + FACES.index(case.face) + INTERPRETERS.index(case.interpreter)
        )

    return [case for case in cases if turn(case) % 3 == 0]


# `make run` uses amqtt if mosquitto is missing, so the scenarios that it needs are also tested with amqtt.
NEEDED = [case for case in all_cases("amqtt") if case.scenario.name in ("qos", "retained", "kill")]
CASES = [*map(shortened, third([*all_cases("mosquitto"), *NEEDED]))]


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """Return the verdicts of the selected cases, by their ids. A broker's cases run concurrently."""
    wanted = {
        str(item.callspec.params["case"])
        for item in request.session.items
        if "verdicts" in getattr(item, "fixturenames", ())
    }
    directory = tmp_path_factory.mktemp("brokers")
    make_certificate(directory)
    found = {}
    for kind in (Mosquitto, Amqtt):
        cases = [case for case in CASES if case.broker == kind.name and str(case) in wanted]
        if cases and (kind is Amqtt or find_mosquitto()):

            def report(verdict):
                found[str(verdict.case)] = verdict

            asyncio.run(run_broker(kind, cases, directory / kind.name, WORKERS, report))
    return found


@needs_openssl
@pytest.mark.req("Q0", "Q1", "Q2", "Q3", "Q4", "Q6", "Q7", "Q8", "B4")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_client_meets_its_obligations(case, verdicts):
    if case.broker == Mosquitto.name and not find_mosquitto():
        pytest.skip("needs mosquitto")
    assert verdicts[str(case)].problems == [], verdicts[str(case)].details()


@needs_openssl
def test_step_that_does_not_end_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "STEP_S", 1)
    monkeypatch.setattr(runner.Program, "do", lambda board, verb, *arguments: asyncio.Event().wait())
    case = find("amqtt/4/client/cpy/password")
    found = []
    case = replace(case, scenario=replace(case.scenario, wait_s=0.0))
    make_certificate(tmp_path)
    asyncio.run(run_broker(Amqtt, [case], tmp_path / "amqtt", 1, found.append))
    assert [verdict.problems for verdict in found] == [["board refused: no end in time"]]


# --- the judge -------------------------------------------------------------------------------------------------

HELLO = [(UP, p.connect("b", clean=False)), (DOWN, p.connack())]
AGAIN = [HELLO[0], (DOWN, p.connack(4, 1))]  # the session is there
IN = Message(1, 2, 60, acknowledged=True)
OUT = Message(101, 2, 60)
CASE = Case("mosquitto", 4, "aio", "mpy", SCENARIOS["qos"])


def pub(number, qos, packet_id, dup=False, retain=False):
    return p.publish("t", body(number, 60), qos, packet_id, dup=dup, retain=retain)


def got(number, retain=False, content=None):
    content = body(number, 60) if content is None else content
    return Got(number, retain, len(content), binascii.crc32(content))


def observed(packets, **more):
    trace = [Seen(direction, content, len(content), 1, 0) for direction, content in [*HELLO, *packets]]
    return Verdict(case=CASE, trace=trace, **more)


DOWN_FLOW = [(DOWN, pub(1, 2, 7)), (UP, p.ack(p.PUBREC, 7)), (DOWN, p.ack(p.PUBREL, 7)), (UP, p.ack(p.PUBCOMP, 7))]
UP_FLOW = [(UP, pub(101, 2, 9)), (DOWN, p.ack(p.PUBREC, 9)), (UP, p.ack(p.PUBREL, 9)), (DOWN, p.ack(p.PUBCOMP, 9))]
INBOUND = {"sent_in": {1: IN}}
OUTBOUND = {"sent_out": {101: OUT}}
TWICE = [body(101, 60)] * 2


@pytest.mark.parametrize(
    ("seen", "ours", "theirs"),
    [
        (observed(DOWN_FLOW, got=[got(1)], **INBOUND), "", ""),
        (observed([], **INBOUND), "", "in: never sends a message that it has acknowledged to the publisher"),
        (observed(DOWN_FLOW, **INBOUND), "in: not handed over", ""),
        (observed(DOWN_FLOW[:2], **INBOUND), "", "in: no PUBREL follows PUBREC"),
        (observed(DOWN_FLOW[:1], **INBOUND), "in: not handed over", ""),
        (observed([*DOWN_FLOW[:1], *AGAIN], **INBOUND), "", "in: not sent again, though it had no answer"),
        (observed([*DOWN_FLOW[:1], *AGAIN, (DOWN, pub(1, 2, 7, dup=True))], **INBOUND), "in: not handed over", ""),
        (observed([*DOWN_FLOW, *AGAIN], **INBOUND), "in: not handed over", ""),
        (observed(DOWN_FLOW, oversize=[60], **INBOUND), "", ""),
        (observed(DOWN_FLOW, oversize=[61], **INBOUND), "in: not handed over", ""),
        (observed(DOWN_FLOW, got=[got(1)] * 2, **INBOUND), "in: handed over twice at QoS 2", ""),
        (observed(DOWN_FLOW * 2, got=[got(1)] * 2, **INBOUND), "", "in: sends at QoS 2 as a new message once more"),
        (observed(DOWN_FLOW, got=[got(1, content=b"1;")], **INBOUND), "in: other content", ""),
        (
            observed(
                [(DOWN, p.publish("t", b"1;", 1, 7)), (UP, p.ack(p.PUBACK, 7))], got=[got(1, content=b"1;")], **INBOUND
            ),
            "",
            "in: other content",
        ),
        (observed(DOWN_FLOW, got=[got(1, retain=True)], **INBOUND), "in: arrives with RETAIN", ""),
        (observed([], got=[got(5)]), "in: sent by nobody", ""),
        (observed([], strays=["u"]), "handed over messages of other topics", ""),
        (observed(DOWN_FLOW, prefix="case/", strays=["t"]), "", "sends messages of topics that were not asked for"),
        (
            observed([(DOWN, pub(1, 1, 7))], got=[got(1)], sent_in={1: IN, 2: Message(2, 1, 60, True)}),
            "in: not sent by the broker, which waits for answers to earlier ones",
            "",
        ),
        (observed(UP_FLOW, arrived=TWICE[:1], delivered=[101], **OUTBOUND), "", ""),
        (observed(UP_FLOW, delivered=[101], **OUTBOUND), "", "out: acknowledged and never passed on"),
        (observed(UP_FLOW, arrived=TWICE, delivered=[101], **OUTBOUND), "", "out: passed on twice at QoS 2"),
        (observed(UP_FLOW * 2, arrived=TWICE, delivered=[101], **OUTBOUND), "out: sent twice at QoS 2", ""),
        (
            observed([*UP_FLOW[:3], *HELLO, *UP_FLOW], arrived=TWICE, delivered=[101], **OUTBOUND),
            "",
            "forgets the session",
        ),
        (
            observed([*UP_FLOW, *HELLO, *UP_FLOW], arrived=TWICE, delivered=[101], **OUTBOUND),
            "out: sent twice at QoS 2",
            "forgets the session",
        ),
        (
            observed(UP_FLOW, arrived=TWICE[:1], left=1, **OUTBOUND),
            "out: acknowledged, but not reported as delivered",
            "",
        ),
        (observed(UP_FLOW[:1], arrived=TWICE[:1], left=1, **OUTBOUND), "", "out: leaves without an answer"),
        (observed([], left=1, **OUTBOUND), "out: never sent", ""),
        (
            observed([UP_FLOW[0], (DOWN, p.ack(p.PUBACK, 9))], arrived=TWICE[:1], delivered=[101], **OUTBOUND),
            "",
            "answers a QoS 2 PUBLISH by PUBACK",
        ),
        (
            observed([(UP, p.subscribe(1, [("t", 2)])), (DOWN, p.suback(1, [1]))]),
            "",
            "grants QoS 1 where QoS 2 is asked for",
        ),
        (observed([(UP, b"\x36\x00")]), "the client sent what is malformed", ""),
        (observed([(DOWN, b"\x36\x00")]), "", "the broker sent what is malformed"),
        (observed([], uncleared=[b"x"]), "", "an empty retained message does not clear"),
        (observed([], problems=["board connect: it failed"]), "board connect: it failed", ""),
        (Verdict(case=CASE, refusal=("ConnectRefused", 5)), "", ""),
        (Verdict(case=CASE, refusal=("OSError", 0)), "a refusal ends in OSError", ""),
        (Verdict(case=CASE, refusal=("", 0)), "a refusal ends in a connection", ""),
        (Verdict(case=CASE, **INBOUND), "in: not handed over", ""),
    ],
)
def test_judge_blames_the_right_side_for_a_fault(seen, ours, theirs):
    verdict = judge(seen)
    for found, wanted in ((verdict.problems, ours), (verdict.theirs, theirs)):
        assert [text[: len(wanted)] for text in found[:1]] == ([wanted] if wanted else [])


def test_selected_cases_cover_each_scenario_at_each_level_and_face():
    def situations(cases):
        settings = [
            (case.scenario.name, case.level, case.face, case.interpreter)
            for case in cases
            if case.broker == "mosquitto"
        ]
        met = {(scenario, level) for scenario, level, _, _ in settings}
        met |= {(scenario, *pair) for scenario, _, *pair in settings}
        return met | {tuple(three) for _, *three in settings}

    assert situations(CASES) == situations(all_cases("mosquitto"))
    assert 3 * (len(CASES) - 3) == len(all_cases("mosquitto"))  # three cases are for amqtt


def test_case_is_found_by_its_id():
    assert [find(str(case)) for case in CASES[:5]] == CASES[:5]
    with pytest.raises(ArgumentTypeError, match="mosquitto/4/client/cpy/nothing"):
        find("mosquitto/4/client/cpy/nothing")


@needs_openssl
def test_unavailable_broker_is_reported_as_not_run(monkeypatch, capsys):
    def provide():
        raise NotHere("nobody has it")

    monkeypatch.setattr(Mosquitto, "provide", provide)
    assert command.main(["--brokers", "mosquitto"]) == 0
    assert "NOT RUN: mosquitto: nobody has it" in capsys.readouterr().out


def test_table_shows_client_failures_and_broker_deviations(tmp_path):
    results = page.Results()
    results.versions["mosquitto"] = "2.0"
    for seen in (observed(DOWN_FLOW, **INBOUND), observed([], **INBOUND)):
        results.verdicts["mosquitto", "qos"].append(judge(seen))
    table = page.table(results)
    assert "| every QoS, both ways | **1 of 2 failed** (1) |" in table
    assert "1. in: never sends a message that it has acknowledged to the publisher (mosquitto at level 4)" in table
    assert results.cases == 2
    kept = tmp_path / "page.md"
    kept.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write(kept, results)
    assert table in kept.read_text() and "old" not in kept.read_text()
    assert kept.read_text().startswith("before\n") and kept.read_text().endswith("\nafter\n")


@pytest.mark.parametrize("part", ["--brokers mosquitto", "--case REPLAY"])
def test_partial_run_refuses_keep(part, capsys):
    words = part.replace("REPLAY", str(next(iter(all_cases("mosquitto"))))).split()
    assert command.parse([]).whole and not command.parse(words).whole
    with pytest.raises(SystemExit):
        command.parse([*words, "--keep"])
    assert "--keep" in capsys.readouterr().err


def test_port_in_use_or_given_before_is_not_given(monkeypatch):
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        first, second = free_port(), free_port()
        broker._given -= {first, second}
        offered = iter([used.getsockname()[1], first, first, second])
        monkeypatch.setattr(broker.random, "randrange", lambda *_: next(offered))
        assert [free_port(), free_port()] == [first, second]


def test_port_is_none_that_an_outgoing_connection_may_take():
    assert all(port < 32768 for port in (free_port() for _ in range(50)))
