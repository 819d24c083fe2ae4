"""The scenarios, as data: who does what, in which order. `runner` runs them, `judge` judges them.

A step is (actor, verb, arguments...); here it is written as text. Messages have numbers, such as 1-15; those from the board begin
at 101. QOS has one or more digits; a message's number selects its QoS from them. A topic is below the case's prefix.

    board start                         start it, with the journal of the last start; {"key": value} changes its settings
    board off                           cut its power: SIGKILL
    board connect | subscribe TOPIC QOS | settle | drain | disconnect
    board refused                       connect; the broker has to refuse
    board publish TOPIC NUMBERS QOS SIZE [RETAIN]
    peer subscribe TOPIC                the other client of the broker subscribes
    peer send TOPIC NUMBERS QOS SIZE [RETAIN]   publish, and wait for the acknowledgements; `post` does not wait
    peer none TOPIC                     a new client subscribes, and must receive nothing retained
    broker kill | start                 SIGKILL; start with its files
    wait in | out                       until every message has arrived, or the time is over
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Step = tuple[Any, ...]
# A received QoS 2 message may take a quarter of a journal's sectors until its PUBREL. amqtt sends all messages at QoS 2.
_LONG = {"chunks": True, "sectors": 1280, "buffer_bytes": 8192}


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: as in a case's id.
        title: as in the table.
        steps: see above.
        settings: further settings of the board's client.
        heap: of the board, on MicroPython.
        wait_s: how long messages may take.
        secure: over TLS, where the proxy can't read the packets.
        kills: the broker is killed, so no other case may use it meanwhile.
        retained: numbers of the messages that must arrive with RETAIN set, and no other.
    """

    name: str
    title: str
    steps: tuple[Step, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    heap: str = "512K"
    wait_s: float = 20.0
    secure: bool = False
    kills: bool = False
    retained: tuple[int, ...] = ()


def _read(text: str) -> Iterator[Step]:
    """Yield the steps of a text."""
    for step in text.split(", "):
        actor, verb, *words = step.split(" ")
        if verb in ("publish", "send", "post"):
            topic, numbers, qos, size, *retain = words
            first, _, last = numbers.partition("-")
            many = tuple(range(int(first), int(last or first) + 1))
            yield actor, verb, topic, many, tuple(map(int, qos)), int(size), retain == ["RETAIN"]
        elif verb == "start" and words:
            yield actor, verb, json.loads(" ".join(words))
        else:
            yield actor, verb, *(int(word) if word.isdigit() else word for word in words)


def _scenario(name: str, title: str, *texts: str, **more: Any) -> Scenario:
    return Scenario(name, title, tuple(step for text in texts for step in _read(text)), **more)


_START = "board start, board connect, board subscribe in 2"
_BEGIN = f"peer subscribe out, {_START}"
_END = "wait in, board drain, wait out, board disconnect"

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario(
            "qos",
            "every QoS, both ways",
            *(_BEGIN, "peer send in 1-15 012 60, board publish out 101-115 012 60", _END),
        ),
        _scenario(
            "queued",
            "queued at both ends, over a reboot",
            *(_BEGIN, "board off, peer send in 1-8 12 60, board start, board publish out 101-108 12 60, board off"),
            *(_START, _END),
        ),
        _scenario(
            "retained",
            "retained: kept, live, cleared",
            "peer send in/kept 1 1 60 RETAIN, board start, board connect, board subscribe in/kept 2, wait in",
            "peer send in/kept 2 1 60 RETAIN, board publish out/kept 101 1 60 RETAIN, board drain",
            "peer subscribe out/kept, wait in, wait out, board publish out/kept 102 1 0 RETAIN, board drain",
            "peer none out/kept, board disconnect",
            retained=(1,),
        ),
        _scenario(
            "burst",
            "a hundred at QoS 2, both ways",
            *(_BEGIN, "board disconnect, peer send in 1-100 2 60", _START, "wait in"),
            *("board publish out 101-200 2 60", _END),
        ),
        _scenario(
            "long-out",
            "1 MB to the broker, every QoS",
            "peer subscribe out, board start, board connect, board publish out 101-103 012 1000000",
            "board drain, wait out, board disconnect",
            settings={"sectors": 768},
            heap="16M",
            wait_s=150,
        ),
        _scenario(
            "long-in",
            "1 MB from the broker, QoS 0 and 1",
            *(_START, "peer send in 1-2 01 1000000, peer send in 3 1 60, wait in, board disconnect"),
            settings=_LONG,
            heap="4M",
            wait_s=150,
        ),
        _scenario(
            "long-in-2",
            "1 MB from the broker, QoS 2",
            *(_START, "peer send in 1 2 1000000, peer send in 2 1 60, wait in, board disconnect"),
            settings=_LONG,
            heap="4M",
            wait_s=150,
        ),
        _scenario("password", "a wrong password", 'board start {"password": "wrong"}, board refused'),
        _scenario(
            "tls",
            "TLS, QoS 0 and 1, both ways",
            _BEGIN,
            # One after the other, because here nobody can see whether the broker changed their order.
            *(f"peer send in {number} 01 5000, wait in" for number in range(1, 11)),
            *("board publish out 101-110 01 5000", _END),
            settings={"buffer_bytes": 8192},
            heap="1M",
            secure=True,
        ),
        _scenario(
            "kill",
            "kill -9 of the broker in the middle",
            *(_BEGIN, "peer post in 1-20 12 60, board publish out 101-120 12 60, broker kill"),
            "board publish out 121-126 12 60, broker start, board settle, peer send in 21-26 12 60",
            _END,
            wait_s=30,
            kills=True,
        ),
    )
}
