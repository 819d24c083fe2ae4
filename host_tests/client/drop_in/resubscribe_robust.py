# umqtt.robust's example_resubscribe_robust.py and example_check_msg_robust.py, in our words: the broker ends the connection
# while the program sleeps.
import sys
import time

import umqtt.robust


class Client(umqtt.robust.MQTTClient):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.topics = []

    def connect(self, clean_session=True):
        if super().connect(clean_session):
            return True
        for topic in self.topics:
            self.subscribe(topic)
        return False

    def subscribe(self, topic):
        super().subscribe(topic)
        if topic not in self.topics:
            self.topics.append(topic)


c = Client("resubscribe", "localhost", int(sys.argv[1]), keepalive=5)
c.DEBUG = True
c.set_callback(lambda topic, msg: print((topic, msg)))
print(c.connect())
c.subscribe(b"drop_in")
c.publish(b"drop_in", b"message 1")
c.wait_msg()
time.sleep(2.5)
print(c.check_msg())
c.publish(b"drop_in", b"message 3")
c.wait_msg()
