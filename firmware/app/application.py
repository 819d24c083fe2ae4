"""The sensor board: samples on schedule, stores at once, sends when there is a network, and reports earlier failures.

Sampling never waits for the network: a message is in flash when `publish()` returns. The client connects, retransmits and
acknowledges inside `poll()`, between two samples. Every stored message has the identity that `app.senml` describes. The first
message of each boot is marked, so that the receiver knows what each boot published. The status and Home Assistant's discovery
are sent again with every connection, so they need no storing: they are published at QoS 0, retained, without an identity.

    flashmqtt/<device>/readings   the sensors, one message per QoS and interval
    flashmqtt/<device>/boot       once per start: its number, its first message, the cause of the start
    flashmqtt/<device>/health     the board's health (`app.health`)
    flashmqtt/<device>/clock      relates the uptime to the wall clock, when the time becomes known
    flashmqtt/<device>/replies    results of commands
    flashmqtt-commands/<device>   commands, at QoS 1 (`app.commands`)
    flashmqtt-live/<device>/status    "online" or, by the will, "offline"; retained
    flashmqtt-live/<device>/readings  sensors with QoS 0: for live display only, not counted; `seq` is that of the next message

It knows the board only through the contract in `boards/board.pyi`.
"""

import gc
import sys

import app
from flashmqtt import __version__
from flashmqtt.compat import const
from flashmqtt.errors import StoreFull, StoreWorn, UsageError
from flashmqtt.journal.journal import DROP_OLDEST, REFUSE, Journal

from .clock import NetworkTime, Uptime
from .commands import Commands
from .life import life_of
from .senml import pack
from .state import State

_TURN_MS = const(200)
_REBOOT_MS = const(5000)
_IDENTIFY_MS = const(10000)
_BLINK_MS = const(250)
_NETWORK_MS = const(500)
_NETWORK_RETRY_MS = const(20000)  # after an error
_CLOCK_PATIENCE_MS = const(30000)
_WATCHDOG_LEAST_S = const(8)
_ERROR_CHARACTERS = const(99)  # of a sensor's error
_ATTEMPTS = const(6)  # of a command: a full store has half a minute to get room


class Group:
    """Sensors with the same QoS and interval, which are read and published together."""

    def __init__(self, qos, interval_ms, due_ms):
        self.qos = qos
        self.interval_ms = interval_ms  # 0: the application's
        self.sensors = []
        self.due_ms = due_ms


