"""HiveMQ Cloud: TLS with the server's name (SNI), user and password; all of MQTT, QoS 2 too. See CLOUDS.md."""

import gc

gc.threshold(16384)

import time

import board
from flashmqtt import tls
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"  # the cluster's URL: 0123456789abcdef.s1.eu.hivemq.cloud
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
client = Client(
    *(HOST, PORT, DEVICE, store),
    level=5,
    user="board",
    password="its password",
    tls=tls.context(ca="ca.pem"),  # ISRG Root X1
    log=print,
)
client.start()
while True:
    for sensor in board.sensors():
        client.publish(DEVICE + "/" + sensor.name, str(sensor.read()), qos=2)
    client.poll(10_000)
    board.network_up("my Wi-Fi", "its password", "AT", log=print)
