# As it would be written for umqtt.simple: leave a retained value, read it back, clear it; a session that persists.
import sys
import time

from umqtt.simple import MQTTClient

PORT = int(sys.argv[1])
NAME = sys.argv[2]
TOPIC = b"state/" + NAME.encode()
seen = []

c = MQTTClient(NAME, "127.0.0.1", PORT)
c.set_callback(lambda topic, msg: seen.append((topic, msg)))
c.connect(clean_session=False)
c.publish(TOPIC, b"on", retain=True, qos=1)
c.subscribe(TOPIC, qos=1)
while not seen:
    c.wait_msg()
print(seen)
c.disconnect()

other = MQTTClient(NAME + "-other", "127.0.0.1", PORT)
other.connect()
other.publish(TOPIC, b"off", qos=1)
other.publish(TOPIC, b"", retain=True, qos=1)
other.disconnect()

print(c.connect(clean_session=False))
deadline = time.ticks_add(time.ticks_ms(), 30000)
while len(seen) < 3 and time.ticks_diff(deadline, time.ticks_ms()) > 0:
    c.check_msg()
    time.sleep_ms(20)
print(seen)
c.disconnect()
