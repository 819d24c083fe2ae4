"""One TLS connection, on either interpreter: prints what became of it. Arguments: port and a dict of options."""

import sys

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.errors import ConnectionLost
from flashmqtt.tls import context

options = eval(sys.argv[2])
mqtt = Client(
    options.pop("host", "localhost"),
    int(sys.argv[1]),
    "tls",
    server_name=options.pop("server_name", None),
    tls=context(**options),
    backoff=Backoff(base_ms=20, cap_ms=50),
    buffer_bytes=8192,
)
try:
    mqtt.connect(8)
    got = []
    mqtt.subscribe("tls", 2, lambda message: got.append(message.payload))
    mqtt.publish("tls", b"x" * 5000, qos=0)
    for qos in (0, 1, 2):
        mqtt.publish("tls", b"secret", qos=qos)
    mqtt.drain(5)
    for _ in range(50):
        if len(got) < 4:
            mqtt.poll(100)
    print("connected", len(got))
    mqtt.disconnect()
except ConnectionLost as error:
    print(type(error).__name__, error)
