# mypy: ignore-errors
"""Typical programs against a real broker; `programs.py NAME FOLDER PORT` prints which of our modules the program loaded.

`publisher`: publishes at QoS 0, 1 and 2 from a journal, and reconnects. `client`: all of `publisher`, and receives at QoS 0, 1
and 2. `aio_ram`: asyncio, QoS 0 and 1 both ways, no journal. `programs.py heap FOLDER NAME...` prints the heap that importing
these modules takes.
"""

import gc
import os
import sys

import vfs

LOADED = []
FOLDER = sys.argv[2]  # contains the compiled library


class Noting:
    """A file system that records which modules are loaded, also those unloaded again later, such as the recovery."""

    def mount(self, *_):
        """Do nothing."""

    def umount(self):
        """Do nothing."""

    def stat(self, path):
        """Return the status of a path."""
        return os.stat(FOLDER + "/" + path.lstrip("/"))

    def open(self, path, mode):
        """Open a module's file."""
        name = path.strip("/")[:-4].replace("/", ".")
        LOADED.append(name[:-9] if name.endswith(".__init__") else name)
        return open(FOLDER + "/" + path.lstrip("/"), mode)


def journal():
    """Return a journal in memory, on a block device as on a board."""
    from chip import Memory

    from flashmqtt.flash.block import BlockRegion
    from flashmqtt.journal.journal import Journal

    return Journal(BlockRegion(Memory("")))


def take_over(port, client_id):
    """Connect with the client identifier of another client: so the broker closes that client's connection."""
    import socket

    link = socket.socket()
    link.connect(socket.getaddrinfo("127.0.0.1", port)[0][-1])
    head = bytes((0x10, 12 + len(client_id), 0, 4)) + b"MQTT" + bytes((4, 0, 0, 60, 0, len(client_id)))
    link.write(head + client_id)
    link.read(4)  # CONNACK
    link.close()


def published(port, client_id):
    """Return a client that has published, lost its connection, and published again."""
    from flashmqtt.client import Client

    client = Client("127.0.0.1", port, client_id, journal())
    client.connect(10)
    for qos in (0, 1, 2):
        client.publish("size/out", b"x", qos)
    if not client.drain(10):
        raise OSError("not delivered")
    connections = []
    client.on_connect = connections.append
    take_over(port, client_id)
    client.publish("size/out", b"y", 1)
    while not connections or client.pending:
        client.poll(100)
    return client


def publisher(port):
    """Run `published`, then disconnect."""
    published(port, b"size-publisher").disconnect()


def received(client, topic, most, properties=None):
    """Subscribe to a topic, publish to it at each QoS up to `most`, receive the messages, and disconnect."""
    came = []
    client.subscribe(topic, most, lambda message: came.append(message.qos))
    for qos in range(most + 1):
        client.publish(topic, b"x", qos, properties=properties)
    while len(came) <= most or client.pending:
        client.poll(100)
    if sorted(came) != list(range(most + 1)):
        raise OSError(came)
    client.unsubscribe(topic)
    client.disconnect()


def both(port):
    """Send and receive."""
    received(published(port, b"size-client"), "size/in", 2)


def aio_ram(port):
    """Send and receive with asyncio."""
    import asyncio

    from flashmqtt.aio import Client

    async def main():
        async with Client("127.0.0.1", port, b"size-aio") as client:
            await client.subscribe("size/aio", 1)
            for qos in (0, 1):
                await client.publish("size/aio", b"x", qos)
            count = 0
            async for _ in client:
                count += 1
                if count == 2:
                    break

    asyncio.run(main())


def heap(names):
    """Print the heap that importing these modules takes while all of them stay loaded."""
    gc.collect()
    before = gc.mem_alloc()
    kept = [__import__(name, None, None, ("*",)) for name in names]
    gc.collect()
    print(gc.mem_alloc() - before - 4 * len(kept))


def main(programs):
    """Run a program, and print the modules that it loaded; or print the heap of modules."""
    vfs.mount(Noting(), "/packed")
    sys.path.insert(0, "/packed")
    if sys.argv[1] == "heap":
        if "flashmqtt.aio" in sys.argv[3:]:
            import asyncio  # noqa: F401  # the firmware's own
        heap(sys.argv[3:])
    else:
        programs[sys.argv[1]](int(sys.argv[3]))
        print(" ".join(sorted(LOADED)))


if __name__ == "__main__":
    main({"publisher": publisher, "client": both, "aio_ram": aio_ram})
