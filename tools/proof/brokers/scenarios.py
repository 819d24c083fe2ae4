"""The scenarios of scenarios.toml, which describes their steps; a step is (actor, verb, arguments...)."""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Step = tuple[Any, ...]


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    Attributes:
        name: as in a case's id.
        title: as in the table.
        steps: what happens.
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
    retained: Sequence[int] = ()


def _read(text: str) -> Iterator[Step]:
    """Yield the steps of a text."""
    for step in re.split(", |\n", text.strip()):
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


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
SCENARIOS = {
    name: Scenario(**{"name": name, **table, "steps": tuple(_read(table["steps"]))}) for name, table in _TABLES.items()
}
