"""The sensor board: sample on schedule, store at once, send when there is a network, and say what happened before.

Sampling never waits for the network: a message is in flash when `publish()` returns, and the client connects,
resends and acknowledges inside `poll()`, in the time between two samples. Every message carries the identity
that `app.senml` describes, and the first one of each boot says with which sequence number this boot began, so
that the far end knows what every boot published.

It knows the board only through the contract in `boards/board.pyi`.
"""

from flashmqtt.client import Client
from flashmqtt.journal.journal import Journal

from flashmqtt.compat import ticks_add, ticks_diff, ticks_ms

from .senml import pack

STATUS_INTERVAL_MS = 200
CONNECT_TIMEOUT_MS = 30000


class Application:
    """One run of the board's program, from its start to the next reset.

    Args:
        board: a module that fulfils `boards/board.pyi`.
        config: what `app.configuration.load` returned.
    """

    def __init__(self, board, config):
        self.board = board
        self.config = config
        self.device = config["device"] or board.unique_id()
        self.started = ticks_ms()
        self.journal = Journal(board.journal_region(), slots=config["window"] + 24)
        self.sensors = board.sensors()
        self.client = Client(
            config["broker"],
            config["port"],
            client_id=self.device,
            store=self.journal,
            keep_alive_s=config["keep_alive_s"],
            window=config["window"],
        )
        self.topic = "flashmqtt/" + self.device + "/"
        self.status_due = self.started

    def publish(self, kind, qos, records):
        """Store one message; return its handle. It leaves when there is a connection."""
        journal = self.journal
        uptime_ms = ticks_diff(ticks_ms(), self.started)
        payload = pack(self.device, journal.boot, journal.stored + 1, uptime_ms, records)
        return self.client.publish(self.topic + kind, payload, qos=qos)

    def sample(self):
        """Read every sensor; return what they gave as SenML records."""
        records = []
        for sensor in self.sensors:
            value = sensor.read()
            if value is not None:
                record = {"n": sensor.name, "v": value}
                if sensor.unit:
                    record["u"] = sensor.unit
                records.append(record)
        return records

    def announce(self):
        """Publish the boot message: its sequence number is the first one of this boot."""
        self.publish("boot", 1, [{"n": "cause", "vs": self.board.reset_cause()}])

    def status(self):
        """Print one line for whoever watches the console."""
        journal = self.journal
        print("status", "stored=%d waiting=%d connects=%d" % (journal.stored, journal.waiting, self.client.link.connects))

    def run(self):
        """Sample and publish until `stop_after` messages are stored and delivered; with 0, for ever."""
        config = self.config
        interval_ms = config["interval_ms"]
        last = config["stop_after"]
        print(
            "boot",
            "device=%s boot=%d stored=%d cause=%s"
            % (self.device, self.journal.boot, self.journal.stored, self.board.reset_cause()),
        )
        self.announce()
        self.client.start()
        due = ticks_ms()
        while not last or self.journal.stored < last:
            now = ticks_ms()
            if ticks_diff(now, due) >= 0:
                # In turn at QoS 1 and QoS 2, by the number that survives a reset.
                self.publish("readings", 2 if self.journal.stored & 1 else 1, self.sample())
                due = ticks_add(due, interval_ms)
                if ticks_diff(now, due) >= 0:  # time was lost to an erase or an outage: go on from here
                    due = ticks_add(now, interval_ms)
            self.turn(max(0, ticks_diff(due, ticks_ms())))
        while self.client.pending:
            self.turn(STATUS_INTERVAL_MS)
        self.client.disconnect()
        self.status()
        print("done")

    def turn(self, wait_ms):
        """Give the client the time until the next sample, and the journal a quiet moment."""
        self.client.poll(wait_ms)
        self.journal.idle()
        now = ticks_ms()
        if ticks_diff(now, self.status_due) >= 0:
            self.status_due = ticks_add(now, STATUS_INTERVAL_MS)
            self.status()
