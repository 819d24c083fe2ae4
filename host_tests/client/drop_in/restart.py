# The shape of the tutorials: look for messages and publish in a loop, and start the board anew after any error of the network.
import sys
import time

import machine
import ubinascii
from umqtt.simple import MQTTClient

client_id = ubinascii.hexlify(machine.unique_id())
last_message = 0
counter = 0


def sub_cb(topic, msg):
    print((topic, msg))


def connect_and_subscribe():
    client = MQTTClient(client_id, "localhost", port=int(sys.argv[1]))
    client.set_callback(sub_cb)
    client.connect()
    client.subscribe(b"drop_in")
    print("Connected to the broker, subscribed to %s" % b"drop_in")
    return client


def restart_and_reconnect():
    print("Failed to connect to MQTT broker. Reconnecting...")
    time.sleep(0.1)
    machine.reset()


try:
    client = connect_and_subscribe()
except OSError:
    restart_and_reconnect()

while True:
    try:
        new_message = client.check_msg()
        if new_message is not None:
            client.publish(b"notification", b"received")
        if (time.time() - last_message) > 1:
            client.publish(b"hello", b"Hello #%d" % counter)
            last_message = time.time()
            counter += 1
        time.sleep(0.05)
    except OSError:
        restart_and_reconnect()
