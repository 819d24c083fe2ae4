# umqtt.simple's example_sub_led.py, in our words: a lamp that obeys, and a disconnect however the program ends.
import binascii
import sys

import machine
from machine import Pin
from umqtt.simple import MQTTClient

led = Pin(2, Pin.OUT, value=1)
state = 0


def heard(topic, msg):
    global state
    if msg == b"end":
        raise KeyboardInterrupt
    if msg == b"toggle":
        led.value(state)
        state = 1 - state
    else:
        led.value(0 if msg == b"on" else 1)
        state = 1 if msg == b"on" else 0
    print(topic, msg, led.value())


def main(server="127.0.0.1"):
    c = MQTTClient(binascii.hexlify(machine.unique_id()), server, int(sys.argv[1]))
    c.set_callback(heard)
    c.connect()
    c.subscribe("drop_in")
    print("subscribed")
    try:
        while 1:
            c.wait_msg()
    finally:
        c.disconnect()
        print("disconnected")


try:
    main()
except KeyboardInterrupt:
    pass
