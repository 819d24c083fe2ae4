"""Deep sleep: wake, measure, send if there is a network, sleep. Unsent messages wait in flash for a later wake."""

import gc

gc.threshold(16384)

from time import ticks_diff, ticks_ms

import board
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"
PORT = 1883
DEVICE = "meadow-1"
AWAKE_MS = 20_000
SLEEP_MS = 600_000

store = Journal(board.journal_region(64), policy=DROP_OLDEST)
client = Client(HOST, PORT, client_id=DEVICE, store=store, log=print)
for sensor in board.sensors():
    client.publish(DEVICE + "/" + sensor.name, str(sensor.read()), qos=1)
begin = ticks_ms()
while client.pending and ticks_diff(ticks_ms(), begin) < AWAKE_MS:
    if board.network_up("my Wi-Fi", "its password", "AT", log=print):
        client.start()
    client.poll(100)
print("woke, cause", board.reset_cause(), "left", client.pending)
client.disconnect()
store.close()  # a clean end: the next mount reads less
board.sleep(SLEEP_MS)  # ends with a reset
