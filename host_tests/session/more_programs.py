"""More programs like those of `tools/proof/bench/on_board/programs.py`; runs on MicroPython, with this file's folder in its path.

`subscriber`: receives at QoS 0 and 1, no store. `level5`: QoS 0, 1 and 2 both ways at level 5, with a property and a journal.
"""

from programs import journal, main, received


def subscriber(port):
    """Receive."""
    from flashmqtt.client import Client

    client = Client("127.0.0.1", port, b"size-subscriber")
    client.connect(10)
    came = []
    client.on_message = lambda message: came.append(message.qos)
    client.subscribe("size/sub", 1)
    for qos in (0, 1):
        publish(port, qos)
    while len(came) < 2:
        client.poll(100)
    client.disconnect()


def publish(port, qos):
    """Publish a message as another client."""
    import socket

    link = socket.socket()
    link.connect(socket.getaddrinfo("127.0.0.1", port)[0][-1])
    link.write(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04peer")
    link.write((b"\x30\x0b\x00\x08size/subx", b"\x32\x0d\x00\x08size/sub\x00\x01x")[qos])
    link.read(4 + 4 * qos)  # CONNACK and PUBACK
    link.close()


def level5(port):
    """Send and receive at level 5."""
    from flashmqtt.client import Client

    client = Client("127.0.0.1", port, b"size-level5", journal(), level=5)
    client.connect(10)
    received(client, "size/five", 2, {3: "text/plain"})


main({"subscriber": subscriber, "level5": level5})
