"""Receive a message of any size: it arrives in pieces and is written to a file, so that RAM needs only one buffer of it.

The file gets its final name when it is complete. If the connection is lost meanwhile, the message comes again from its beginning.
"""

import gc

gc.threshold(16384)

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


def failed(error, message):
    print("failed; a message is tried five times:", error)  # without on_error, `poll` would raise it


client = Client(HOST, PORT, client_id=DEVICE, chunks=True, buffer_bytes=2048, log=print)
client.on_error = failed
client.subscribe(DEVICE + "/picture", 1, take)
while True:
    if board.network_up("my Wi-Fi", "its password", "AT", log=print):
        client.start()
    client.poll(1000)
