"""One page of the flash can't be read any more. It costs what is on it, counted and by name; all else goes on."""

import pytest

from failing import UnreadableRegion
from flashmqtt.errors import FlashFailed, StoreCorrupt
from flashmqtt.flash.block import BlockRegion
from flashmqtt.journal.journal import Journal
from stored import held_messages, message
from tools.flashsim.nor import NorFlash

SECTOR = 1024


def page_of(region, body):
    """Return the page in which these bytes are stored first."""
    return bytes(region.cells).find(body) & -256


@pytest.mark.req("S6")
@pytest.mark.parametrize("length, verifies", ((200, False), (200, True), (500, False), (500, True)))
def test_held_message_that_cannot_be_read_is_given_up_and_the_journal_goes_on(length, verifies):
    region = UnreadableRegion(8, SECTOR)
    region.verifies = verifies
    journal = Journal(region)
    journal.hold(2, b"two", 3)
    journal.hold(1, b"\1" * length, length)
    region.page = page_of(region, b"\1" * 100)
    for seq in range(1, 301):
        assert journal.append(bytes(200), 200) == seq
        if seq > 6:
            journal.finish(seq - 6)
    assert not journal.worn
    with pytest.raises(StoreCorrupt):
        journal.read_held(1, 0, bytearray(length), 0, length)
    journal = Journal(region)
    assert held_messages(journal) == [(2, b"two")] and journal.damaged == 1
    assert [message(journal, seq) for seq in range(295, 301)] == [bytes(200)] * 6


@pytest.mark.req("S6")
@pytest.mark.parametrize("verifies", (False, True))
def test_header_that_cannot_be_read_keeps_no_sector_from_being_opened(verifies):
    for sector in range(6):
        region = UnreadableRegion(6, SECTOR)
        region.verifies = verifies
        journal = Journal(region)
        for seq in range(1, 101):
            if seq == 51:
                region.page = sector * SECTOR
            assert journal.append(b"%03d" % seq * 60, 180) == seq
            if seq > 3:
                journal.finish(seq - 3)
        assert not journal.worn and journal.damaged <= 3
        journal = Journal(region)
        assert [message(journal, seq) for seq in (98, 99, 100)] == [b"%03d" % seq * 60 for seq in (98, 99, 100)]


@pytest.mark.req("S6")
def test_outgoing_message_that_cannot_be_read_does_not_stop_later_ones():
    region = UnreadableRegion(8, SECTOR)
    journal = Journal(region)
    for name in (b"first", b"second", b"third"):
        journal.append(name * 30, len(name) * 30)
    assert journal.length(2) == 180
    region.page = page_of(region, b"second" * 30)
    with pytest.raises(StoreCorrupt):
        journal.read(2, 0, bytearray(180), 0, 180)
    # The page could also have had a held message, so the mount counts one.
    for mounted, damaged in ((journal, 1), (Journal(region), 2)):
        assert (message(mounted, 1), mounted.length(2), message(mounted, 3)) == (b"first" * 30, 0, b"third" * 30)
        for seq in (1, 2, 3):
            mounted.finish(seq)
        assert mounted.damaged == damaged


@pytest.mark.req("S6")
def test_device_that_cannot_be_read_at_all_for_a_while_loses_nothing():
    region = UnreadableRegion(9, SECTOR)
    journal = Journal(region)
    journal.hold(1, b"held", 4)
    for n in range(12):
        journal.append(bytes([n]) * 200, 200)
    region.page = region.ALL
    for call in (lambda: Journal(region), lambda: message(journal, 1), lambda: held_messages(journal)):
        with pytest.raises(FlashFailed):
            call()
    journal.idle()  # an erase in advance needs no read
    region.page = -1
    for mounted in (journal, Journal(region)):
        assert held_messages(mounted) == [(1, b"held")] and mounted.damaged == 0
        assert [message(mounted, n + 1) for n in range(12)] == [bytes([n]) * 200 for n in range(12)]


@pytest.mark.req("S6")
@pytest.mark.parametrize("flipped", (False, True))
def test_damaged_header_of_the_oldest_sector_does_not_bring_older_ones_back(flipped):
    """Otherwise the chain is the whole ring, and no sector is left to open."""
    for sector in range(9):
        region = UnreadableRegion(9, SECTOR)
        journal = Journal(region)
        for seq in range(1, 41):
            journal.append(b"%03d" % seq * 60, 180)
            if seq > 8:
                journal.finish(seq - 8)
        if flipped:
            region.cells[sector * SECTOR + 20] ^= 1
        else:
            region.page = sector * SECTOR
        journal = Journal(region)
        assert not journal.worn, sector
        for _ in range(100):
            seq = journal.append(b"new" * 60, 180)
            while journal.low < seq - 8:
                journal.finish(journal.low)
        assert journal.damaged <= 3 and message(journal, seq) == b"new" * 60


class UnreadableFlash(NorFlash):
    """A device that raises OSError for reads of the page at `page`, or returns the error's number."""

    page = -1
    returns = False

    def readblocks(self, n, buf, off=0):
        """Fill buf."""
        at = n * 4096 + off
        if 0 <= self.page < at + len(buf) and at < self.page + 256:
            if self.returns:
                return 5
            raise OSError(5)
        return super().readblocks(n, buf, off)


@pytest.mark.req("S6")
@pytest.mark.parametrize("returns", (False, True))
def test_page_of_a_device_that_reports_an_error_costs_only_what_is_on_it(returns):
    for page in (0, 256, 4096, 4096 + 512, 7 * 4096):
        flash = UnreadableFlash(8 * 4096)
        flash.returns = returns
        region = BlockRegion(flash)
        journal = Journal(region)
        journal.hold(9, b"held" * 50, 200)  # on the second page
        for seq in range(1, 301):
            if seq == 41:
                flash.page = page
            if seq in (45, 145):
                journal = Journal(region)
            assert journal.append(b"%03d" % seq * 60, 180) == seq
            if seq > 20:
                journal.finish(journal.low)
        assert not journal.worn and journal.damaged <= 15
        assert [message(journal, seq) for seq in (299, 300)] == [b"%03d" % seq * 60 for seq in (299, 300)]
        assert held_messages(journal) == ([] if page < 512 else [(9, b"held" * 50)])
    assert not flash.violations
