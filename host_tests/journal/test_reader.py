"""The reader written from FORMAT.md, on images that this file's own encoder makes: one test for each rule."""

from zlib import crc32

import pytest

from host_tests.journal.reader import LISTED, Refused, read

SECTORS, SIZE = 6, 1024
MESSAGE, HELD, STATE, RELEASED, NOTE = 1, 2, 3, 4, 5
MOUNTED, LAST = 0x40, 0x80


def bits(*sequences):
    return sum(1 << sequence % 32 for sequence in sequences)


class Image:
    """A region that is written as FORMAT.md says, one sector at a time."""

    def __init__(self):
        self.cells = bytearray(b"\xff" * SECTORS * SIZE)
        self.number = -1

    def open(self, number, sequence, **fields):
        """Begin a sector; its previous sector is the last one, unless given."""
        before = (0xFFFF, 0, 0) if self.number < 0 else (self.number, self.at, self.sequence)
        self.__dict__.update(number=number, sequence=sequence, low=1, finished=0, marked=0)
        told = dict.fromkeys(["low", "finished", "marked", "first", "floor", "dropped", "damaged", "boot", "erases"], 0)
        told.update(low=1, first=1, floor=1, boot=1)
        told.update((name, value) for name, value in fields.items() if name in told)
        for name in ("low", "finished", "marked"):
            setattr(self, name, told[name])
        self.next_seq = told["first"] - fields.get("continued", 0)
        held = fields.get("held", [])
        head = b"fmqj" + bytes([2, 0xFD, 10, len(held) | fields.get("continued", 0) << 7])
        head += b"".join(value.to_bytes(4, "little") for value in (sequence, *told.values()))
        previous = fields.get("previous", before)
        for value in (SECTORS, fields.get("tail", number if previous[0] == 0xFFFF else 0), *previous[:2]):
            head += value.to_bytes(2, "little")
        head += previous[2].to_bytes(4, "little") + fields.get("note", b"\xff" * 12)
        for sector, offset in held:
            head += sector.to_bytes(2, "little") + (offset // 4).to_bytes(2, "little")
        head += crc32(head).to_bytes(4, "little")
        self.cells[number * SIZE : number * SIZE + len(head)] = head
        self.at = len(head)
        return self

    def put(self, kind, body=b"", sequence=None, key=0):
        """Write a record; return its place."""
        if sequence is None:
            sequence = self.next_seq
        room = 256 - self.at % 256
        if 24 + len(body) > room:
            self.at += room
        rest = bytes([len(body), kind]) + key.to_bytes(2, "little")
        rest += b"".join(v.to_bytes(4, "little") for v in (sequence, self.low, self.finished, self.marked)) + body
        record = crc32(rest, self.sequence).to_bytes(4, "little") + rest
        place = (self.number, self.at)
        at = self.number * SIZE + self.at
        self.cells[at : at + len(record)] = record
        self.at += len(record) + 3 & -4
        return place

    def message(self, sequence, body, piece=0, last=True):
        self.next_seq = max(self.next_seq, sequence + last)
        return self.put(MESSAGE | LAST * last, body, sequence, piece)

    def held(self, key, body, piece=0, last=True):
        return self.put(HELD | LAST * last, body, piece, key)

    def flip(self, place, byte, mask=0x10):
        self.cells[place[0] * SIZE + place[1] + byte] ^= mask

    def tear(self, place, n):
        """Keep n bytes of a record; erase the rest of its page."""
        at = place[0] * SIZE + place[1] + n
        end = at - at % 256 + 256
        self.cells[at:end] = b"\xff" * (end - at)

    def read(self):
        return read(self.cells, SIZE)


def first():
    image = Image().open(0, 1)
    image.put(STATE)
    return image


@pytest.mark.req("S1")
def test_blank_region_is_an_empty_journal():
    state = Image().read()
    assert (state.head, state.low, state.next_seq, state.boot, state.messages) == (-1, 1, 1, 0, {})


@pytest.mark.req("S1", "S2")
def test_interrupted_first_mount_reads_as_empty():
    whole = bytes(first().cells)
    assert read(whole, SIZE).boot == 1
    for cut in range(1, 800):
        image = Image()
        for bit in range(cut):
            at = bit * 7 // 8 % 100  # any bits that the complete first mount clears
            image.cells[at] &= whole[at] | ~(1 << bit % 8) & 0xFF
        if bytes(image.cells) != whole:
            assert image.read().head == -1
    image = Image()
    image.cells[:90] = whole[:90]
    assert image.read().head == -1
    image.cells[200] = 0
    with pytest.raises(Refused, match="StoreCorrupt"):  # the region has more than a first mount writes
        image.read()


@pytest.mark.req("S6")
def test_region_without_readable_journal_raises_the_right_error():
    for content, name in (
        (b"This is somebody's text.", "StoreForeign"),
        (b"fmqj\x01\xfe", "StoreForeign"),
        (b"fmqj\x03\xfc", "StoreForeign"),
        (b"fmqj\x03\xfd", "StoreCorrupt"),
        (b"fmqj\x02\xfd\x0a\x00", "StoreCorrupt"),
    ):
        image = Image()
        image.cells[: len(content)] = content
        image.cells[300] = 0
        with pytest.raises(Refused, match=name):
            image.read()


@pytest.mark.req("S1")
def test_messages_low_bitmaps_held_and_note_are_read():
    image = first()
    image.message(1, b"one")
    image.message(2, b"two" * 50)
    image.marked = bits(2)
    image.message(3, b"three")
    image.low, image.marked, image.finished = 2, bits(2), bits(3)
    image.held(77, b"inbound")
    image.held(78, b"other")
    image.put(STATE, (9).to_bytes(4, "little") + (1).to_bytes(4, "little"))
    image.put(NOTE, b"twelve bytes")
    image.message(4, b"four")
    image.put(RELEASED, (77).to_bytes(2, "little"))
    state = image.read()
    assert (state.low, state.next_seq, state.dropped, state.boot, state.note) == (2, 5, 9, 1, b"twelve bytes")
    assert (state.finished, state.marked) == ({3}, {2})
    assert state.messages == {2: b"two" * 50, 4: b"four"} and state.held == [(78, b"other")]
    assert not state.clean and not state.hurt and state.chain == [0]


@pytest.mark.req("S1")
def test_clean_end_and_mount_records_are_read():
    image = first()
    image.put(STATE | LAST)
    assert image.read().clean and image.read().boot == 1
    image.put(STATE | MOUNTED)
    state = image.read()
    assert (state.clean, state.boot) == (False, 2)
    image.put(STATE, (2).to_bytes(4, "little") + (3).to_bytes(4, "little"))
    assert (image.read().dropped, image.read().damaged) == (2, 3)


@pytest.mark.req("S1", "S2")
def test_message_continues_in_next_sector_and_incomplete_ones_are_ignored():
    image = first()
    image.message(1, b"a" * 232, 0, False)
    image.put(STATE)
    begun = image.held(5, b"h" * 200, 0, False)
    image.message(1, b"b" * 200, 1, False)
    image.open(1, 2, first=2, continued=1, held=[begun])
    image.message(1, b"c", 2)
    image.held(5, b"i", 1)
    image.message(2, b"abandoned", 0, False)
    image.message(2, b"anew", 0, False)
    image.message(2, b"!", 1, True)
    image.message(3, b"begun", 0, False)
    state = image.read()
    assert state.messages == {1: b"a" * 232 + b"b" * 200 + b"c", 2: b"anew!"} and state.next_seq == 4 - 1
    assert state.held == [(5, b"h" * 200 + b"i")] and state.chain == [0, 1]
    image.open(2, 3, first=3, held=[begun])
    image.put(STATE)
    assert image.read().messages == state.messages and image.read().next_seq == 3


@pytest.mark.req("S1", "S2")
def test_records_after_the_previous_end_are_ignored():
    image = first()
    image.message(1, b"one")
    end = image.at
    image.message(2, b"marginal")
    image.open(1, 2, first=2, previous=(0, end, 1), boot=2)
    image.put(STATE)
    assert (image.read().messages, image.read().next_seq) == ({1: b"one"}, 2)
    image.message(2, b"two")
    assert image.read().messages == {1: b"one", 2: b"two"}


@pytest.mark.req("S1", "S2")
def test_sector_without_a_complete_record_is_ignored():
    image = first()
    image.message(1, b"one")
    image.open(1, 2, first=2, boot=2)
    assert image.read().boot == 1
    place = image.put(STATE)
    assert image.read().boot == 2
    image.tear(place, 20)
    assert (image.read().boot, image.read().head, image.read().messages) == (1, 0, {1: b"one"})


@pytest.mark.req("S2")
def test_torn_last_record_is_not_counted_as_damage():
    image = first()
    image.message(1, b"one")
    place = image.message(2, b"two")
    whole = bytes(image.cells)
    for n in range(27):
        image.cells[:] = whole
        image.tear(place, n)
        state = image.read()
        assert (state.messages, state.next_seq, state.hurt) == ({1: b"one"}, 2, False)


@pytest.mark.req("S1")
def test_head_records_override_held_messages_listed_in_the_header():
    image = first()
    listed = [image.held(5, b"five"), image.held(6, b"six" * 70, 0, False)]
    image.held(6, b"more" * 50, 1)
    gone = image.held(7, b"seven")
    image.open(1, 2, held=[*listed, gone], boot=2)
    image.put(STATE)
    assert image.read().held == [(5, b"five"), (6, b"six" * 70 + b"more" * 50), (7, b"seven")]
    image.put(RELEASED, (7).to_bytes(2, "little"))
    image.held(5, b"new five")
    assert image.read().held == [(5, b"new five"), (6, b"six" * 70 + b"more" * 50)]


@pytest.mark.req("S1")
def test_dropped_messages_have_no_body_but_marked_ones_stay():
    image = first()
    for sequence in range(1, 7):
        image.message(sequence, b"%d" % sequence)
    image.open(1, 2, low=2, marked=bits(3), finished=bits(6), floor=5, first=7, dropped=2)
    image.put(STATE)
    state = image.read()
    assert (state.low, state.marked, state.finished, state.next_seq) == (3, {3}, {4, 6}, 7)
    assert state.messages == {5: b"5"} and state.dropped == 2


@pytest.mark.req("S1")
def test_superseded_head_is_not_in_the_chain():
    image = first()
    image.message(1, b"one")
    before = (0, image.at, 1)
    image.open(1, 2, first=2)
    image.put(STATE)
    image.open(2, 3, first=2, previous=before)
    image.put(STATE)
    assert image.read().chain == [0, 2] and image.read().messages == {1: b"one"}


@pytest.mark.req("S6")
def test_damaged_record_loses_only_its_message():
    image = first()
    places = [image.message(sequence, b"%03d" % sequence * 30) for sequence in range(1, 7)]
    whole = bytes(image.cells)
    for sequence in range(1, 6):
        for byte in (*range(4), *range(5, 114)):
            image.cells[:] = whole
            image.flip(places[sequence - 1], byte)
            state = image.read()
            assert state.lost == [sequence] and state.next_seq == 7 and state.hurt
            assert all(state.messages[s] == b"%03d" % s * 30 for s in range(1, 7) if s != sequence)


@pytest.mark.req("S6")
def test_damaged_length_loses_at_most_its_page():
    image = first()
    places = [image.message(sequence, b"%03d" % sequence * 20) for sequence in range(1, 8)]
    page = [place[1] // 256 for place in places]
    for bit in range(8):
        whole = bytes(image.cells)
        image.flip(places[2], 4, 1 << bit)
        state = image.read()
        assert 3 in state.lost and all(page[sequence - 1] == page[2] for sequence in state.lost)
        assert state.next_seq == 8
        image.cells[:] = whole


@pytest.mark.req("S6")
def test_damaged_newest_message_is_counted_if_a_record_follows():
    image = first()
    image.message(1, b"one")
    place = image.message(2, b"two")
    image.put(STATE | LAST)
    whole = bytes(image.cells)
    for byte in (0, 5, 6, 9, 13, 17, 22, 25):
        image.cells[:] = whole
        image.flip(place, byte)
        state = image.read()
        assert (state.messages, state.next_seq, state.clean) == ({1: b"one", 2: None}, 3, True), byte


@pytest.mark.req("S6")
def test_pieces_of_two_messages_are_never_joined():
    image = first()
    image.message(1, b"old 0", 0, False)
    place = image.message(1, b"new 0", 0, False)
    image.message(1, b"new 1", 1)
    assert image.read().messages == {1: b"new 0new 1"}
    image.flip(place, 25)
    assert image.read().messages == {1: None}


def three_sectors():
    image = first()
    image.message(1, b"one")
    image.open(1, 2, first=2)
    image.message(2, b"two")
    image.open(2, 3, first=3)
    image.low, image.finished = 1, bits(2)
    image.message(3, b"three")
    image.message(4, b"four")
    return image


@pytest.mark.req("S6")
def test_damaged_header_loses_only_its_sector():
    image = three_sectors()
    assert image.read().messages == {1: b"one", 3: b"three", 4: b"four"}
    image.flip((0, 0), 30)
    state = image.read()
    assert state.messages == {1: None, 3: b"three", 4: b"four"} and state.chain == [1, 2]
    image = three_sectors()
    image.finished = 0
    image.put(STATE)
    image.flip((1, 0), 30)
    state = image.read()
    assert state.messages == {1: b"one", 2: None, 3: b"three", 4: b"four"} and state.chain == [0, 2]


@pytest.mark.req("S6")
@pytest.mark.parametrize("byte", (0, 4, 6, 7, 8, 9, 30, 75))
def test_damaged_newest_header_does_not_lose_sequence_numbers(byte):
    image = three_sectors()
    image.flip((2, 0), byte)
    state = image.read()
    assert state.messages == {1: b"one", 3: None, 4: None} and state.next_seq == 5 and state.head == 1


@pytest.mark.req("S6")
def test_damaged_newest_header_does_not_lose_note_and_releases():
    image = first()
    places = [image.held(5, b"five"), image.held(6, b"six")]
    image.open(1, 2, held=places)
    image.put(RELEASED, (5).to_bytes(2, "little"))
    image.put(NOTE, b"twelve bytes")
    image.flip((1, 0), 30)
    assert image.read().held == [(6, b"six")] and image.read().note == b"twelve bytes"


@pytest.mark.req("S6")
@pytest.mark.parametrize("floor", (1, (1 << 30) - 5))
def test_a_thousand_million_lost_or_dropped_messages_are_read_at_once(floor):
    image = Image().open(0, 1, first=(1 << 30) - 5, floor=floor)
    image.put(STATE)
    state = image.read()
    assert (state.low, state.next_seq) == (floor, (1 << 30) - 5) and len(state.messages) <= LISTED


@pytest.mark.req("S6")
def test_header_of_another_region_size_is_refused_as_foreign():
    cells = first().cells
    for image, size in ((cells[:4096], 1024), (bytes(cells) + b"\xff" * 1024, 1024), (cells, 512)):
        with pytest.raises(Refused, match="StoreForeign"):
            read(image, size)


@pytest.mark.req("S1")
def test_carried_held_messages_are_found_by_the_header_list():
    image = first()
    left = image.held(5, b"five")
    image.open(1, 2, held=[left])
    stays = image.held(6, b"six")
    image.open(2, 3, held=[(2, 84), stays])
    image.put(HELD | LAST | 0x40, b"five", 0, 5)
    assert image.read().head == 1  # a carried record alone does not make the sector count
    image.put(STATE)
    assert image.read().held == [(5, b"five"), (6, b"six")] and image.read().head == 2
    image.put(RELEASED, (5).to_bytes(2, "little"))
    assert image.read().held == [(6, b"six")]


@pytest.mark.req("S1", "S2")
def test_sector_with_only_its_opening_counts_if_all_carried_held_messages_are_there():
    image = first()
    left = image.held(5, b"five")
    image.open(1, 2, held=[(1, 80)], tail=1, previous=(0xFFFF, 0, 0))
    five = image.put(HELD | LAST | 0x40, b"five", 0, 5)
    image.put(STATE, key=1)
    assert (image.read().head, image.read().held) == (1, [(5, b"five")])
    image.flip(five, 25)
    assert (image.read().head, image.read().held) == (0, [(5, b"five")]), left
    image.put(STATE)
    assert (image.read().head, image.read().held) == (1, [])


@pytest.mark.req("S1", "S2")
def test_sector_with_only_its_opening_counts_if_all_carried_messages_are_there():
    image = first()
    image.message(1, b"one")
    image.message(2, b"two")
    image.open(1, 2, first=1, boot=2, tail=1, previous=(0xFFFF, 0, 0))
    image.put(MESSAGE | LAST | 0x40, b"one", 1)
    two = image.put(MESSAGE | LAST | 0x40, b"two", 2)
    assert image.read().head == 0  # carried records alone do not make the sector count
    image.put(STATE, sequence=3, key=2)
    state = image.read()
    assert (state.head, state.chain, state.next_seq, state.messages) == (1, [1], 3, {1: b"one", 2: b"two"})
    image.flip(two, 25)
    assert (image.read().head, image.read().messages) == (0, {1: b"one", 2: b"two"})
    image.put(STATE, sequence=3)
    assert (image.read().head, image.read().messages) == (1, {1: b"one", 2: None})
