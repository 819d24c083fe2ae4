"""Draws the flows of QoS 1 and 2 into firmware/DESIGN.md, from the tables in the code.

`python -m host_tests.session.flows [--write]`: a diagram of the sender's states, and two tables. Without --write it only
checks whether the document is current; exit status 1 if not.
"""

from __future__ import annotations

import argparse
import re
import sys

from tools.bootstrap import ROOT
from tools.command import exit_status

sys.path.insert(0, str(ROOT / "firmware"))

from flashmqtt.session.flows import RECEIVER, SENDER

DOCUMENT = ROOT / "firmware" / "DESIGN.md"
BEGIN = "<!-- flows: drawn by python -m host_tests.session.flows --write -->"
END = "<!-- /flows -->"

SENDER_STATES = ("none", "AWAIT_PUBACK", "AWAIT_PUBREC", "AWAIT_PUBCOMP")
SENDER_EVENTS = (
    "a connection begins",
    "PUBLISH of QoS 1 is put",
    "PUBLISH of QoS 2 is put",
    "PUBREL is put",
    "PUBACK",
    "PUBREC",
    "PUBREC that refuses (5)",
    "PUBCOMP",
)
OURS = 4  # the first ones are events of the client, not of the broker
VIOLATION = 1
RECEIVER_STATES = ("none", "HELD")
RECEIVER_EVENTS = ("PUBLISH of QoS 2", "PUBLISH with the bytes that are held", "PUBREL")
ACTIONS = {
    "NOTHING": "",
    "VIOLATION": "end the connection",
    "DONE": "finish, report",
    "MARK": "mark, then PUBREL",
    "PUT_PUBREL": "PUBREL",
    "HOLD": "hold, then PUBREC",
    "PUT_PUBREC": "PUBREC",
    "HAND_OVER": "hand over; after the acknowledgement discard, then PUBCOMP",
    "PUT_PUBCOMP": "PUBCOMP",
    "HAND_OVER_FIRST": "hand over the old message; after the acknowledgement discard it, then process the new PUBLISH",
}


def actions() -> dict[int, str]:
    """Return the words for each action's number."""
    text = (ROOT / "firmware" / "flashmqtt" / "session" / "flows.py").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"^_([A-Z_]+) = const\((\d+)\)", text.split("# Actions.")[1], re.MULTILINE))
    return {int(numbers[name]): words for name, words in ACTIONS.items()}


def table(steps: bytes, states: tuple[str, ...], events: tuple[str, ...]) -> str:
    """Return one table as Markdown: a row for each event, a column for each state."""
    words = actions()
    lines = ["| event | " + " | ".join(states) + " |", "|---" * (len(states) + 1) + "|"]
    for column, event in enumerate(events):
        cells = []
        for row, state in enumerate(states):
            step = steps[row * len(events) + column]
            following = states[step >> 4]
            if step & 15 == VIOLATION and column < OURS and steps is SENDER:
                cells.append("never")
                continue
            cells.append(
                ", ".join(part for part in (words[step & 15], following if following != state else "") if part)
            )
        lines.append(f"| {event} | " + " | ".join(cell or "-" for cell in cells) + " |")
    return "\n".join(lines)


def picture(steps: bytes, states: tuple[str, ...], events: tuple[str, ...]) -> str:
    """Return a diagram of the steps that lead to another state, for Mermaid."""
    words = actions()
    lines = ["```mermaid", "stateDiagram-v2"]
    for row, state in enumerate(states):
        for column, event in enumerate(events):
            step = steps[row * len(events) + column]
            following = states[step >> 4]
            if following == state or (steps is SENDER and not column):
                continue
            action = words[step & 15].replace(";", ",").replace(":", "")
            ends = ["[*]" if name == "none" else name for name in (state, following)]
            lines.append(f"    {ends[0]} --> {ends[1]}: {event}" + (f" / {action}" if action else ""))
    return "\n".join([*lines, "```"])


def drawn() -> str:
    """Return the text between the markers."""
    return (
        picture(SENDER, SENDER_STATES, SENDER_EVENTS)
        + "\n\nThe sender of a message (a cell says what is done, and the next state where it is another one):\n\n"
        + table(SENDER, SENDER_STATES, SENDER_EVENTS)
        + "\n\nThe receiver of a QoS 2 message:\n\n"
        + table(RECEIVER, RECEIVER_STATES, RECEIVER_EVENTS)
    )


def is_current() -> bool:
    """Return whether the document has the current tables."""
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    return f"{BEGIN}\n{drawn()}\n{END}" in text


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into the document")
    if parser.parse_args().write:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, found, rest = text.partition(BEGIN)
        if not found or END not in rest:
            print(f"{DOCUMENT}: the markers are missing:\n{BEGIN}\n{END}", file=sys.stderr)
            return 1
        DOCUMENT.write_text(f"{before}{BEGIN}\n{drawn()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    if not is_current():
        print("firmware/DESIGN.md shows other flows: python -m host_tests.session.flows --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
