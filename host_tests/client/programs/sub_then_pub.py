# As it would be written for umqtt.simple: subscribe, publish to oneself, print what comes.
import sys
import time

from umqtt.simple import MQTTClient

PORT = int(sys.argv[1])
NAME = sys.argv[2]
seen = []


def sub_cb(topic, msg):
    seen.append(msg)
    print((topic, msg))


c = MQTTClient(NAME, "127.0.0.1", PORT)
c.set_callback(sub_cb)
print(c.connect())
c.subscribe(b"room/" + NAME.encode() + b"/#")
for i in range(3):
    c.publish("room/%s/temperature" % NAME, str(20 + i))
    c.wait_msg()
c.publish(b"room/" + NAME.encode() + b"/humidity", b"40", qos=1)
deadline = time.ticks_add(time.ticks_ms(), 30000)
while len(seen) < 4 and time.ticks_diff(deadline, time.ticks_ms()) > 0:
    c.check_msg()
    time.sleep_ms(20)
c.ping()
c.check_msg()
c.disconnect()
print("end")
