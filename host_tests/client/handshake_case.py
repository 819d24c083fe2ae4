"""A TLS handshake on MicroPython: prints its steps in order, one letter each.

r: a record was read; w: a record was written; s: the handshake stopped before a record; f: the watchdog was fed.
Argument: the port. The environment has OPTIONS, a dict.
"""

import os
import sys

from flashmqtt import handshake
from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.tls import context

HEADER = 5
seen = []


class Watched(handshake.Steps):
    """Records the handshake steps."""

    def readinto(self, buf):
        wanted = len(buf)
        n = super().readinto(buf)
        if wanted == HEADER and self.shaking:
            seen.append("r" if n else "s")
        return n

    def write(self, buf):
        n = super().write(buf)
        if self.shaking:
            seen.append("w" if n else "s")
        return n


handshake.Steps = Watched
mqtt = Client(
    "localhost",
    int(sys.argv[1]),
    "steps",
    tls=context(**eval(os.getenv("OPTIONS"))),
    backoff=Backoff(base_ms=20, cap_ms=50),
    feed=lambda: seen.append("f"),
)
mqtt.connect(30)
print("".join(seen))
mqtt.disconnect()
