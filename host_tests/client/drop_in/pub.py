# umqtt.simple's example_pub.py and example_pub_tls.py, in our words: connect, publish, end.
import sys

from umqtt.simple import MQTTClient


def main(server="localhost"):
    tls = {}
    if len(sys.argv) > 3:
        tls = {"ssl": True, "ssl_params": {"server_hostname": server}}
    c = MQTTClient("pub", server=server, port=int(sys.argv[1]), user="a user", password="a word", keepalive=60, **tls)
    c.connect()
    c.publish(b"drop_in", b"hello")
    c.disconnect()


main()
