"""Adafruit IO: user and key over TLS, feeds as topics, no QoS 2, no retained messages, a limited rate. See CLOUDS.md."""

import gc

gc.threshold(16384)

import time

import board
from flashmqtt import tls
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"  # io.adafruit.com
PORT = 8883
USER = "me"
KEY = "aio_0123456789"
INTERVAL_MS = 10_000  # a free account takes 30 values a minute, all feeds together


def complaint(message):
    print(message.topic, message.payload)  # "me/errors", "me/throttle"


while not board.network_up("my Wi-Fi", "its password", "AT", log=print):
    time.sleep(1)
while board.clock() is None:
    try:
        import ntptime

        ntptime.settime()
    except OSError:  # no answer; a request may get lost
        time.sleep(1)
store = Journal(board.journal_region(64), policy=DROP_OLDEST)
context = tls.context(ca="ca.pem")  # DigiCert Global Root G2
client = Client(
    *(HOST, PORT, "greenhouse-1", store), user=USER, password=KEY, max_qos=1, window=1, tls=context, log=print
)
client.subscribe(USER + "/errors", 0, complaint)
client.subscribe(USER + "/throttle", 0, complaint)
client.start()
while True:
    for sensor in board.sensors():
        client.publish(USER + "/feeds/" + sensor.name.replace("_", "-"), str(sensor.read()), qos=1)
    client.poll(INTERVAL_MS)
    board.network_up("my Wi-Fi", "its password", "AT", log=print)