class Application:
    """One run of the board's program, from its start to the next reset.

    Args:
        board: a module that fulfils `boards/board.pyi`.
        config: what `app.configuration.load` returned.
        state: a `State`; the file state.json by default.
    """

    def __init__(self, board, config, state=None):
        self.board = board
        self.config = config
        self._feed = None
        if config["watchdog_s"]:
            # What runs between two feeds may take seconds: a step of a TLS handshake on a slow chip, perhaps the radio's start.
            self._feed = board.watchdog(max(config["watchdog_s"], _WATCHDOG_LEAST_S) * 1000)
        self.uptime = Uptime()
        self.state = State() if state is None else state
        self.cause = board.reset_cause()
        self.device = config["device"] or board.unique_id()
        self.topic = "flashmqtt/" + self.device + "/"
        self.live = "flashmqtt-live/" + self.device + "/"
        self.journal = Journal(
            board.journal_region(config["sectors"], self._feed),
            # With "drop-newest" and "refuse", `publish` counts.
            policy=DROP_OLDEST if config["when_full"] == "drop-oldest" else REFUSE,
            feed=self._feed,
        )
        self.first = self.journal.stored + 1
        self.life, self.since = life_of(self.state, self.journal.stored, self.device)
        self._boot_due = False  # does the boot message wait for room in the store?
        self._records = {}  # what the first reading of a wake gave: id of the sensor -> record
        self._worn = None
        self.undated = False  # was a message of this boot published before the time was known?
        self.interval_ms = self.state.get("interval_ms") or config["interval_ms"]
        from . import startup

        self.groups = startup.groups_of(self, Group)
        host, _, port = config["ntp"].partition(":")
        self.time = NetworkTime(self.uptime, host, int(port or 123), feed=self._feed)
        known = board.clock()
        if known is not None:
            self.time.set(known * 1000)
        self.commands = Commands(self.state, lambda: self.journal.stored, self._act, self._reply, self.uptime.ms)
        self._old_level = False  # does the client use the stored messages' level, before the configured one?
        self.client = client = startup.client_of(self, _ATTEMPTS)
        client.on_error = self._on_error
        client.on_connect = self._on_connect
        client.on_delivered = self._on_delivered
        client.on_in_doubt = lambda handle: self._lost("doubt", handle, handle)
        client.on_damaged = lambda handle: self._lost("damaged", handle, handle)
        client.on_refused = lambda handle, code: self._lost("refused", handle, handle)
        client.on_expired = lambda handle: self._lost("expired", handle, handle)
        client.on_dropped = lambda first, last: self._lost("dropped", first, last)
        self._drop = self.journal.on_drop  # the client's
        self.journal.on_drop = self._dropping
        del sys.modules["app.startup"], app.startup
        self._online = False  # the network is up, and the client may connect
        self._greeting = -1  # the next step of `_greet`, which runs with every connection; -1: done
        self.outcomes = None  # undelivered messages: `outcomes.Outcomes`
        dropped_from = self.state.get("dropped_from")
        if dropped_from:  # in an outage before the last restart
            from .outcomes import Outcomes

            self.outcomes = Outcomes().restored(self.journal, dropped_from)
            if not self.outcomes:  # the power failed before the drop
                self._note_dropped(None)
        self._reboot_ms = 0
        self._flushing = False  # is the health message due because of the command "flush"?
        self._identify_ms = 0
        self._lit = None
        self._network_ms = 0
        self._status_ms = 0
        self._health_ms = 0
        # Last: this may call handlers.
        client.subscribe("flashmqtt-commands/" + self.device, 1, self._command)

    # --- publishing ---

    def publish(self, kind, qos, records, labels=None):
        """Publish one message; at QoS 1 and 2 it is stored when this returns, and sent when there is a connection.

        Return its handle; 0 at QoS 0, and if it is not stored.
        """
        journal = self.journal
        # A reply must not wait: its number is noted, and the next stored message has that number (see `app.commands`).
        if not qos or kind == "replies" or self._settled():
            unix_ms = self.time.unix_ms()
            if unix_ms is None:
                self.undated = True
            seq = journal.stored + 1
            payload = pack(self.device, journal.boot, seq, self.uptime.ms(), records, unix_ms, labels, self.life)
            try:
                return self.client.publish((self.topic if qos else self.live) + kind, payload, qos=qos)
            except (StoreFull, StoreWorn) as error:
                if isinstance(error, StoreWorn):  # stored messages can still be delivered: see `turn`
                    self._worn = error
                elif not (journal.waiting or self.config["log"]):  # it never fits; the client's log has this, too
                    print("not stored: %s: %s" % (kind, error))
        if kind != "replies" and kind != "boot":  # else it waits
            journal.dropped += 1
        return 0

    def sample(self, group):
        """Read a group's sensors; return their values as SenML records."""
        records = []
        for sensor in group.sensors:
            record = self._records.get(id(sensor)) or self._read(sensor)
            if record:
                records.append(record)
        return records

    def _read(self, sensor):
        """Return a sensor's value as a SenML record, or None after printing why there is none."""
        try:
            value = sensor.read()
            if value is None:
                return None
            # Anything else would make the message invalid, with the values of the other sensors.
            if type(value) not in (int, float) or value * 0.0 != 0:
                raise ValueError("no finite number: %r" % (value,))
            record = {"n": sensor.name, "v": value}
            if sensor.unit:
                record["u"] = sensor.unit
            return record
        except (Exception, SystemExit) as error:  # a driver may raise anything
            gc.enable()  # it may have interrupted a driver that had disabled the collector
            try:
                print("sensor:", sensor.name, type(error).__name__, str(error)[:_ERROR_CHARACTERS])
            except Exception as another:  # by the name, or by the error's text
                print("sensor:", type(error).__name__, type(another).__name__)
            return None

    def beginning(self):
        """Return the labels that mark the first message of a boot."""
        labels = {"first": self.first, "cause": self.cause, "dropped": self.journal.dropped}
        if self.since > 1:
            labels["since"] = self.since
        return labels

    def announce(self):
        """Finish a command that a power cut interrupted, then publish the boot message."""
        done = self.commands.resume()
        if done:
            print("command", done, "finished after a power cut")
        self._boot()

    def _settled(self):
        """Store a reply and the boot message, if a full store had no room for them; return False if it has still no room."""
        return self.commands.settle() and (not self._boot_due or self._boot())

    def _boot(self):
        """Publish the boot message; return whether it is stored. If it is not, `publish` tries again before other messages."""
        self._boot_due = False
        self._boot_due = not self.publish("boot", 1, [{"n": "start", "vs": self.cause}], self.beginning())
        return not self._boot_due

    def status(self):
        """Print one status line on the console."""
        journal = self.journal
        print(
            "status",
            "stored=%d waiting=%d connects=%d dropped=%d"
            % (journal.stored, journal.waiting, self.client.link.connects, journal.dropped),
        )

    # --- the client's handlers; most of them only note work for the next turn ---

    def _on_error(self, error, message):
        if not message and isinstance(error, MemoryError):
            # In `_lost`: the client would finish these messages next. After a restart, it reports them again.
            print("restart: no memory in a handler")
            self.board.reset()
        # Raised by `poll`, it would restart the board, and a command would come again after each restart.
        print("handler:", repr(error))
        if message and message.failures >= _ATTEMPTS:
            self.commands.refused += 1  # the client discards it
        if not isinstance(error, StoreFull) and hasattr(sys, "print_exception"):  # CPython has none
            sys.print_exception(error)

    def _on_connect(self, session_present):
        self._greeting = 0
        if self.state.get("dropped_from") and self.outcomes:
            self.outcomes.news = True
            self._status_ms = 0  # tell it now: a board that sleeps is not connected for long

    def _on_delivered(self, handle):
        if self.outcomes and self.outcomes.delivered(handle) and self.state.get("dropped_from"):
            self._note_dropped(None)

    def _dropping(self, first, end):
        # Note it before: the report comes later, and a power cut between would lose these numbers.
        if not self.state.get("dropped_from"):
            self._note_dropped(self.outcomes.first(first) if self.outcomes else first)
        self._drop(first, end)

    def _lost(self, kind, first, last):
        # The handle is the journal's sequence, which is also the number in the message's payload: see `publish`.
        # Report now: the client finishes these messages only after this returns, so that a power cut can't lose their numbers.
        # A refused health message is reported with the next one, so that there is no endless loop.
        from .outcomes import Outcomes, has_topic

        if self.outcomes is None:
            self.outcomes = Outcomes()
        news = self.outcomes.news
        again = self.outcomes.add(kind, first, last)
        if kind == "dropped":
            noted = (not again and self.state.get("dropped_from")) or self._note_dropped(self.outcomes.first(first))
            if not self.client.connected:
                # In an outage a full store drops some with each new sector. Health messages would be dropped themselves.
                if noted:
                    self.outcomes.news = news
                return
        if kind == "doubt":
            self._status_ms = 0  # several come one after the other: one health message at the end of this turn
            return
        if again or self.client.session.reports:
            return
        if kind != "refused" or not has_topic(self.journal, first, (self.topic + "health").encode()):
            self._tell_undelivered()

    def _note_dropped(self, dropped_from):
        """Note across restarts that all undelivered messages from this number to the journal's `floor` were dropped.

        If nothing was dropped since, it is the first number of a report: see `_keep_report`.
        """
        try:
            self.state.save(dropped_from=dropped_from)
        except OSError as error:
            print("state:", error)
            return False
        return True

    def _keep_report(self):
        """In an outage, note the numbers of a report that is not acknowledged: after a restart, the full store may drop it."""
        outcomes = self.outcomes
        if outcomes and outcomes.handle and not (self.client.connected or self.state.get("dropped_from")):
            self._note_dropped(outcomes.first(outcomes.handle))

    def _tell_undelivered(self):
        stored = self._tell([{"n": "undelivered", "vb": True}])
        # The store is full, and the next status line tries again; or it may be full in this outage: see `_keep_report`.
        if not ((stored and self.client.connected) or self.state.get("dropped_from")):
            self._note_dropped(self.outcomes.first(self.journal.stored))  # type: ignore[union-attr]

    def _tell(self, records):
        """Publish a health message; return its handle, 0 if it is not stored."""
        outcomes = self.outcomes
        handle = self.publish("health", 1, records, outcomes.labels() if outcomes else None)
        if outcomes:
            outcomes.reported(handle)
        return handle

    def _command(self, message):
        print("command", message.payload)
        self.commands.take(message.payload)

    def _act(self, name, ms):
        if name == "interval":
            self.interval_ms = ms
            for group in self.groups:
                if not group.interval_ms:
                    group.due_ms = self.uptime.ms()
        elif name == "flush":
            self._flushing = True
            self._flush()
        elif name == "identify":
            self._identify_ms = self.uptime.ms() + _IDENTIFY_MS
        elif name == "reboot":
            self._reboot_ms = self.uptime.ms() + _REBOOT_MS

    def _reply(self, ident, result):
        return self.publish("replies", 2, [{"n": "command", "vs": ident}, {"n": "result", "vs": result}])

    # --- the loop ---

    def run(self):
        """Sample and publish until `stop_after` messages are stored and delivered; with 0, without end."""
        config = self.config
        last = config["stop_after"]
        print(
            "boot",
            "device=%s boot=%d stored=%d cause=%s" % (self.device, self.journal.boot, self.journal.stored, self.cause),
        )
        if config["sleep_s"]:
            from .wake import wake

            wake(self)
            return
        self.announce()
        self._health_ms = self.uptime.ms() + config["health_s"] * 1000
        while not last or self.journal.stored < last:
            self.turn(self.read_what_is_due())
        while self.client.pending:
            self.turn(_TURN_MS)
        self.client.disconnect()
        self.status()
        print("done")

    def read_what_is_due(self):
        """Sample the groups that are due; return the milliseconds until the next one is due."""
        wait = _TURN_MS
        for group in self.groups:
            now = self.uptime.ms()
            if now >= group.due_ms:
                found = self.sample(group)
                if found:
                    self.publish("readings", group.qos, found)
                interval = group.interval_ms or self.interval_ms
                group.due_ms += interval
                if now >= group.due_ms:  # late, after an erase or an outage: continue from now
                    group.due_ms = now + interval
            wait = min(wait, max(0, group.due_ms - self.uptime.ms()))
        return wait

    def turn(self, wait_ms):
        """Run the client until the next sample is due, let the journal do slow work, and do all other work that is due."""
        if self._feed:
            self._feed()
        now = self.uptime.ms()
        if now >= self._network_ms:
            self._network_ms = now + _NETWORK_MS
            self._network()
        self.client.poll(wait_ms)
        self.journal.idle()
        if self._online and self.time.turn():
            self._time_learnt()
        if self._greeting >= 0 and self.client.connected:
            self._greet()
        config = self.config
        now = self.uptime.ms()
        if self._flushing or (config["health_s"] and now >= self._health_ms):
            self._flushing = False
            self._health_ms = now + config["health_s"] * 1000
            self._tell_health()
        if now >= self._status_ms:
            self._status_ms = now + config["status_ms"]
            if self.client.connected:  # only then there may be more room than before
                self._settled()
            if self.outcomes and self.outcomes.news:  # see `_lost`; or its health message was not stored
                self._tell_undelivered()
            self._keep_report()
            self.status()
        self._show(now)
        if self._worn and not self.client.pending:
            from .worn import restart

            restart(self, self._worn)
        if self._old_level or self._reboot_ms:
            done = not self.client.pending
            # Not with news: `_finish` would store a message, at the old level again.
            changes = done and self._old_level and not (self.outcomes and self.outcomes.news)
            if changes or (self._reboot_ms and (done or now >= self._reboot_ms)):
                self._finish()
                self.board.reset()

    def _network(self):
        """Keep the network up, and let the client connect only while it is up."""
        config = self.config
        log = print if config["log"] else None
        try:
            up = self.board.network_up(config["ssid"], config["password"], config["country"], log)
        except Exception as error:  # such as an ESP32's for a password that is too short: sampling goes on
            up = False
            self._network_ms += _NETWORK_RETRY_MS
            print("network: error:", error)
        if up and config["tls"] and self.time.unix_ms() is None:
            # A certificate can't be checked without the time. After a deadline, try without: the time server may be unreachable.
            patience_ms = _CLOCK_PATIENCE_MS
            if config["sleep_s"]:
                patience_ms = min(patience_ms, config["awake_s"] * 500)
            up = self._online or not config["ntp"] or self.uptime.ms() > patience_ms
            if not self._online and self.time.turn():
                self._time_learnt()
        if up and not self._online:
            self.client.start()
        elif self._online and not up:
            self.client.link.stop()
        self._online = up

    def _time_learnt(self):
        try:
            self.board.set_clock(self.time.unix_ms() // 1000)
        except Exception as error:  # MicroPython 1.25 on 32 bits can't set a time after January 2038
            print("clock:", error)
        if self.undated:
            self.undated = False
            self.publish("clock", 1, [{"n": "clock", "vs": "ntp"}])

    def _greet(self):
        """Publish the next message of a new connection: first the status, then Home Assistant's discovery, a sensor each."""
        config = self.config
        if not config["sleep_s"] and self._greeting == 0:
            self.client.publish(self.live + "status", b"online", qos=0, retain=True)
        sensors = [sensor for group in self.groups for sensor in group.sensors]
        announced = config["discovery"] and not (config["sleep_s"] and self.cause == "deep-sleep")
        if not announced or self._greeting >= len(sensors):
            self._greeting = -1
            return
        from .discovery import sensor_message

        sensor = sensors[self._greeting]
        self._greeting += 1
        live = not config["sleep_s"] and not getattr(sensor, "qos", 1)  # see `wake`
        try:
            topic, payload = sensor_message(
                config["discovery"],
                self.device,
                self.board.MODEL,
                __version__,
                (self.live if live else self.topic) + "readings",
                self.live + "status",
                sensor.name,
                sensor.unit,
                expire_s=3 * config["sleep_s"],
            )
            self.client.publish(topic, payload, qos=0, retain=True)
        # Too long for the buffer; `discovery` is not part of a topic; or the sensor has lost its name or unit.
        except (UsageError, AttributeError) as error:
            print("sensor: not announced:", getattr(sensor, "name", None), error)

    def _tell_health(self):
        from .health import records

        if not self._tell(records(self)):
            self._flush()  # the count of dropped messages: nothing else writes it

    def _flush(self):
        try:
            self.journal.flush()
        except StoreWorn as error:  # stored messages can still be delivered: see `turn`
            self._worn = error

    def _finish(self):
        """Prepare for a sleep or a reset: report what only RAM has, disconnect, close the journal."""
        if self.outcomes and self.outcomes.news:
            self._tell_undelivered()
        self.client.disconnect()
        self._keep_report()
        self.journal.close()

    def _show(self, now):
        """Set the LED: it blinks after the command "identify", and is lit while there is no connection."""
        if now < self._identify_ms:
            lit = now // _BLINK_MS % 2 == 0
        else:
            lit = not self.client.connected
        if lit != self._lit:
            self._lit = lit
            self.board.led(lit)
