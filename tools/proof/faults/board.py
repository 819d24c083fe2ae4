"""A board whose power is cut at random moments: publishes numbered messages from its journal, and takes numbered messages.

    micropython -m tools.proof.faults.board <port> <level> <count> <window>

Its flash is `flash.bin` in its working directory, with the operation under way in `flash.intent`. A message's number is its
ordinal in the journal, so that the board goes on where its flash says it was: odd ones at QoS 1, even ones at QoS 2. Lines:

    up <boot> <stored>      mounted
    stored <number>         publish() has returned: from here on it is a promise
    got <number>            the application was handed this message
    done                    all is delivered, and the last message of each QoS was taken
"""

import sys

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import FileNorFlash

FLASH_BYTES = 48 * 1024
TIME = 0.25  # flash operations take this part of their typical time: cuts shall fall into them, and into the rest too
SAMPLE_MS = 4
KEEP_ALIVE_S = 2
RESPONSE_S = 2


def main(port, level, count, window):
    """Publish until `count` messages are stored, then until all are delivered and the end has come."""
    flash = FileNorFlash("flash.bin", FLASH_BYTES, intent="flash.intent", time_scale=TIME)
    journal = Journal(BlockRegion(flash))
    print("up", journal.boot, journal.stored)
    client = Client(
        "127.0.0.1",
        port,
        client_id="board",
        store=journal,
        level=level,
        window=window,
        keep_alive_s=KEEP_ALIVE_S,
        response_s=RESPONSE_S,
        backoff=Backoff(base_ms=5, cap_ms=20, lasting_ms=20),
    )
    ended = set()

    def on_message(message):
        text = message.payload.decode().split(";")[0]
        if text == "end":
            ended.add(message.qos)
        else:
            print("got", text)

    client.on_message = on_message
    client.subscribe("board/in", 2)
    client.link.start(0)
    while journal.stored < count:
        number = journal.stored + 1
        client.publish("board/out", b"%d;%s" % (number, b"." * (number % 90)), qos=2 - number % 2)
        print("stored", number)
        client.poll(SAMPLE_MS)
        if not number % 8:
            journal.idle()
    # The end comes at each QoS: a QoS 2 message takes two round trips, and one of QoS 1 overtakes it.
    while client.pending or len(ended) < 2:
        client.poll(50)
    client.disconnect()
    print("done")


main(*map(int, sys.argv[1:]))
