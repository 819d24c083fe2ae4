"""Send a file of any size in parts of 1 KB through the journal; the topic ends with the part's offset in the file.

The file may be larger than the journal: when this is full, the program waits until parts are delivered. The next part's offset is
noted, so that the program continues there after a reset. A part that is published twice has the same topic and the same content.
"""

import gc

gc.threshold(16384)

import os

import board
from flashmqtt.client import Client
from flashmqtt.errors import StoreFull
from flashmqtt.journal.journal import Journal

HOST = "broker.local"
PORT = 1883
DEVICE = "camera-1"
NAME = "picture.bin"
PART = 1024


def say(text):
    if not text.startswith(("stored", "not stored", "delivered")):  # a line for each of a thousand parts would be slow
        print(text)


client = Client(HOST, PORT, client_id=DEVICE, store=Journal(board.journal_region(64)), window=32, log=say)
size = os.stat(NAME)[6]
try:
    with open(NAME + ".at") as file:
        at, noted = [int(number) for number in file.read().split()]
except (OSError, ValueError):
    at = noted = 0
at = at if noted == size else 0  # otherwise the note is about another file
part = bytearray(PART)
with open(NAME, "rb") as source:
    while at < size or client.pending:
        source.seek(at)
        n = source.readinto(part)
        try:
            if n:
                client.publish("%s/file/%s/%d/%d" % (DEVICE, NAME, size, at), memoryview(part)[:n], qos=1)
                at += n
                if at % (64 * PART) == 0:
                    with open(NAME + ".at", "w") as file:
                        file.write("%d %d" % (at, size))
                continue
        except StoreFull:
            pass
        if board.network_up("my Wi-Fi", "its password", "AT", log=print):
            client.start()
        client.poll(100)
if NAME + ".at" in os.listdir():
    os.remove(NAME + ".at")
print("sent", size)
client.disconnect()
