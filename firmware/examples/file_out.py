"""Send a file of any size in parts of 1 KB through the journal; the topic ends with the part's offset in the file.

The file may be larger than the journal, so at most a hundred parts wait at once. The number of the next part is noted, so that
the program continues there after a reset. A part that is published twice has the same topic and the same content.
"""

import gc

gc.threshold(4096)

import os

import board
from flashmqtt.client import Client
from flashmqtt.journal.journal import Journal

HOST = "broker.local"
PORT = 1883
DEVICE = "camera-1"
NAME = "picture.bin"
PART = 1024


def say(text):
    if not text.startswith(("stored", "delivered")):  # a line for each of a thousand parts would be slow
        print(text)


client = Client(HOST, PORT, client_id=DEVICE, store=Journal(board.journal_region(64)), window=32, log=say)
try:
    with open(NAME + ".at") as file:
        at = int(file.read())
except (OSError, ValueError):
    at = 0
size = os.stat(NAME)[6]
part = bytearray(PART)
with open(NAME, "rb") as source:
    source.seek(at)
    while at < size:
        n = source.readinto(part)
        client.publish("%s/file/%s/%d/%d" % (DEVICE, NAME, size, at), memoryview(part)[:n], qos=1)
        at += n
        while client.pending > 100 or (at == size and client.pending):
            if board.network_up("my Wi-Fi", "its password", "AT", log=print):
                client.start()
            client.poll(100)
        if at % (64 * PART) == 0:
            with open(NAME + ".at", "w") as file:
                file.write(str(at))
print("sent", size)
client.disconnect()
