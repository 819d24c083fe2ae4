"""The sensor board: sample on schedule, store at once, send when there is a network, and say what happened before.

Sampling never waits for the network: a message is in flash when `publish()` returns, and the client connects, resends and
acknowledges inside `poll()`, in the time between two samples. Every stored message carries the identity that `app.senml`
describes; the first of each boot is marked, so that the far end knows what every boot published. What needs no storing,
because every connection says it anew (the status, Home Assistant's discovery), goes out at QoS 0, retained, and
carries none.

    flashmqtt/<device>/readings   the sensors, one message per QoS and interval
    flashmqtt/<device>/boot       once a start: which number it has, its first message, why it started
    flashmqtt/<device>/health     how the board fares (`app.health`)
    flashmqtt/<device>/clock      ties the uptime to the calendar, when the time was learnt
    flashmqtt/<device>/replies    what became of a command
    flashmqtt-commands/<device>   commands, taken at QoS 1 (`app.commands`)
    flashmqtt-live/<device>/status    "online" or, by the will, "offline"; retained
    flashmqtt-live/<device>/readings  sensors that ask for QoS 0: for eyes, not for the books, so no number is spent on them

It knows the board only through the contract in `boards/board.pyi`.
"""

from flashmqtt import __version__
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.compat import const
from flashmqtt.errors import StoreFull, StoreWorn
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal

from .clock import NetworkTime, Uptime
from .commands import Commands
from .life import life_of
from .senml import pack
from .state import State

_POLICIES = {"refuse": REFUSE, "drop-oldest": DROP_OLDEST, "drop-newest": DROP_NEWEST}
_TURN_MS = const(200)
_REBOOT_MS = const(5000)
_IDENTIFY_MS = const(10000)
_BLINK_MS = const(250)
_LISTEN_MS = const(300)
_NETWORK_MS = const(500)
_CLOCK_PATIENCE_MS = const(30000)
_TLS_WATCHDOG_S = const(8)
_BUFFER_BYTES = const(640)  # longer messages go out in pieces; a longer command is none


