# A program that connects again by itself, with the same client: after a ping that failed, say.
import sys
import time

from umqtt.simple import MQTTClient, MQTTException

c = MQTTClient(b"by_hand", "localhost", int(sys.argv[1]), None, None, 30)
c.set_callback(lambda topic, msg: print((topic, msg)))
c.set_last_will("status", "offline", True, 1)


def connect():
    while True:
        try:
            c.connect(False)
            c.publish("status", "online", True, 1)
            c.subscribe(b"drop_in", 1)
            print("connected")
            return
        except MQTTException as e:
            print("refused", e)
        except OSError:
            print("not connected")
        time.sleep(0.2)


connect()
while True:
    try:
        for _ in range(5):
            c.check_msg()
            time.sleep(0.05)
        c.ping()
        c.publish(b"alive", b"1", qos=1)
    except OSError:
        print("lost")
        c.disconnect()
        connect()
