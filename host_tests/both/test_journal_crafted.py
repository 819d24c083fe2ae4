"""Images with right checksums and impossible content: each one mounts with bounded work, or is refused by name."""

import sys
from binascii import crc32
from struct import pack_into, unpack_from

import pytest

from flashmqtt.errors import StoreCorrupt, StoreError, StoreForeign, StoreWorn
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import DROP_NEWEST, DROP_OLDEST, REFUSE, Journal
from stored import held_messages, message
from tools.flashsim.nor import Random
from tools.journal import layout

SECTOR = 1024
IMAGES = 300 if sys.implementation.name == "micropython" else 3000
HIGH = 0x3FFFFFFF
BEYOND = (HIGH + 1, 0x80000000, 0xFFFFFFFF)


class CountingRegion(RamRegion):
    """Ends a test that does not end by itself."""

    operations = 0

    def read(self, offset, buf):
        """Count, and fill buf."""
        self.operations += 1
        assert self.operations < 20000
        super().read(offset, buf)


def made(sectors=6):
    """Return the bytes of a journal: messages in three sectors, one of them marked, held messages and a note."""
    region = RamRegion(sectors, SECTOR)
    journal = Journal(region)
    journal.hold(7, b"inbound", 7)
    journal.hold(8, b"another", 7)
    for n in (100, 200, 300, 100, 232, 100, 60, 100, 20):
        journal.append(bytes([n & 255]) * n, n)
    journal.mark(2)
    journal.finish(3)
    journal.write_note(b"twelve bytes")
    journal.append(b"last", 4)
    return region.cells


def number(cells, at):
    """Return the four bytes at an offset as a number."""
    return unpack_from("<I", cells, at)[0]


def header_end(cells, base):
    """Return where the header of a sector ends, without its CRC."""
    return base + layout.HEADER - 4 + 4 * (cells[base + layout.H_HELD] & 63)


def seal(cells, start, end, at, seed=0):
    """Write a CRC."""
    for i in range(4):
        cells[at + i] = crc32(bytes(cells[start:end]), seed) >> 8 * i & 255


def headers(cells):
    """Return where the sectors with a whole header begin, the newest first."""
    found = []
    for base in range(0, len(cells), SECTOR):
        end = header_end(cells, base)
        if end <= base + 252 and crc32(bytes(cells[base:end])) == number(cells, end):
            found.append((number(cells, base + layout.H_SEQ), base))
    return [base for _, base in sorted(found, reverse=True)]


def records(cells, base):
    """Return the offsets in the region of a sector's whole records."""
    found = []
    at = header_end(cells, base) + 4
    while at < base + SECTOR:
        end = at + layout.RECORD + cells[at + layout.R_LENGTH] if at & 255 <= 232 else base + SECTOR
        if (end - 1) >> 8 == at >> 8 and crc32(
            bytes(cells[at + 4 : end]), number(cells, base + layout.H_SEQ)
        ) == number(cells, at):
            found.append(at)
            at = end + 3 & -4
        else:
            at = (at | 255) + 1
    return found


def put_header(cells, base, at, what, value):
    """Change a field of a header; the CRC is right afterwards, also those of the records."""
    placed = records(cells, base)
    pack_into(what, cells, base + at, value)
    end = header_end(cells, base)
    if end <= base + 252:
        seal(cells, base, end, end)
    for record in placed:
        put_record(cells, base, record, layout.R_LENGTH, "<B", cells[record + layout.R_LENGTH])


def put_record(cells, base, record, at, what, value):
    """Change a field of a record; the CRC is right afterwards, if the record still fits into its page."""
    pack_into(what, cells, record + at, value)
    end = record + layout.RECORD + cells[record + layout.R_LENGTH]
    if (end - 1) >> 8 == record >> 8:
        seal(cells, record + 4, end, record, number(cells, base + layout.H_SEQ))


