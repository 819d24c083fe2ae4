"""The same over flashmqtt: what had to change is counted."""

# ruff: noqa: I001, UP032, RUF006

from flashmqtt.mqtt_as import MQTTClient
from mqtt_local import blue_led, config, wifi_led
import asyncio

TOPIC = "shed"  # what is published, and the will

outages = 0


async def flash():
    blue_led(True)
    await asyncio.sleep(1)
    blue_led(False)


def on_message(topic, msg, retained):
    print("message", topic.decode(), msg.decode(), retained)
    asyncio.create_task(flash())


async def on_wifi(state):
    global outages
    wifi_led(not state)
    if state:
        print("up")
    else:
        outages += 1
        print("down")
    await asyncio.sleep(1)


async def on_connected(client):
    await client.subscribe("foo_topic", 1)


async def main(client):
    try:
        await client.connect()
    except OSError:
        print("no connection")
        return
    n = 0
    while True:
        await asyncio.sleep(5)
        print("publish", n)
        await client.publish(TOPIC, "{} repubs: {} outages: {}".format(n, client.REPUB_COUNT, outages), qos=1)
        n += 1


config["subs_cb"] = on_message
config["wifi_coro"] = on_wifi
config["will"] = (TOPIC, "gone", False, 0)
config["connect_coro"] = on_connected
config["keepalive"] = 120

MQTTClient.DEBUG = True
client = MQTTClient(config)

try:
    asyncio.run(main(client))
finally:
    client.close()
    blue_led(True)
    asyncio.new_event_loop()