class Group:
    """Sensors that are read and published together: same QoS, same interval."""

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
            # A step of a TLS handshake takes seconds on a slow chip.
            least_s = _TLS_WATCHDOG_S if config["tls"] else 0
            self._feed = board.watchdog(max(config["watchdog_s"], least_s) * 1000)
        self.uptime = Uptime()
        self.state = State() if state is None else state
        self.cause = board.reset_cause()
        self.device = config["device"] or board.unique_id()
        self.topic = "flashmqtt/" + self.device + "/"
        self.live = "flashmqtt-live/" + self.device + "/"
        self.journal = Journal(
            board.journal_region(config["sectors"], self._feed),
            policy=_POLICIES[config["when_full"]],
            feed=self._feed,
        )
        self.first = self.journal.stored + 1
        self.life, self.since = life_of(self.state, self.journal.stored)
        self.refused = 0
        self._worn = None
        self.undated = False  # was anything of this boot published without the time?
        self.interval_ms = self.state.get("interval_ms") or config["interval_ms"]
        self.groups = self._grouped(self._sensors())
        host, _, port = config["ntp"].partition(":")
        self.time = NetworkTime(self.uptime, host, int(port or 123))
        known = board.clock()
        if known is not None:
            self.time.set(known * 1000)
        self.commands = Commands(self.state, lambda: self.journal.stored, self._act, self._reply, self.uptime.ms)
        self.client = self._connected_by(config)
        self.client.subscribe("flashmqtt-commands/" + self.device, 1, self._command)
        self._online = False  # is the network there, and the client told to connect?
        self._greeting = -1  # what is said next of what every connection hears; -1: nothing
        self.outcomes = None  # what was not delivered: `outcomes.Outcomes`
        self._doubt = None  # first and last number of messages that the broker may have, or not, or twice
        self._reboot_ms = 0
        self._identify_ms = 0
        self._lit = None
        self._network_ms = 0
        self._status_ms = 0
        self._health_ms = 0

    def _sensors(self):
        found = list(self.board.sensors())
        for settings in self.config["sensors"]:
            from .sensors import make

            try:
                found += make(settings)
            except (ValueError, OSError) as error:  # one that is broken must not silence the others
                print("sensor:", error)
        return found

    def _grouped(self, sensors):
        groups = {}
        for sensor in sensors:
            key = (getattr(sensor, "qos", 1), getattr(sensor, "interval_ms", 0))
            if key not in groups:
                groups[key] = Group(key[0], key[1], self.uptime.ms())
            groups[key].sensors.append(sensor)
        return [groups[key] for key in sorted(groups)]

    def _connected_by(self, config):
        sleeping = config["sleep_s"]
        tls = None
        if config["tls"]:
            from flashmqtt.tls import context

            tls = context(config["tls"], config["tls_cert"] or None, config["tls_key"] or None)
        client = Client(
            config["broker"],
            config["port"],
            client_id=self.device,
            store=self.journal,
            level=config["level"],
            user=config["user"] or None,
            password=config["broker_password"] or None,
            keep_alive_s=config["keep_alive_s"],
            # A board that sleeps is away most of the time: that is no news.
            will=None if sleeping else (self.live + "status", b"offline", 1, True),
            window=config["window"],
            buffer_bytes=_BUFFER_BYTES,
            tls=tls,
            backoff=Backoff(cap_ms=config["awake_s"] * 250 if sleeping else config["longest_pause_s"] * 1000),
            feed=self._feed,
            log=print if config["log"] else None,
        )
        client.on_connect = self._on_connect
        client.on_delivered = self._on_delivered
        client.on_in_doubt = self._on_in_doubt
        client.on_damaged = lambda handle: self._lost("damaged", handle, handle)
        client.on_refused = lambda handle, code: self._lost("refused", handle, handle)
        client.on_expired = lambda handle: self._lost("expired", handle, handle)
        client.on_dropped = lambda first, last: self._lost("dropped", first, last)
        return client

    # --- publishing ---

    def publish(self, kind, qos, records, labels=None):
        """Publish one message; stored when this returns, at QoS 1 and 2. It leaves when there is a connection."""
        journal = self.journal
        unix_ms = self.time.unix_ms()
        if unix_ms is None:
            self.undated = True
        seq = journal.stored + 1
        payload = pack(self.device, journal.boot, seq, self.uptime.ms(), records, unix_ms, labels, self.life)
        try:
            return self.client.publish((self.topic if qos else self.live) + kind, payload, qos=qos)
        except StoreFull:
            self.refused += 1
            return 0
        except StoreWorn as error:  # what is stored can still be delivered: see `turn`
            self._worn = error
            self.refused += 1
            return 0

    def sample(self, group):
        """Read a group's sensors; return what they gave as SenML records."""
        records = []
        for sensor in group.sensors:
            try:
                value = sensor.read()
            except (OSError, ValueError) as error:
                print("sensor:", sensor.name, error)
                continue
            if value is not None:
                record = {"n": sensor.name, "v": value}
                if sensor.unit:
                    record["u"] = sensor.unit
                records.append(record)
        return records

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
        self.publish("boot", 1, [{"n": "start", "vs": self.cause}], self.beginning())

    def status(self):
        """Print one line for whoever watches the console."""
        journal = self.journal
        print(
            "status",
            "stored=%d waiting=%d connects=%d dropped=%d"
            % (journal.stored, journal.waiting, self.client.link.connects, journal.dropped + self.refused),
        )

    # --- what the client calls; each only notes what the next turn does ---

    def _on_connect(self, session_present):
        self._greeting = 0

    def _on_delivered(self, handle):
        if self.outcomes:
            self.outcomes.delivered(handle)

    def _on_in_doubt(self, handle):
        # The handle is the journal's sequence, which is the number that the message bears in its payload: see `publish`.
        first, last = self._doubt or (handle, handle)
        self._doubt = (min(first, handle), max(last, handle))

    def _lost(self, kind, first, last):
        # Told now, while the client waits: it finishes these messages when this returns, so that no power cut loses their names.
        # (A health message that is refused itself is told with the next one, or this would never end.)
        if self.outcomes is None:
            from .outcomes import Outcomes

            self.outcomes = Outcomes()
        if not self.outcomes.add(kind, first, last) and not self.client.session.reports:
            self._tell([{"n": "undelivered", "vb": True}])

    def _tell(self, records):
        """Publish a health message."""
        outcomes = self.outcomes
        if outcomes:
            outcomes.told(self.publish("health", 1, records, outcomes.labels()))
        else:
            self.publish("health", 1, records)

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
            self._health_ms = self.uptime.ms()
            self.journal.flush()
        elif name == "identify":
            self._identify_ms = self.uptime.ms() + _IDENTIFY_MS
        elif name == "reboot":
            self._reboot_ms = self.uptime.ms() + _REBOOT_MS

    def _reply(self, ident, result):
        self.publish("replies", 2, [{"n": "command", "vs": ident}, {"n": "result", "vs": result}])

    # --- the loop ---

    def run(self):
        """Sample and publish until `stop_after` messages are stored and delivered; with 0, for ever."""
        config = self.config
        last = config["stop_after"]
        print(
            "boot",
            "device=%s boot=%d stored=%d cause=%s" % (self.device, self.journal.boot, self.journal.stored, self.cause),
        )
        if config["sleep_s"]:
            self.wake()
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
        """Sample the groups whose time has come; return the milliseconds until the next one's."""
        wait = _TURN_MS
        for group in self.groups:
            now = self.uptime.ms()
            if now >= group.due_ms:
                self.publish("readings", group.qos, self.sample(group))
                interval = group.interval_ms or self.interval_ms
                group.due_ms += interval
                if now >= group.due_ms:  # time was lost to an erase or an outage: go on from here
                    group.due_ms = now + interval
            wait = min(wait, max(0, group.due_ms - self.uptime.ms()))
        return wait

    def turn(self, wait_ms):
        """Give the client the time until the next sample, the journal a quiet moment, and everything else its step."""
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
        if self._doubt:
            labels = {"doubt_first": self._doubt[0], "doubt_last": self._doubt[1]}
            self._doubt = None
            self.publish("health", 1, [{"n": "in_doubt", "vb": True}], labels)
        config = self.config
        now = self.uptime.ms()
        if config["health_s"] and now >= self._health_ms:
            self._health_ms = now + config["health_s"] * 1000
            self._tell_health()
        if now >= self._status_ms:
            self._status_ms = now + config["status_ms"]
            if self.outcomes and self.outcomes.news:  # the store was full, or the message was refused itself
                self._tell([{"n": "undelivered", "vb": True}])
            self.status()
        self._show(now)
        if self._worn and not self.client.pending:
            raise self._worn  # somebody has to look
        if self._reboot_ms and (now >= self._reboot_ms or not self.client.pending):
            self.client.disconnect()
            self.board.reset()

    def _network(self):
        """See that the network is there, and let the client connect only while it is."""
        config = self.config
        log = print if config["log"] else None
        up = self.board.network_up(config["ssid"], config["password"], config["country"], log)
        if up and config["tls"] and self.time.unix_ms() is None:
            # A certificate can't be judged without the time; but a network without a time server must not be a dead end.
            up = self._online or self.uptime.ms() > _CLOCK_PATIENCE_MS
            if not self._online and self.time.turn():
                self._time_learnt()
        if up and not self._online:
            self.client.start()
        elif self._online and not up:
            self.client.link.stop()
        self._online = up

    def _time_learnt(self):
        self.board.set_clock(self.time.unix_ms() // 1000)
        if self.undated:
            self.undated = False
            self.publish("clock", 1, [{"n": "clock", "vs": "ntp"}])

    def _greet(self):
        """Say the next of what every connection hears: the status, and one sensor for Home Assistant at a time."""
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
        topic, payload = sensor_message(
            config["discovery"],
            self.device,
            self.board.MODEL,
            __version__,
            (self.topic if getattr(sensor, "qos", 1) else self.live) + "readings",
            self.live + "status",
            sensor.name,
            sensor.unit,
            expire_s=3 * config["sleep_s"],
        )
        self.client.publish(topic, payload, qos=0, retain=True)
        self._greeting += 1

    def _tell_health(self):
        from .health import records

        self._tell(records(self))

    def _show(self, now):
        """The LED blinks when somebody looks for this board, and is lit while it is not connected."""
        if now < self._identify_ms:
            lit = now // _BLINK_MS % 2 == 0
        else:
            lit = not self.client.connected
        if lit != self._lit:
            self._lit = lit
            self.board.led(lit)

    # --- sleeping between two samples ---

    def wake(self):
        """Sample, send what is stored, wait for its acknowledgements until the deadline, sleep. It does not return."""
        config = self.config
        self.commands.resume()
        labels = self.beginning()
        for group in self.groups:
            self.publish("readings", max(1, group.qos), self.sample(group), labels)
            labels = None
        if labels:
            self.publish("boot", 1, [{"n": "start", "vs": self.cause}], labels)
        self._health_ms = self.uptime.ms() + config["awake_s"] * 1000
        if config["health_s"] and self.journal.boot % max(1, config["health_s"] // config["sleep_s"]) == 0:
            self._tell_health()
        deadline = self.uptime.ms() + config["awake_s"] * 1000
        quiet_ms = 0
        while self.uptime.ms() < deadline and not self._reboot_ms:
            self.turn(_TURN_MS // 4)
            # A command that waited at the broker comes with the connection: listen for a moment after the last message.
            if self.client.pending or not self.client.connected or self.time.waiting:
                quiet_ms = self.uptime.ms() + _LISTEN_MS
            elif self.uptime.ms() >= quiet_ms:
                break
        self.client.disconnect()
        self.journal.close()
        self.status()
        print("sleep", "%d s" % config["sleep_s"])
        self.board.sleep(config["sleep_s"] * 1000)
