"""The board's side of the fault cases, on MicroPython and CPython. It reads one case after another from its input.

    case <name> <port> <level> <qos> <flow> <count> <window> <bytes> <store> <republish> <file> [<keep_alive_s> <response_s>]

and answers with these lines:

    ready <name>                       it has subscribed: messages may be sent to it (flow "in")
    got <name> <number>                the application received this message
    delivered <name> <number>          the broker acknowledged this message finally (flow "out")
    doubt <name> <number>              this message was past PUBREC when the broker lost the session
    error <name> <class>[:reason] <text>  a connection ended, and why
    end <name> <connections> <heap>    everything is delivered, or received and a further connection brought nothing

The flow "out" publishes `count` numbered messages, the first half before there is a connection. The flow "in" receives
messages until one whose payload is "end"; then it connects once more, which shows whether a message comes a second time. The
flow "both" publishes at QoS 1 and 2 in turn and receives messages until "end", in one session.
"""

import gc
import sys

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.compat import ticks_add, ticks_diff, ticks_ms
from flashmqtt.errors import ConnectRefused, FlashMqttError
from flashmqtt.session.subscriptions import GRANTED

DRAIN_S = 25
QUIET_MS = 30
KEEP_ALIVE_S = 2
RESPONSE_S = 1
SECTORS = 16


def say(*words):
    """Print a line for the harness."""
    print(*words)
    try:
        sys.stdout.flush()
    except AttributeError:  # MicroPython does not buffer
        pass


def open_store(kind, file):
    """Return a case's store: "ram", or "journal" in a flash image with this file name."""
    if kind == "ram":
        from flashmqtt.session.ram import RamStore

        return RamStore()
    from flashmqtt.flash.file import FileRegion
    from flashmqtt.journal.journal import Journal

    return Journal(FileRegion(file, SECTORS, page_bytes=256, sync=False))


def body(number, size):
    """Return a message's payload: its number, filled up to a size."""
    text = "%d;" % number
    return (text + "." * (size - len(text))).encode()


def kind_of(error):
    """Return an error's class, with the reason code of level 5's DISCONNECT if it has one."""
    kind = type(error).__name__
    return "%s:%02x" % (kind, error.reason) if isinstance(error, FlashMqttError) and error.reason else kind


class Case:
    """One case."""

    client_class: type = Client

    def __init__(
        self,
        name,
        port,
        level,
        qos,
        flow,
        count,
        window,
        size,
        store,
        republish,
        file,
        keep_alive_s=KEEP_ALIVE_S,
        response_s=RESPONSE_S,
    ):
        self.name = name
        self.flow = flow
        self.qos = int(qos)
        self.count = int(count)
        self.size = int(size)
        self.topic = "faults/" + name
        self.numbers = {}
        self.publishing = 0
        self.ended = False
        self.client = client = self.client_class(
            "127.0.0.1",
            int(port),
            client_id=name,
            store=open_store(store, file),
            level=int(level),
            keep_alive_s=int(keep_alive_s),
            window=int(window),
            response_s=int(response_s),
            republish=republish == "yes",
            backoff=Backoff(base_ms=10, cap_ms=40, lasting_ms=20),
        )
        client.on_message = self.on_message
        client.on_delivered = self.on_delivered
        client.on_in_doubt = self.on_in_doubt
        client.on_refused = self.on_refused
        self._fail = client.link.fail
        client.link.fail = self.fail  # type: ignore[method-assign]

    def fail(self, error, now_ms):
        """Print why a connection ended."""
        say("error", self.name, kind_of(error), error)
        self._fail(error, now_ms)

    def on_message(self, message):
        """Print the number of a received message."""
        text = message.payload.decode().split(";")[0]
        if text == "end":
            self.ended = True
        else:
            say("got", self.name, text)

    def on_delivered(self, handle):
        """Print which message was delivered."""
        # A message can be delivered before the call that publishes it has returned.
        say("delivered", self.name, self.numbers.get(handle, self.publishing))

    def on_refused(self, handle, code):
        """Print which message the broker refused; it must not refuse any."""
        say("error", self.name, "Refused", self.numbers.get(handle, self.publishing), hex(code))

    def on_in_doubt(self, handle):
        """Print which message is in doubt."""
        say("doubt", self.name, self.numbers.get(handle, 0))

    def publish(self, first, last):
        """Publish the messages from `first` to `last` - 1."""
        for number in range(first, last):
            qos = self.qos
            if self.flow == "both":
                qos = 2 - number % 2
            while not qos and not self.client.connected:
                self.client.poll(20)
            self.publishing = number
            self.numbers[self.client.publish(self.topic, body(number, self.size), qos)] = number
            self.client.poll(0)

    def run(self):
        """Run the case to its end."""
        client = self.client
        if self.flow == "out":
            half = self.count // 2 + 1 if self.qos else 1
            self.publish(1, half)
            client.connect(DRAIN_S)
            self.publish(half, self.count + 1)
            client.drain(DRAIN_S)
            client.poll(0)
        elif self.flow == "both":
            client.subscribe(self.topic + "/in", 2)
            self.publish(1, self.count // 2 + 1)
            try:
                client.connect(DRAIN_S)
            except ConnectRefused:
                pass  # `fail` prints it; the client tries again
            self.publish(self.count // 2 + 1, self.count + 1)
            deadline = ticks_add(ticks_ms(), DRAIN_S * 1000)
            asked = True
            while (client.pending or not self.ended) and ticks_diff(deadline, ticks_ms()) > 0:
                client.poll(20)
                if asked and client.session.subscriptions[0].state == GRANTED:
                    asked = False
                    say("ready", self.name)
            self.linger()
        else:
            client.subscribe(self.topic, 2)
            client.connect(DRAIN_S)
            deadline = ticks_add(ticks_ms(), DRAIN_S * 1000)
            # A connection that ends before SUBACK leaves the subscription to the next one.
            while client.session.subscriptions[0].state != GRANTED:
                client.poll(20)
            say("ready", self.name)
            while not self.ended and ticks_diff(deadline, ticks_ms()) > 0:
                client.poll(100)
            self.linger()
            client.disconnect()
            client.connect(DRAIN_S)
            self.linger()
        client.disconnect()

    def linger(self):
        """Receive for a moment what still comes, while there is a connection."""
        deadline = ticks_add(ticks_ms(), QUIET_MS)
        while ticks_diff(deadline, ticks_ms()) > 0 or not self.client.connected:
            self.client.poll(QUIET_MS // 3)


def heap():
    """Return the bytes in use on MicroPython's heap, 0 elsewhere."""
    gc.collect()
    return gc.mem_alloc() if hasattr(gc, "mem_alloc") else 0


def main(make):
    """Run the cases of the input until it ends; `make` makes a case from its words."""
    while True:
        words = sys.stdin.readline().split()
        if not words:
            break
        case = None
        gc.collect()
        try:
            case = make(*words[1:])
            case.run()
            connections = case.client.link.connects
            case = None
            say("end", words[1], connections, heap())
        except Exception as error:
            say("failed", words[1], type(error).__name__, error)
            if hasattr(sys, "print_exception"):
                sys.print_exception(error, sys.stderr)
            else:
                import traceback

                traceback.print_exc()


if __name__ == "__main__":
    main(Case)
