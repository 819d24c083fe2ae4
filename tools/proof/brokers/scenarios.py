"""The scenarios, as data: who does what, in which order. `runner` runs them, `judge` judges them.

A step is (actor, verb, arguments...). Messages have numbers; those from the board begin at 101. QOS is a tuple; a message's
number selects its QoS from it. A topic is below the case's prefix.

    board start {settings}              start it, with the journal of the last start
    board off                           cut its power: SIGKILL
    board connect | subscribe TOPIC QOS | settle | drain | disconnect
    board refused                       connect; the broker has to refuse
    board publish TOPIC NUMBERS QOS SIZE RETAIN
    peer subscribe TOPIC                the other client of the broker subscribes
    peer send TOPIC NUMBERS QOS SIZE RETAIN     publish, and wait for the acknowledgements; `post` does not wait
    peer none TOPIC                     a new client subscribes, and must receive nothing retained
    broker kill | start                 SIGKILL; start with its files
    wait in | out                       until every message has arrived, or the time is over
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Step = tuple[Any, ...]
SHORT = 60
MEGABYTE = 1_000_000
ROOMY = 1280  # sectors of a journal: a received QoS 2 message may take a quarter of them until its PUBREL
ALL = (0, 1, 2)
SAFE = (1, 2)


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


def _numbers(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


_BEGIN: tuple[Step, ...] = (
    ("peer", "subscribe", "out"),
    ("board", "start"),
    ("board", "connect"),
    ("board", "subscribe", "in", 2),
)
_END: tuple[Step, ...] = (("wait", "in"), ("board", "drain"), ("wait", "out"), ("board", "disconnect"))

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "qos",
            "every QoS, both ways",
            (
                *_BEGIN,
                ("peer", "send", "in", _numbers(1, 15), ALL, SHORT, False),
                ("board", "publish", "out", _numbers(101, 15), ALL, SHORT, False),
                *_END,
            ),
        ),
        Scenario(
            "queued",
            "queued at both ends, over a reboot",
            (
                *_BEGIN,
                ("board", "off"),
                ("peer", "send", "in", _numbers(1, 8), SAFE, SHORT, False),
                ("board", "start"),
                ("board", "publish", "out", _numbers(101, 8), SAFE, SHORT, False),
                ("board", "off"),
                *_BEGIN[1:],
                *_END,
            ),
        ),
        Scenario(
            "retained",
            "retained: kept, live, cleared",
            (
                ("peer", "send", "in/kept", (1,), (1,), SHORT, True),
                ("board", "start"),
                ("board", "connect"),
                ("board", "subscribe", "in/kept", 2),
                ("wait", "in"),
                ("peer", "send", "in/kept", (2,), (1,), SHORT, True),
                ("board", "publish", "out/kept", (101,), (1,), SHORT, True),
                ("board", "drain"),
                ("peer", "subscribe", "out/kept"),
                ("wait", "in"),
                ("wait", "out"),
                ("board", "publish", "out/kept", (102,), (1,), 0, True),
                ("board", "drain"),
                ("peer", "none", "out/kept"),
                ("board", "disconnect"),
            ),
            retained=(1,),
        ),
        Scenario(
            "burst",
            "a hundred at QoS 2, both ways",
            (
                *_BEGIN,
                ("board", "disconnect"),
                ("peer", "send", "in", _numbers(1, 100), (2,), SHORT, False),
                *_BEGIN[1:],
                ("wait", "in"),
                ("board", "publish", "out", _numbers(101, 100), (2,), SHORT, False),
                *_END,
            ),
        ),
        Scenario(
            "long-out",
            "1 MB to the broker, every QoS",
            (
                ("peer", "subscribe", "out"),
                ("board", "start"),
                ("board", "connect"),
                ("board", "publish", "out", (101, 102, 103), ALL, MEGABYTE, False),
                ("board", "drain"),
                ("wait", "out"),
                ("board", "disconnect"),
            ),
            settings={"sectors": 768},
            heap="16M",
            wait_s=150,
        ),
        Scenario(
            "long-in",
            "1 MB from the broker, QoS 0 and 1",
            (
                ("board", "start"),
                ("board", "connect"),
                ("board", "subscribe", "in", 2),
                ("peer", "send", "in", (1, 2), (0, 1), MEGABYTE, False),
                ("peer", "send", "in", (3,), (1,), SHORT, False),
                ("wait", "in"),
                ("board", "disconnect"),
            ),
            settings={"chunks": True, "sectors": ROOMY, "buffer_bytes": 8192},  # amqtt sends them at QoS 2
            heap="4M",
            wait_s=150,
        ),
        Scenario(
            "long-in-2",
            "1 MB from the broker, QoS 2",
            (
                ("board", "start"),
                ("board", "connect"),
                ("board", "subscribe", "in", 2),
                ("peer", "send", "in", (1,), (2,), MEGABYTE, False),
                ("peer", "send", "in", (2,), (1,), SHORT, False),
                ("wait", "in"),
                ("board", "disconnect"),
            ),
            settings={"chunks": True, "sectors": ROOMY, "buffer_bytes": 8192},
            heap="4M",
            wait_s=150,
        ),
        Scenario(
            "password",
            "a wrong password",
            (("board", "start", {"password": "wrong"}), ("board", "refused")),
        ),
        Scenario(
            "tls",
            "TLS, QoS 0 and 1, both ways",
            (
                *_BEGIN,
                # One after the other, because here nobody can see whether the broker changed their order.
                *(
                    step
                    for n in _numbers(1, 10)
                    for step in (("peer", "send", "in", (n,), (0, 1), 5000, False), ("wait", "in"))
                ),
                ("board", "publish", "out", _numbers(101, 10), (0, 1), 5000, False),
                *_END,
            ),
            settings={"buffer_bytes": 8192},
            heap="1M",
            secure=True,
        ),
        Scenario(
            "kill",
            "kill -9 of the broker in the middle",
            (
                *_BEGIN,
                ("peer", "post", "in", _numbers(1, 20), SAFE, SHORT, False),
                ("board", "publish", "out", _numbers(101, 20), SAFE, SHORT, False),
                ("broker", "kill"),
                ("board", "publish", "out", _numbers(121, 6), SAFE, SHORT, False),
                ("broker", "start"),
                ("board", "settle"),
                ("peer", "send", "in", _numbers(21, 6), SAFE, SHORT, False),
                *_END,
            ),
            wait_s=30,
            kills=True,
        ),
    )
}
