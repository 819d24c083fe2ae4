"""A client with a small buffer, on either interpreter: prints the messages that it receives.

Arguments: port, level, chunks, how many messages to wait for. It prints `connects N`, a line for each message
(`oversize TOPIC LENGTH` or `whole TOPIC LENGTH SUM`), and `held N`.
"""

import sys
from binascii import crc32

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.flash.file import FileRegion
from flashmqtt.journal.journal import Journal

port, level, chunks, wanted = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "chunks", int(sys.argv[4])
# The previous process must have closed the journal: opening a file in use raises an error.
journal = Journal(FileRegion("journal.bin", 64))
mqtt = Client(
    "127.0.0.1",
    port,
    "long",
    store=journal,
    level=level,
    buffer_bytes=600,
    chunks=chunks,
    backoff=Backoff(base_ms=20, cap_ms=50),
)
seen = []
part = [0, 0]


def take(message):
    """Compute the length and checksum of a message from its pieces."""
    if not message.offset:
        part[:] = [0, 0]
    assert message.offset == part[0]
    part[0] += len(message.view)
    part[1] = crc32(message.payload, part[1])
    assert message.more == (part[0] < message.total)
    if not message.more:
        seen.append("whole %s %d %d" % (message.topic, part[0], part[1]))


mqtt.on_message = take
mqtt.on_oversize = lambda topic, length: seen.append("oversize %s %d" % (topic, length))
mqtt.subscribe("long/#", 2, take)
mqtt.connect(30)
while not all(entry.granted() is not None for entry in mqtt.session.subscriptions):
    mqtt.poll(50)
for _ in range(600):
    if len(seen) >= wanted:
        break
    mqtt.poll(50)
for _ in range(10):  # detects unexpected further messages
    mqtt.poll(20)
mqtt.disconnect()
journal.close()
print("connects", mqtt.link.connects)
for line in seen:
    print(line)
print("held", len(journal.held()))
