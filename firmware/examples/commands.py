"""Commands at QoS 2: each is executed once, also if the power fails before the board has answered.

A command replaces a file atomically, so that a power cut leaves the old file or the new one. Then the answer is published. A
handler that a power cut interrupted runs again after the restart, so repeating its work must be harmless.
"""

import gc

gc.threshold(16384)

import os

import board
from flashmqtt.client import Client
from flashmqtt.journal.journal import Journal

HOST = "broker.local"
PORT = 1883
DEVICE = "pump-1"


def set_speed(message):
    with open("speed.new", "wb") as file:
        file.write(message.payload)
    os.rename("speed.new", "speed")
    client.publish(DEVICE + "/speed", message.payload, qos=2, retain=True)


def failed(error, message):
    print("failed; a message is tried five times:", error)  # without on_error, `poll` would raise it


client = Client(HOST, PORT, client_id=DEVICE, store=Journal(board.journal_region(16)), log=print)
client.on_error = failed
# Before connecting, so that commands queued at the broker have a handler.
client.subscribe(DEVICE + "/set/speed", 2, set_speed)
while True:
    if board.network_up("my Wi-Fi", "its password", "AT", log=print):
        client.start()
    client.poll(1000)
