"""Sensor to broker: every reading is in flash before `publish` returns, and arrives once, whatever fails meanwhile."""

import gc

gc.threshold(16384)  # otherwise the garbage of imports fragments the heap

import board
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"
PORT = 1883
DEVICE = "greenhouse-1"

store = Journal(board.journal_region(64), policy=DROP_OLDEST)
client = Client(HOST, PORT, client_id=DEVICE, store=store, log=print)
while True:
    for sensor in board.sensors():
        client.publish(DEVICE + "/" + sensor.name, str(sensor.read()), qos=2)
    for _ in range(10):  # seconds until the next reading
        if board.network_up("my Wi-Fi", "its password", "AT", log=print):
            client.start()  # connects in the background, and again whenever the link is lost
        client.poll(1000)