def mount(cells, policy=REFUSE):
    return Journal(CountingRegion(len(cells) // SECTOR, SECTOR, 1, cells), policy)


def use(journal):
    """Read everything, and write a bit of everything."""
    for seq in range(journal.low, min(journal.low + 32, journal.next_seq)):
        try:
            message(journal, seq)
        except StoreCorrupt:
            pass
    try:
        held_messages(journal)
    except StoreCorrupt:
        pass
    for call in (
        lambda: journal.append(bytes(300), 300),
        lambda: journal.low < journal.next_seq and journal.finish(journal.low),
        lambda: journal.hold(9, b"held", 4),
        lambda: journal.discard(9),
        journal.flush,
        journal.close,
    ):
        try:
            call()
        except StoreError:
            pass


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("place", (SECTOR // 4, SECTOR // 4 + 19, 0xFFFF))
def test_held_message_listed_outside_its_sector_is_counted(place):
    cells = made()
    base = headers(cells)[0]
    put_header(cells, base, layout.H_LIST + 2, "<H", place)
    journal = mount(cells)
    assert held_messages(journal) == [(8, b"another")] and journal.damaged == 1


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("end", (SECTOR + 4, 2 * SECTOR, 0xFFFF))
def test_sector_ends_at_its_end_whatever_the_next_header_states(end):
    cells = made()
    wanted = mount(bytearray(cells))
    for base in headers(cells)[:-1]:
        put_header(cells, base, layout.H_PREV_END, "<H", end)
    journal = mount(cells)
    for seq in range(1, wanted.next_seq):
        assert message(journal, seq) == message(wanted, seq)


@pytest.mark.req("S5", "S6")
@pytest.mark.parametrize("kind", [layout.NOTE, 0, 7, 15])
def test_eight_bytes_of_a_record_that_is_no_state_are_no_totals(kind):
    region = RamRegion(4, SECTOR)
    Journal(region)
    at = 100  # after the record of the first mount
    pack_into("<2BH6I", region.cells, at + 4, 8, kind, 0, 1, 0, 0, 0, 5, 6)
    put_record(region.cells, 0, at, layout.R_LOW, "<I", 1)
    journal = mount(region.cells)
    assert (journal.dropped, journal.damaged, journal.next_seq) == (0, 0, 1)


@pytest.mark.req("S2", "S6")
def test_note_of_another_length_is_no_note():
    cells = made()
    base = headers(cells)[0]
    note = next(at for at in records(cells, base) if cells[at + layout.R_KIND] == layout.NOTE)
    put_record(cells, base, note, layout.R_LENGTH, "<B", 8)
    assert bytes(mount(bytearray(cells)).note) == b"\xff" * 12
    # Eight bytes may end with the page, so that there are no twelve.
    last = (base | 255) + 1 + 512 + 256 - 32
    pack_into("<2BHI", cells, last + 4, 8, layout.NOTE, 0, 1)
    put_record(cells, base, last, layout.R_LOW, "<I", 1)
    assert bytes(mount(cells).note) == b"\xff" * 12


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("at, value", [(at, value) for at in (layout.H_SEQ, layout.H_FIRST) for value in BEYOND])
def test_header_with_a_number_beyond_the_format_does_not_count(at, value):
    cells = made()
    base = headers(cells)[0]
    low = mount(bytearray(cells)).low
    put_header(cells, base, at, "<I", value)
    journal = mount(cells)  # the older sector counts
    assert journal.low == low and message(journal, 1) == bytes([100]) * 100


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("at, value", [(at, value) for at in (layout.R_LOW, layout.R_SEQ) for value in BEYOND])
def test_record_with_a_number_beyond_the_format_is_refused(at, value):
    cells = made()
    base = headers(cells)[0]
    put_record(cells, base, records(cells, base)[-1], at, "<I", value)
    before = bytes(cells)
    with pytest.raises(StoreCorrupt):
        mount(cells)
    assert cells == before


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("at", (layout.H_DROPPED, layout.H_DAMAGED, layout.H_BOOT))
def test_total_near_the_end_of_its_bytes_is_refused(at):
    cells = made()
    for base in headers(cells):
        put_header(cells, base, at, "<I", 0xFFFFFFFF)
    with pytest.raises(StoreCorrupt):
        mount(cells)


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("at", (layout.H_DROPPED, layout.H_DAMAGED))
def test_total_that_is_mounted_once_is_mounted_always(at):
    """A mount continues from 2^30 - 1 at most, so that no journal reaches a number that is refused."""
    cells = made()
    for base in headers(cells):
        put_header(cells, base, at, "<I", 0x7FFFFFFF)
    for mounts in range(3):
        journal = mount(cells)
        totals = journal.dropped, journal.damaged
        assert max(totals) == HIGH and min(totals) == 2 * mounts
        journal.dropped += 2
        journal.damaged += 2
        journal.flush()


@pytest.mark.req("S2", "S6")
@pytest.mark.parametrize("more", (1, 2, 0x70000000))
def test_boot_number_above_the_sector_sequence_is_refused(more):
    """Each mount takes a sector sequence. So what is mounted once does not reach the end of its bytes at a later mount."""
    cells = made()
    base = headers(cells)[0]
    sequence = number(cells, base + layout.H_SEQ)
    put_header(cells, base, layout.H_BOOT, "<I", sequence)
    assert mount(bytearray(cells)).boot == sequence + 1
    put_header(cells, base, layout.H_BOOT, "<I", sequence + more)
    with pytest.raises(StoreCorrupt):
        mount(cells)


@pytest.mark.req("S2", "S6")
def test_floor_above_all_messages_is_refused():
    """Otherwise, new messages would count as dropped."""
    cells = made()
    put_header(cells, headers(cells)[0], layout.H_FLOOR, "<I", 100)
    with pytest.raises(StoreCorrupt):
        mount(cells)


@pytest.mark.req("S5", "S6")
@pytest.mark.parametrize("marked", (0, 2))
def test_many_dropped_messages_are_passed_at_once(marked):
    """A million messages can be dropped while a marked one waits for its PUBCOMP: one step for each would take a minute."""
    cells = made()
    base = headers(cells)[0]
    put_header(cells, base, layout.H_FLOOR, "<I", HIGH - 9)
    put_header(cells, base, layout.H_FIRST, "<I", HIGH - 9)
    for record in records(cells, base):
        put_record(cells, base, record, layout.R_MARKED, "<I", 1 << marked if marked else 0)
    journal = mount(cells)
    if marked:
        assert journal.low == marked and journal.is_marked(marked) and journal.waiting == 1
        journal.finish(marked)
    assert journal.low == journal.next_seq == HIGH - 9 and journal.waiting == 0
    assert journal.append(b"next", 4) == HIGH - 9 and message(journal, HIGH - 9) == b"next"


@pytest.mark.req("S1", "S6")
def test_last_sector_sequence_is_named_and_nothing_is_lost():
    """Each clean end and mount takes 64 sequences: 16 million of them, for example 5 years of a boot every 10 seconds."""
    cells = made()
    base = headers(cells)[0]
    put_header(cells, base, layout.H_SEQ, "<I", HIGH - 3)
    stored = mount(cells).next_seq - 1  # in the sector HIGH - 2
    for _ in range(4):
        journal = mount(cells)
        assert [len(message(journal, seq)) for seq in (1, 2, stored)] == [100, 200, 4]
        assert held_messages(journal) == [(7, b"inbound"), (8, b"another")]
    assert journal.worn
    with pytest.raises(StoreWorn):
        for _ in range(100):
            journal.append(bytes(100), 100)
    with pytest.raises(StoreWorn):
        journal.hold(9, b"held", 4)
    stored = journal.next_seq
    assert mount(cells).next_seq == stored
    journal = Journal.format(RamRegion(len(cells) // SECTOR, SECTOR, 1, cells))
    assert journal.append(b"first", 5) == 1 and mount(cells).next_seq == 2


def craft(random, images):
    """Return a copy of one of these images with some impossible numbers and right checksums."""
    cells = bytearray(images[random.below(len(images))])
    for _ in range(1 + random.below(3)):
        bases = headers(cells)
        if not bases:
            break
        base = bases[0] if random.below(2) else bases[random.below(len(bases))]
        value = (random.below(40), random.below(1 << 30), HIGH - random.below(3), -1 - random.below(1 << 20))
        value = value[random.below(4)] & 0xFFFFFFFF
        if random.below(2):
            at = 8 + 4 * random.below(17)
            if 48 <= at < 56 or at >= 72:
                put_header(cells, base, at + 2 * random.below(2), "<H", value & 0xFFFF)
            else:
                put_header(cells, base, at, "<I", value)
            continue
        placed = records(cells, base)
        if placed:
            at = random.below(9)
            if at < 4:
                put_record(cells, base, placed[random.below(len(placed))], 4 + at, "<B", value & 255)
            else:
                put_record(cells, base, placed[random.below(len(placed))], 4 * at - 8, "<I", value)
    return cells


@pytest.mark.req("S2", "S6")
def test_impossible_content_with_right_checksums_is_mounted_or_refused():
    random = Random(5)
    images = (made(5), made(6), made(9))
    refused = 0
    for _ in range(IMAGES):
        cells = craft(random, images)
        try:
            for policy in (DROP_OLDEST, DROP_NEWEST):
                use(mount(cells, policy))
        except (StoreCorrupt, StoreForeign):
            refused += 1
    assert 0 < refused < IMAGES // 2
