# umqtt.simple's example_pub_button.py, in our words: publish as often as a button is pressed.
import binascii
import sys
import time

import machine
from machine import Pin
from umqtt.simple import MQTTClient

button = Pin(0, Pin.IN)
NAME = binascii.hexlify(machine.unique_id())


def main(server="127.0.0.1"):
    c = MQTTClient(NAME, server, int(sys.argv[1]))
    c.connect()
    print("Connected to %s" % server)
    while True:
        while button.value() != 0:
            time.sleep_ms(20)
        c.publish(b"drop_in", b"toggle")
        time.sleep_ms(20)


main()
