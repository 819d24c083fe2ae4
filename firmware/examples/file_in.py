"""A message of any size in: it comes in pieces and goes to a file; the board never has more of it in RAM than its buffer.

The file gets its name when all of it is there. A link that is lost in the middle brings the message again from its beginning.
"""

import gc

gc.threshold(4096)

import os

import board
from flashmqtt.client import Client

HOST = "broker.local"
PORT = 1883
DEVICE = "display-1"


def take(message):
    with open("picture.new", "wb" if message.offset == 0 else "ab") as file:
        file.write(message.payload)
    if not message.more:
        os.rename("picture.new", "picture.bin")
        print("got", message.total)
        client.publish(DEVICE + "/picture/got", str(message.total), qos=1)


client = Client(HOST, PORT, client_id=DEVICE, chunks=True, buffer_bytes=2048, log=print)
client.subscribe(DEVICE + "/picture", 1, take)
while True:
    if board.network_up("my Wi-Fi", "its password", "AT", log=print):
        client.start()
    client.poll(1000)
