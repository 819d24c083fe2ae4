# umqtt.robust's example_sub_robust.py, in our words: the broker keeps the session, and the program never ends.
import sys

from umqtt.robust import MQTTClient


def heard(topic, msg):
    print((topic, msg))


c = MQTTClient("sub_robust", "localhost", int(sys.argv[1]))
c.DEBUG = True
c.DELAY = 0.1
c.set_callback(heard)
if not c.connect(clean_session=False):
    print("a new session")
    c.subscribe(b"drop_in", 1)
print("subscribed")
while 1:
    c.wait_msg()
