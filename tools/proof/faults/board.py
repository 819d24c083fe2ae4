"""A board whose power is cut at random moments: it publishes numbered messages from its journal, and receives others.

    micropython -m tools.proof.faults.board <port> <level> <count> <window>

Its flash is `flash.bin` in its working directory; `flash.intent` has the current flash operation. A message's number is its
ordinal in the journal, so that after a cut the board continues with the next number. Odd numbers have QoS 1, even ones QoS 2.
It prints these lines:

    up <boot> <stored>      mounted
    stored <number>         publish() has returned: from now on the message must not be lost
    full <number>           the journal has no space for this message: the board waits for acknowledgements
    got <number>            the application was handed this message
    done                    everything is delivered, and the last message of each QoS was received
"""

import sys

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.errors import StoreFull
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from tools.flashsim.nor import FileNorFlash

FLASH_BYTES = 48 * 1024
TIME = 0.25  # the share of their typical time that flash operations take, so that cuts fall into them and between them
SAMPLE_MS = 4
FULL_MS = 50
KEEP_ALIVE_S = 2
RESPONSE_S = 2


def main(port, level, count, window):
    """Publish until `count` messages are stored; wait until all are delivered and the peer's last messages are received."""
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
        try:
            client.publish("board/out", b"%d;%s" % (number, b"." * (number % 90)), qos=2 - number % 2)
        except StoreFull:
            print("full", number)
            client.poll(FULL_MS)
            continue
        print("stored", number)
        client.poll(SAMPLE_MS)
        if not number % 8:
            journal.idle()
    # There is a last message of each QoS, because a message at QoS 1 may overtake one at QoS 2, which takes two round trips.
    while client.pending or len(ended) < 2:
        client.poll(50)
    client.disconnect()
    print("done")


main(*map(int, sys.argv[1:]))
