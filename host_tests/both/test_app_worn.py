"""The application on a flash that wears out under it: what is stored is delivered, then somebody has to look."""

import pytest

from app.application import Application
from app.configuration import check
from flashmqtt.errors import StoreWorn
from flashmqtt.flash.block import BlockRegion
from loopback import Loopback
from tools.flashsim.nor import NorFlash

SECTORS = 8


class Facts(dict):
    """A state that no file keeps."""

    def save(self, **changes):
        self.update(changes)


class Sensor:
    name = "load"
    unit = ""

    def read(self):
        return 1


class Board:
    """The part of the board contract that a run needs; its watchdog feeds the broker."""

    def __init__(self, broker):
        self.flash = NorFlash(SECTORS * 4096)
        self.watchdog = lambda ms: broker

    def journal_region(self, sectors):
        return BlockRegion(self.flash)

    def sensors(self):
        return [Sensor()]

    def unique_id(self):
        return "dev"

    def reset_cause(self):
        return "power"

    def clock(self):
        return None

    def led(self, on):
        pass


@pytest.mark.req("S6")
def test_what_is_stored_is_delivered_before_the_run_ends_on_a_worn_flash():
    broker = Loopback()
    board = Board(broker)
    settings = {"broker": "127.0.0.1", "port": broker.port, "interval_ms": 10, "health_s": 0, "watchdog_s": 8}
    application = Application(board, check(settings), Facts())
    for _ in range(9):
        application.publish("readings", 1 + application.journal.stored % 2, application.sample(application.groups[0]))
    for sector in range(SECTORS):
        board.flash.set_bad(sector)
    with pytest.raises(StoreWorn):
        application.run()
    assert application.client.pending == 0 and len(broker.of(3)) == 9 + 1  # the status, at QoS 0
    assert application.refused > 0
    application.client.link.stop()
