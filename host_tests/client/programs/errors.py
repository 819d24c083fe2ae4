# As it would be written for umqtt.simple: what goes wrong comes as OSError.
import sys

from umqtt.simple import MQTTClient

c = MQTTClient(sys.argv[2], "127.0.0.1", 1)  # nobody listens on port 1
try:
    c.connect()
    print("connected?")
except OSError:
    print("OSError")
try:
    c = MQTTClient(sys.argv[2], "127.0.0.1", int(sys.argv[1]))
    c.connect()
    c.subscribe(b"x")
    print("subscribed?")
except AssertionError as error:
    print(error)
c.disconnect()
