# umqtt.simple's example_sub.py, in our words: print what comes, waiting for it or looking for it.
import sys
import time

from umqtt.simple import MQTTClient

WAIT = sys.argv[2] == "wait"


def heard(topic, msg):
    print((topic, msg))
    if msg == b"end":
        raise SystemExit


def main(server="localhost"):
    c = MQTTClient("sub", server, int(sys.argv[1]))
    c.set_callback(heard)
    c.connect()
    c.subscribe(b"drop_in")
    print("subscribed")
    while True:
        if WAIT:
            c.wait_msg()
        else:
            c.check_msg()
            time.sleep(0.05)


main()
