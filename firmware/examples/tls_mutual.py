"""Mutual TLS: broker and board both have a certificate: `mpremote cp ca.pem board.crt board.key :`.

The key must have no pass phrase. On a small chip an elliptic curve (P-256) is ten times faster than RSA.
"""

import gc

gc.threshold(16384)

import time

import board
from flashmqtt import tls
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"
PORT = 8883
DEVICE = "greenhouse-1"

while not board.network_up("my Wi-Fi", "its password", "AT", log=print):
    time.sleep(1)
while board.clock() is None:
    try:
        import ntptime

        ntptime.settime()
    except OSError:  # no answer; a request may get lost
        time.sleep(1)
store = Journal(board.journal_region(64), policy=DROP_OLDEST)
context = tls.context(ca="ca.pem", cert="board.crt", key="board.key")
client = Client(HOST, PORT, DEVICE, store, tls=context, log=print)
client.start()
while True:
    for sensor in board.sensors():
        client.publish(DEVICE + "/" + sensor.name, str(sensor.read()), qos=1)
    client.poll(10_000)
    board.network_up("my Wi-Fi", "its password", "AT", log=print)
