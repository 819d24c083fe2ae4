"""AWS IoT Core: the board's own certificate, no QoS 2, topics of at most 256 bytes and 8 levels. See CLOUDS.md."""

import gc

gc.threshold(16384)

import time

import board
from flashmqtt import tls
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"  # the device data endpoint: 0123456789abcd-ats.iot.eu-central-1.amazonaws.com
PORT = 8883
DEVICE = "greenhouse-1"  # the thing's name; the policy allows this client id and these topics

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
    max_qos=1,  # AWS closes the connection on a PUBLISH at QoS 2
    tls=tls.context(ca="ca.pem", cert="board.crt", key="board.key"),  # Amazon Root CA 1
    log=print,
)
client.start()
while True:
    for sensor in board.sensors():
        client.publish("dt/" + DEVICE + "/" + sensor.name, str(sensor.read()), qos=1)
    client.poll(10_000)
    board.network_up("my Wi-Fi", "its password", "AT", log=print)
