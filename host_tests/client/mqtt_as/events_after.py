"""A program in the shape of mqtt_as's events and queue, over flashmqtt."""

# ruff: noqa: I001, UP032

import asyncio

from flashmqtt.mqtt_as import MQTTClient
from mqtt_local import config


async def up(client):
    while True:
        await client.up.wait()
        client.up.clear()
        print("up")
        await client.subscribe("foo_topic", 1)


async def down(client):
    while True:
        await client.down.wait()
        client.down.clear()
        print("down")


async def messages(client):
    async for topic, msg, retained in client.queue:
        print("message", topic.decode(), msg.decode(), retained)


async def main(client):
    await client.connect()
    tasks = [asyncio.create_task(one(client)) for one in (up, down, messages)]
    n = 0
    while tasks:
        await asyncio.sleep(5)
        await client.publish("shed", "{} {}".format(n, client.isconnected()), qos=1)
        n += 1


config["queue_len"] = 10
config["clean"] = config["clean_init"] = False
config["ping_interval"] = 5
client = MQTTClient(config)
try:
    asyncio.run(main(client))
finally:
    client.close()
