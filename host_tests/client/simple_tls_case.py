"""One TLS connection with the arguments of umqtt.simple or mqtt_as, on either interpreter.

Argument: the port. The environment has OPTIONS, a dict.

An option's value "text:file" stands for the file's text, "bytes:file" for its bytes.
"""

import asyncio
import os
import ssl
import sys

from flashmqtt.errors import UsageError
from flashmqtt.simple import MQTTClient

PATIENCE_S = 30  # deadline for expected events, on a busy machine


def value_of(value):
    if isinstance(value, str) and value.startswith("text:"):
        with open(value[5:]) as file:
            return file.read()
    if isinstance(value, str) and value.startswith("bytes:"):
        with open(value[6:], "rb") as file:
            return file.read()
    return value


def context_of(kind, params):
    """Return the value of a program's argument ssl."""
    if kind == "module":
        return ssl
    if kind is True:
        return True
    if kind == "native" and sys.implementation.name == "micropython":
        import tls

        context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(params.pop("cadata"))
    else:  # as programs make it
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=params.pop("cadata"))
    return context


async def connect_as(config):
    from flashmqtt.mqtt_as import MQTTClient

    got = asyncio.Event()
    config["subs_cb"] = lambda topic, msg, retained: msg == b"secret" and got.set()
    client = MQTTClient(config)
    await client.connect()
    await client.subscribe("tls/#", 1)
    await client.publish("tls/1", "x" * 900)
    await client.publish("tls/2", "secret", qos=1)
    await asyncio.wait_for(got.wait(), PATIENCE_S)
    await client.disconnect()
    print("connected")


def main(port, options):
    server = options.pop("server", "localhost")
    face = options.pop("face", "simple")
    kind = options.pop("ssl", True)
    params = {key: value_of(value) for key, value in options.items()}
    tls = context_of(kind, params)
    if face == "mqtt_as":
        asyncio.run(connect_as({"server": server, "port": port, "ssl": tls, "ssl_params": params}))
        return
    got = []
    for i in range(1, 3):  # a program that connects again with a new client
        client = MQTTClient("tls", server, port, b"me", b"secret", 60, tls, params, backoff=None)
        client.set_callback(lambda topic, msg: got.append((topic, msg)))
        client.connect(True, PATIENCE_S)
        client.subscribe(b"tls/#")
        client.publish("tls/1", "x" * 900)
        client.publish(b"tls/2", b"secret", qos=1)
        while len(got) < 2 * i:
            client.wait_msg()
        client.disconnect()
    print("connected", len(got) // 2)


try:
    main(int(sys.argv[1]), eval(os.getenv("OPTIONS")))
except (OSError, UsageError) as error:
    print(type(error).__name__ if isinstance(error, UsageError) else "OSError", error)
