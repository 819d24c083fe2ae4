"""Small fleets with faults planted, and the truth about them."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

TIME_S = 1_790_000_000.0


def write_pack(records: list[dict[str, object]]) -> bytes:
    """Return a SenML pack as a board writes it."""
    return json.dumps(records, separators=(",", ":")).encode()


@dataclass
class Message:
    """A message between board and landing."""

    device: str
    life: int
    boot: int
    seq: int
    kind: str
    payload: bytes
    dup: bool = False
    clock_s: int | None = None  # clock minus uptime, if the board's clock was set

    @property
    def key(self):
        return self.device, self.life, self.boot


@dataclass
class Truth:
    """What was planted, by (device, life, boot)."""

    first: dict = field(default_factory=dict)
    last: dict = field(default_factory=dict)
    delivered: Counter = field(default_factory=Counter)
    resent: Counter = field(default_factory=Counter)
    reordered: Counter = field(default_factory=Counter)
    missing: dict = field(default_factory=dict)  # set of seqs
    jumps: Counter = field(default_factory=Counter)  # of the clock, between messages that arrived
    messages: set = field(default_factory=set)
    bad: int = 0


def life_story(name: str, rng: random.Random, truth: Truth) -> list[list[Message]]:
    """Return a device's messages as published, boot by boot; its counters may begin again."""
    story = []
    life, boot, seq = 1, 0, 0
    for _ in range(rng.randint(1, 6)):
        if boot and rng.random() < 0.3:
            life, boot, seq = life + 1, 0, 0
        boot += 1 + (rng.random() < 0.15)  # some boots end before their first message
        first = seq + 1
        messages = []
        begun = rng.uniform(0.3, 0.9)
        clock = rng.choice((None, None, 0))  # set later or never, or from the beginning
        for _ in range(rng.randint(3, 40)):
            seq += 1
            head = {"bn": f"{name}/", "boot": boot, "seq": seq, "up": round(begun + seq - first + rng.random() / 4, 3)}
            if rng.random() < 0.08:
                clock = (clock or 0) + rng.choice((-1, 1)) * rng.randint(10, 5000)
            if clock is not None:
                head["bt"] = round(TIME_S + clock + head["up"], 3)
            kind = "boot" if seq == first else "readings"
            record = {"n": "cause", "vs": "power"} if kind == "boot" else {"n": "load1", "v": rng.randint(0, 99)}
            messages.append(Message(name, life, boot, seq, kind, write_pack([head | record]), clock_s=clock))
        key = messages[0].key
        truth.first[key], truth.last[key] = first, seq
        story.append(messages)
    return story


def disturb(story: list[list[Message]], rng: random.Random, truth: Truth) -> list[Message]:
    """Lose, swap and duplicate messages."""
    arriving: list[Message] = []
    for n, messages in enumerate(story):
        ends_life = n + 1 == len(story) or story[n + 1][0].life != messages[0].life
        key = messages[0].key
        losable = messages[1:-1] if ends_life else messages[1:]  # losing the last messages of a life leaves no gap
        lost = {m.seq for m in losable if rng.random() < 0.05}
        if losable and rng.random() < 0.3:
            begin = rng.randrange(len(losable))
            lost |= {m.seq for m in losable[begin : begin + rng.randint(1, 8)]}
        kept = [m for m in messages if m.seq not in lost]
        truth.missing[key] = lost
        truth.delivered[key] += len(kept)
        clocks = [m.clock_s for m in kept if m.clock_s is not None]
        truth.jumps[key] += sum(one != other for one, other in pairwise(clocks))
        truth.messages |= {(*key, m.seq) for m in kept}
        at = 1
        while at + 1 < len(kept):
            if rng.random() < 0.05:
                kept[at], kept[at + 1] = kept[at + 1], kept[at]
                truth.reordered[key] += 1
                at += 1
            at += 1
        placed: list[tuple[float, Message]] = [(float(place), m) for place, m in enumerate(kept)]
        for place, m in enumerate(kept):
            for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2))):
                copy = Message(m.device, m.life, m.boot, m.seq, m.kind, m.payload, dup=True)
                placed.append((place + rng.uniform(0.1, 4), copy))
                truth.resent[key] += 1
        arriving += [m for _, m in sorted(placed, key=lambda pair: pair[0])]
    return arriving


RUBBISH = [
    b"",
    b"{",
    b"\xff",
    b"[[[[",
    b'[{"bn":"x/"}]',
    b'[{"bn":"another/","boot":1,"seq":1,"n":"a","v":1}]',
    b"null",
]


def fleet(seed: int, devices: int = 5) -> tuple[list[Message], Truth]:
    """Return a fleet's messages in the order of arrival, and the truth."""
    rng = random.Random(seed)
    truth = Truth()
    streams = [disturb(life_story(f"dev-{seed}-{n}", rng, truth), rng, truth) for n in range(devices)]
    rows: list[Message] = []
    while streams:
        stream = rng.choice(streams)
        taken = rng.randint(1, 9)
        rows += stream[:taken]
        del stream[:taken]
        if rng.random() < 0.1:
            truth.bad += 1
            rows.append(Message(f"dev-{seed}-0", 1, 1, 1, "readings", rng.choice(RUBBISH)))
        streams = [one for one in streams if one]
    return rows, truth
