"""One TLS connection, on either interpreter: prints its result.

Argument: the port. The environment has OPTIONS, a dict.
"""

import os
import sys
import time

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.errors import ConnectionLost, UsageError
from flashmqtt.tls import context

PATIENCE_S = 30  # deadline for expected events, on a busy machine


def main(port, options):
    """Connect, publish messages, and receive them."""
    host = options.pop("host", "localhost")
    server_name = options.pop("server_name", None)
    publishes = options.pop("publish", False)
    for name in options.pop("as_bytes", ()):
        with open(options[name], "rb") as file:
            options[name] = file.read()
    mqtt = Client(
        host,
        port,
        "tls",
        server_name=server_name,
        tls=context(**options),
        backoff=Backoff(base_ms=20, cap_ms=50),
        buffer_bytes=8192,
    )
    if publishes:
        mqtt.start()
        deadline = time.time() + PATIENCE_S
        while not mqtt.connected and not mqtt.error and time.time() < deadline:
            mqtt.publish("tls", b"not sent", qos=0)  # the handshake advances within these calls only
        if not mqtt.connected:
            raise ConnectionLost("the handshake did not end: %r" % mqtt.error)
    mqtt.connect(PATIENCE_S)
    got = []
    mqtt.subscribe("tls", 2, lambda message: got.append(message.payload))
    mqtt.publish("tls", b"x" * 5000, qos=0)
    for qos in (0, 1, 2):
        mqtt.publish("tls", b"secret", qos=qos)
    mqtt.drain(PATIENCE_S)
    for _ in range(PATIENCE_S * 10):
        if len(got) < 4:
            mqtt.poll(100)
    print("connected", len(got))
    mqtt.disconnect()


try:
    main(int(sys.argv[1]), eval(os.getenv("OPTIONS")))
except (ConnectionLost, UsageError) as error:
    print(type(error).__name__, error)
