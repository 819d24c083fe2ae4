"""Commands at QoS 2: each is carried out once, also where the power goes between the broker's sending and our answer.

A command changes a file; the file is replaced as a whole, so a power cut leaves the old one or the new one. Then the answer is
published. A handler that was interrupted by a power cut runs again after it, so what it does must be harmless to repeat.
"""

import gc

gc.threshold(4096)

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


client = Client(HOST, PORT, client_id=DEVICE, store=Journal(board.journal_region(16)), log=print)
client.subscribe(DEVICE + "/set/speed", 2, set_speed)  # before connecting: what waits at the broker finds its handler
while True:
    if board.network_up("my Wi-Fi", "its password", "AT", log=print):
        client.start()
    client.poll(1000)
