"""A client with a journal, on MicroPython. In a long outage messages fill the journal, not the RAM; later all are delivered."""

import gc
import sys

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import NorFlash

COUNT = int(sys.argv[2])
journal = Journal(BlockRegion(NorFlash(1024 * 1024)))
mqtt = Client(
    "127.0.0.1",
    int(sys.argv[1]),
    "backlog",
    journal,
    window=8,
    backoff=Backoff(base_ms=20, cap_ms=200),
    keep_alive_s=10,
)
mqtt.start()


def publish(first, last):
    for i in range(first, last):
        mqtt.publish(b"backlog", b"%06d" % i, qos=1 + i % 2)


publish(0, 100)
gc.collect()
before = gc.mem_alloc()
publish(100, COUNT)
gc.collect()
print("stored", mqtt.pending, gc.mem_alloc() - before)
sys.stdin.readline()
number = COUNT
while mqtt.pending:
    mqtt.poll(5)
    if number < COUNT + 200:
        publish(number, number + 1)  # the program continues to publish
        number += 1
print("drained", number)
mqtt.disconnect()
