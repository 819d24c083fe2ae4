"""Days of the whole application in virtual time, on both boards' own code: outages, power cuts, bad sensors, commands, sleep.

At the end the audit's rules must explain every number: delivered, or named by a health message that was delivered.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

import flashmqtt.backoff
from app import application, clock, wake
from flashmqtt.client import Client
from host_tests.both import fake_board
from host_tests.client.world import TURN_MS, Socket, World, some
from tools.flashsim.nor import MODELS, NorFlash, PowerCut

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SECTORS = 5
MAIN = compile((Path(application.__file__).parent.parent / "main.py").read_text(), "main.py", "exec")


class Reset(BaseException):
    """The power fails, or the watchdog resets the board."""


class Clock(fake_board.Clock):
    """The board's `time`, which is the world's."""

    world: World
    ms = property(lambda self: self.world.now_ms, lambda self, ms: None)

    def ticks_ms(self):
        return self.world.ticks_ms()

    def sleep_ms(self, ms):
        self.world.sleep(ms)


class Life:
    """One board, its broker, and what happens to them. It is also the board's sensor."""

    name, unit, qos, interval_ms = "odd", "Cel", 2, 0

    def __init__(self, seed, kind, sleep_s, policy, days, monkeypatch) -> None:
        self.calm_ms = int(days * DAY)  # from then on all works
        self.rng = rng = random.Random(seed)
        self.kind = kind
        self.world = world = World(4, 0)
        self.broker = world.broker
        self.flash = NorFlash(SECTORS * 4096, kind, seed)
        self.cause = 1
        self.stored: dict[tuple[int, int], bytes] = {}
        self.ends: list[str] = []
        self.reads: list[int] = []
        settings = {"broker": "b", "ssid": "home", "interval_ms": 5 * MINUTE, "health_s": 3600, "when_full": policy}
        if kind == "rp2":
            settings["level"] = 5
            self.broker.refuses = self.refuses
        settings |= {"status_ms": MINUTE, "sleep_s": sleep_s, "log": False, "sensors": [{"kind": "odd", "qos": 2}]}
        Path("config.json").write_text(json.dumps(settings))
        world.patch(monkeypatch)
        Clock.world = world
        monkeypatch.setattr(fake_board, "Clock", Clock)
        monkeypatch.setattr(clock, "ticks_ms", world.ticks_ms)
        monkeypatch.setattr(clock, "ticks_diff", world.ticks_diff)
        monkeypatch.setattr("flashmqtt.link._IDLE_MS", 1000 if sleep_s else 15_000)
        monkeypatch.setattr(application, "_TURN_MS", 2000)
        world.after(self.calm_ms + 6 * HOUR, self.fail)
        monkeypatch.setattr(wake, "sleep", lambda s: world.sleep(int(s * 1000)))
        monkeypatch.setattr(time, "sleep", lambda s: world.sleep(int(s * 1000)))
        monkeypatch.setattr(os, "urandom", rng.randbytes)
        monkeypatch.setattr(flashmqtt.backoff, "getrandbits", rng.getrandbits)
        monkeypatch.setattr("gc.threshold", lambda octets: None, raising=False)
        monkeypatch.setitem(sys.modules, "app.sensors.odd", SimpleNamespace(make=lambda settings: [self]))
        monkeypatch.setitem(sys.modules, "journal_space", SimpleNamespace(device=lambda: self.flash))
        publish = Client.publish

        def recorded(client, topic, payload, qos=0, **more):
            handle = publish(client, topic, payload, qos=qos, **more)
            if handle:
                head = json.loads(payload)[0]
                assert handle == head["seq"]
                assert self.stored.setdefault((head["life"], handle), payload) is payload
            return handle

        monkeypatch.setattr(Client, "publish", recorded)

    def read(self):
        """Be the sensor: return a number, or something else, or raise, or hang until the watchdog resets the board."""
        self.reads.append(self.world.now_ms)
        odd: Any = len(self.reads)
        if self.world.now_ms < self.calm_ms and self.rng.random() < 0.05:
            odd = self.rng.choice((None, float("nan"), "21", SystemExit, Reset))
        if isinstance(odd, type):
            raise odd("no chip")
        return odd

    def refuses(self, packet):
        """Return whether the broker refuses this message: some readings."""
        return (
            self.world.now_ms < self.calm_ms and packet.topic.endswith("readings") and crc32(packet.payload) % 20 == 0
        )

    def fail(self):
        """Cut the power."""
        if "board" in sys.modules:
            raise Reset

    def fault(self):
        """Let something happen, and again after a while."""
        rng, world = self.rng, self.world
        if world.now_ms >= self.calm_ms:
            world.fault = None
            return
        world.after(some(rng, rng.choice((MINUTE, HOUR, 10 * HOUR))), self.fault)
        kind = rng.choice(("silent", "refused", "unknown", "forget", "drop", "flash", "power", "command", "command"))
        if world.fault:
            world.fault = None
        elif kind == "forget":
            self.broker.forget()
        elif kind == "drop":
            self.broker.drop(Socket.end)
        elif kind == "flash":
            self.flash.arm(self.flash.operations + rng.randrange(1, 20), rng.choice(MODELS), rng.randrange(1000))
        elif kind == "command":
            order = {"id": world.now_ms, "do": rng.choice(("flush", "reboot", "identify", "nothing"))}
            self.broker.publish(json.dumps(order).encode(), 1, "flashmqtt-commands/e6616408432b1c2f")
        elif kind == "power":
            self.fail()
        else:
            world.fault = kind

    def boot(self):
        """Run main.py on a board that has just started; return how it ended."""
        self.world._first_ticks = self.rng.choice((0, TURN_MS - MINUTE)) - self.world.now_ms
        self.flash.power_up()
        board = fake_board.load_board(self.kind, cause=self.cause, registers={"chip": self.kind})
        fakes = {name: sys.modules[fake_board.PACKAGE + name].simulated for name in ("esp32", "network")}
        fakes["esp32"].device, fakes["esp32"].partitions = self.flash, {"journal": (0, SECTORS)}
        fakes["network"].access_points = {"home": ""}
        sys.modules["board"] = board
        try:
            exec(MAIN, {})
            return "the REPL"
        except SystemExit as how:
            return str(how)
        except (Reset, PowerCut):
            return "power"
        finally:
            for sock in self.world.sockets:
                sock.dead = True
            self.world.sockets.clear()
            del sys.modules["board"]

    def run(self):
        """Live until all has worked for six hours."""
        world = self.world
        world.after(HOUR, self.fault)
        world.after(self.calm_ms, self.fault)
        while world.now_ms < self.calm_ms + 6 * HOUR:
            self.ends.append(self.boot())
            self.cause = {"deep-sleep": 4, "reset": 2}.get(self.ends[-1], 1)
            world.sleep(600_000 if self.ends[-1] == "deep-sleep" else 500)

    def judge(self):
        came: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        named: dict[int, set[int]] = defaultdict(set)
        for payload, topic in self.broker.topics.items():
            if topic.startswith("flashmqtt/"):
                head = json.loads(payload)[0]
                life = head["life"]
                came[life, head["seq"]].add(payload)
                pieces = ",".join(text for label, text in head.items() if label.endswith("_seqs"))
                pieces += ",%d-%d" % (head["doubt_first"], head["doubt_last"]) if "doubt_first" in head else ""
                for first, _, last in (piece.partition("-") for piece in pieces.split(",") if piece):
                    named[life].update(range(int(first), int(last or first) + 1))
        assert all(len(payloads) == 1 for payloads in came.values())
        newest = max(number for _, number in self.stored)
        lost = [one for one in self.stored if one not in came and one[1] not in named[one[0]] and one[1] < newest - 3]
        assert not lost
        assert all(came[one] <= {payload} for one, payload in self.stored.items())
        assert "the REPL" not in self.ends and not self.flash.violations and not self.broker.broken
        assert self.reads[-1] > self.world.now_ms - HOUR


@pytest.mark.req("B4", "B5", "P4", "Q2", "R4", "R5", "S2", "S5")
@pytest.mark.parametrize(
    ("seed", "kind", "sleep_s", "policy"),
    [(0, "esp32", 0, "drop-oldest"), (0, "rp2", 0, "refuse"), (1, "esp32", 600, "drop-oldest")],
)
def test_every_message_is_delivered_or_named_after_days_of_faults(seed, kind, sleep_s, policy, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    life = Life(seed, kind, sleep_s, policy, 1 if sleep_s else 2, monkeypatch)
    life.run()
    life.judge()


@pytest.mark.req("B4")
def test_error_while_the_configuration_is_read_restarts_the_board(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    life = Life(0, "esp32", 0, "refuse", 1, monkeypatch)
    monkeypatch.setitem(sys.modules, "app.configuration", None)  # its import fails
    assert life.boot() == "reset"
