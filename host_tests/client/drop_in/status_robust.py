# umqtt.robust's example_lwt_robust.py, in our words: its own connect says that the board is there, with every connection.
import sys

import umqtt.robust


class Client(umqtt.robust.MQTTClient):
    DELAY = 0.1

    def connect(self, clean_session=True):
        self.set_last_will(b"status", b"Offline", retain=True)
        try:
            return super().connect(clean_session)
        finally:
            self.publish(b"status", b"Online", retain=True)


c = Client("status_robust", "localhost", int(sys.argv[1]), keepalive=5)
c.DEBUG = True
c.set_callback(lambda topic, msg: print((topic, msg)))
c.connect()
c.subscribe(b"drop_in")
print("subscribed")
while True:
    c.wait_msg()
