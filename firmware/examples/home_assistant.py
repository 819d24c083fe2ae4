"""Home Assistant: the sensors announce themselves (MQTT discovery), and are "unavailable" when the board is offline."""

import gc

gc.threshold(16384)

import json

import board
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"
PORT = 1883
DEVICE = "greenhouse-1"
STATUS = DEVICE + "/status"


def announce(session_present):
    client.publish(STATUS, "online", retain=True)
    for sensor in board.sensors():
        about = {
            "name": sensor.name,
            "unique_id": DEVICE + "-" + sensor.name,
            "state_topic": DEVICE + "/" + sensor.name,
            "availability_topic": STATUS,
            "device": {"identifiers": [DEVICE], "name": DEVICE, "model": board.MODEL},
        }
        if sensor.unit == "Cel":
            about["unit_of_measurement"], about["device_class"] = "°C", "temperature"
        topic = "homeassistant/sensor/" + DEVICE + "/" + sensor.name + "/config"
        client.publish(topic, json.dumps(about), retain=True)


store = Journal(board.journal_region(64), policy=DROP_OLDEST)
client = Client(
    *(HOST, PORT, DEVICE, store),
    user="board",
    password="its password",
    will=(STATUS, "offline", 1, True),
    log=print,
)
client.on_connect = announce
while True:
    for sensor in board.sensors():
        client.publish(DEVICE + "/" + sensor.name, str(sensor.read()), qos=1)
    for _ in range(10):
        if board.network_up("my Wi-Fi", "its password", "AT", log=print):
            client.start()
        client.poll(1000)
