"""A simulated serial NOR flash chip with power cuts: a block device of MicroPython's extended protocol.

    flash = NorFlash(64 * 1024, personality="rp2")          in memory
    flash = FileNorFlash("flash.bin", 1 << 20, intent="flash.intent", time_scale=1.0)      in a file, for the virtual board
    readblocks(n, buf[, off])   writeblocks(n, buf[, off])   ioctl(op, arg)

Each personality behaves like a port (rp2_flash.c and esp32_partition.c of MicroPython 1.24 to 1.29):
    "rp2"              programs whole 256-byte pages: a shorter buffer programs also the RAM behind it; no errors, no bounds
    "esp32"            any offset and length; OSError outside the partition
`violations` is a list of texts: accesses that a port does not refuse but that a correct driver must not make. These are a byte
programmed to a second value between erases (the same value again is allowed, also after a cut), a page programmed across its end,
a length that is not whole pages, an access outside the device, and a source buffer that may be in flash itself.

Every page program and every sector erase is one operation, and `operations` counts them: the number identifies a power cut.
`arm(operation, model, variant)` cuts the power at that operation (1 is the first ever). PowerCut names all three.
Each model has any number of variants; a variant's number replays it exactly:
    nothing      the operation did not begin
    prefix       only the first variant % (length + 1) bytes were done
    bits         any subset of the bits was done; a torn erase may leave any bits
    unreported   the operation was done, but the call did not return
    weak         done, but some bits may change with every read until they are programmed to 0 or erased
PowerCut is a BaseException, so that no `except Exception` catches it. All later calls raise it, too, until `power_up()`.
`set_bad(sector, kind)` makes a sector on which "erase", "program" or "both" fail.

Counters: programs (pages), erases, bytes_programmed, bytes_read, reads, erase_counts[sector], worst_ms (by the data sheet).
`snapshot()` and `restore(it)` save and restore contents and weak cells, not counters.

For killed processes: before each operation FileNorFlash writes an intent (kind, offset, length, old, new) to a second file,
sleeps the modelled time, executes the operation and clears the intent. After a kill -9, `tools.proof.tear.tear(image, intent,
rng)` on the host replaces the result by one that a real chip could have left.

This module runs unchanged on MicroPython and CPython. In memory and unarmed, reads and writes of whole pages allocate nothing on
MicroPython. It knows no journal and no file system.
"""

from array import array
from binascii import crc32
from time import sleep

from flashmqtt.fast import copy, is_blank, raw_fill

PAGE_BYTES = 256
SECTOR_BYTES = 4096
# Typical and worst times of a page program and a sector erase, by the data sheet of a W25Q16JV.
PROGRAM_MS, ERASE_MS = (0.4, 3), (45, 400)
MODELS = ("nothing", "prefix", "bits", "unreported", "weak")
_ESP_ERR_INVALID_ARG = 0x102
_ESP_ERR_INVALID_SIZE = 0x104
_BLANK_PAGE = b"\xff" * PAGE_BYTES
_BLANK_SECTOR = b"\xff" * SECTOR_BYTES


class PowerCut(BaseException):
    """The power was cut during an operation; the argument is the id that replays the cut."""


class Random:
    """A small generator (xorshift) that gives the same numbers on both interpreters."""

    def __init__(self, seed):
        self._state = (seed * 2654435761 + 0x9E3779B9) & 0xFFFFFFFF or 1
        for _ in range(4):
            self.byte()

    def _next(self):
        x = self._state
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
        x ^= (x << 5) & 0xFFFFFFFF
        self._state = x
        return x

    def byte(self):
        """Return 0..255."""
        return (self._next() >> 11) & 0xFF

    def below(self, n):
        """Return 0..n-1."""
        return (self._next() >> 3) % n

    def pick(self, choices):
        """Return one of the choices."""
        return choices[self.below(len(choices))]

    def mask(self, density):
        """Return a byte whose bits are set with a chance of about (density + 1) / 8; density 0..7."""
        if density >= 7:
            return 0xFF
        m = 0
        for bit in range(8):
            if self.below(8) <= density:
                m |= 1 << bit
        return m


class NorFlash:
    """The chip, its contents in memory."""

    def __init__(self, size_bytes, personality="rp2", seed=1):
        self.size_bytes = size_bytes
        self.sectors = size_bytes // SECTOR_BYTES
        self.personality = personality
        self.violations: list[str] = []
        self.operations = 0
        self.erase_counts = [0] * self.sectors
        self.reset_counters()
        self.dead = False
        self.cut_id = ""
        self._rp2 = personality == "rp2"
        self._cut_operation = 0
        self._cut_model = ""
        self._cut_variant = 0
        self._weak: dict[int, int] = {}
        self._meant: dict[int, int] = {}  # address -> the byte that an interrupted program was writing
        self._forgot = False  # True: another process may have been interrupted, so such bytes are unknown
        self._weak_density = 3
        self._bad: dict[int, str] = {}
        self._rng = Random(seed)
        self._page = bytearray(PAGE_BYTES)
        self._open_cells()

    # --- the contents: FileNorFlash overrides this ---

    def _open_cells(self):
        self._cells = bytearray(self.size_bytes)
        raw_fill(self._cells, self.size_bytes, 0xFF, 0)

    def _load(self, at, buf, start, n):
        copy(buf, start, self._cells, at, n)

    def _save(self, at, buf, start, n):
        copy(self._cells, at, buf, start, n)

    def _save_erased(self, at):
        copy(self._cells, at, _BLANK_SECTOR, 0, SECTOR_BYTES)

    def _begin(self, kind, at, n, buf, start):
        """Write the intent and sleep the modelled time (FileNorFlash)."""

    def _end(self):
        """Clear the intent (FileNorFlash)."""

    # --- the block device ---

    def readblocks(self, n, buf, off=0):
        """Fill buf from block n, byte off."""
        if self.dead:
            raise PowerCut(self.cut_id)
        at = n * SECTOR_BYTES + off
        length = len(buf)
        self.reads += 1
        self.bytes_read += length
        if at < 0 or at + length > self.size_bytes:
            self._outside("read", at, length)
            for i in range(length):  # rp2: reads another part of the address space
                buf[i] = self._rng.byte()
            return
        self._load(at, buf, 0, length)
        if self._weak:
            self._randomise_weak(at, buf)

    def writeblocks(self, n, buf, off=None):
        """Program buf at block n, byte off; without off, erase the blocks first."""
        if self.dead:
            raise PowerCut(self.cut_id)
        at = n * SECTOR_BYTES + (off or 0)
        length = len(buf)
        if self._rp2:
            if isinstance(buf, bytes):
                self.violations.append("program from an immutable object, which may lie in flash")
            if at % PAGE_BYTES:
                self.violations.append("program at %d, not the start of a page" % at)
                at -= at % PAGE_BYTES
            if length % PAGE_BYTES:
                self.violations.append("program of %d bytes, not whole pages" % length)
                buf = self._with_garbage(buf)
                length = len(buf)
        if at < 0 or at + length > self.size_bytes:
            self._outside("program", at, length)
            return
        if off is None:
            for sector in range(n, n + (length + SECTOR_BYTES - 1) // SECTOR_BYTES):
                self._erase(sector)
        start = 0
        while start < length:
            part = min(length - start, PAGE_BYTES - (at + start) % PAGE_BYTES)
            self._program(at + start, buf, start, part)
            start += part

    def ioctl(self, op, arg):
        """Return the number of blocks (4) or the block size (5), or erase block `arg` (6); 1, 2 and 3 do nothing."""
        if self.dead:
            raise PowerCut(self.cut_id)
        if op == 4:
            return self.sectors
        if op == 5:
            return SECTOR_BYTES
        if op == 6:
            if arg < 0 or arg >= self.sectors:
                self._outside("erase", arg * SECTOR_BYTES, SECTOR_BYTES)
            else:
                self._erase(arg)
            return 0
        return 0 if op in (1, 2, 3) else None

    def info(self):
        """Return type, subtype, address, size, label, encrypted, like esp32.Partition.info()."""
        if self._rp2:
            raise AttributeError("info")
        return (1, 0x40, 0x200000, self.size_bytes, "simulated", False)

    # --- counters and contents, for tests ---

    def reset_counters(self):
        """Set the counters to 0, except `operations`, which identifies power cuts."""
        self.programs = self.erases = self.bytes_programmed = self.bytes_read = self.reads = 0
        for sector in range(self.sectors):
            self.erase_counts[sector] = 0

    @property
    def worst_ms(self):
        """The maximum time of all programs and erases, by the data sheet."""
        return self.programs * PROGRAM_MS[1] + self.erases * ERASE_MS[1]

    def peek(self, at, n):
        """Return n bytes of the cells: not counted, not decrypted, weak bits as 1."""
        buf = bytearray(n)
        self._load(at, buf, 0, n)
        return buf

    def poke(self, at, content):
        """Change cells directly, to plant damage: no rules, no counters; weak cells there become stable."""
        self._save(at, bytearray(content), 0, len(content))
        for address in range(at, at + len(content)):
            self._weak.pop(address, None)

    def snapshot(self):
        """Return contents and weak cells, for `restore`."""
        return (self.peek(0, self.size_bytes), dict(self._weak), self._weak_density, dict(self._meant))

    def restore(self, snapshot):
        """Restore a snapshot; the power is on and no cut is armed."""
        self._save(0, snapshot[0], 0, self.size_bytes)
        self._weak = dict(snapshot[1])
        self._weak_density = snapshot[2]
        self._meant = dict(snapshot[3])
        self.power_up()

    # --- faults ---

    def arm(self, operation, model, variant=0):
        """Cut the power at that operation (1: the first ever of this device)."""
        self._cut_operation = operation
        self._cut_model = model
        self._cut_variant = variant

    def power_up(self):
        """Switch the power on; the contents stay, and no cut is armed."""
        self.dead = False
        self._cut_operation = 0

    def set_bad(self, sector, kind="both"):
        """Make "erase", "program" or "both" fail on a sector; "" repairs it."""
        if kind:
            self._bad[sector] = kind
        else:
            self._bad.pop(sector, None)

    # --- inside the chip ---

    def _outside(self, what, at, length):
        if not self._rp2:
            raise OSError(-_ESP_ERR_INVALID_ARG if at < 0 or at > self.size_bytes else -_ESP_ERR_INVALID_SIZE)
        self.violations.append("%s of %d bytes at %d, outside the device" % (what, length, at))

    def _with_garbage(self, buf):
        padded = bytearray(len(buf) + PAGE_BYTES - len(buf) % PAGE_BYTES)
        for i in range(len(padded)):
            padded[i] = buf[i] if i < len(buf) else self._rng.byte()
        return padded

    def _program(self, at, buf, start, n):
        self.operations += 1
        self.programs += 1
        self.bytes_programmed += n
        page = self._page
        if self.operations == self._cut_operation:
            self._cut_program(at, buf, start, n)
        self._begin("P", at, n, buf, start)
        if self._bad and self._bad.get(at // SECTOR_BYTES) in ("program", "both"):
            self._stick(at, buf, start, n)
        else:
            self._load(at, page, 0, n)
            if is_blank(page, 0, n) and not (self._weak and self._weak_within(at, n)):
                self._save(at, buf, start, n)
            else:
                self._combine(at, buf, start, n)
        self._end()

    def _combine(self, at, buf, start, n):
        """Program over existing bytes: bits change from 1 to 0 only; a second value is a violation."""
        page = self._page
        reported = False
        for i in range(n):
            old = page[i]
            new = buf[start + i]
            if new == 0xFF:
                continue
            weak = self._weak.pop(at + i, 0) if self._weak else 0
            meant = self._meant.pop(at + i, -1) if self._meant else -1
            completes = meant == new or (self._forgot and not new & ~old & 0xFF)
            if not reported and not completes and (new & ~old & 0xFF or (old not in (0xFF, new) and not weak)):
                self.violations.append("byte %d programmed to %02x over %02x" % (at + i, new, old))
                reported = True
            page[i] = old & new
            if weak & new:  # bits that stay 1 stay weak
                self._weak[at + i] = weak & new
        self._save(at, page, 0, n)

    def _stick(self, at, buf, start, n):
        """Program only some of the bits: the sector is bad."""
        page = self._page
        self._load(at, page, 0, n)
        for i in range(n):
            page[i] &= buf[start + i] | self._rng.mask(2)
        self._save(at, page, 0, n)

    def _erase(self, sector):
        self.operations += 1
        self.erases += 1
        self.erase_counts[sector] += 1
        at = sector * SECTOR_BYTES
        if self.operations == self._cut_operation:
            self._cut_erase(at)
        self._begin("E", at, SECTOR_BYTES, None, 0)
        if self._bad and self._bad.get(sector) in ("erase", "both"):
            content = self.peek(at, SECTOR_BYTES)
            for i in range(SECTOR_BYTES):
                content[i] |= self._rng.mask(4)
            content[self._rng.below(SECTOR_BYTES)] &= 0xFE
            self._save(at, content, 0, SECTOR_BYTES)
        else:
            self._save_erased(at)
        if self._weak or self._meant:
            self._clear_weak(at, SECTOR_BYTES)
        self._end()

    def _weak_within(self, at, n):  # of its own, because a closure is allocated in each call of the function around it
        return any(at <= address < at + n for address in self._weak)

    def _clear_weak(self, at, n):
        for cells in (self._weak, self._meant):
            for address in [a for a in cells if at <= a < at + n]:
                del cells[address]

    def _randomise_weak(self, at, buf):
        """Give each weak bit in read bytes a random value."""
        n = len(buf)
        for address, weak in self._weak.items():
            if at <= address < at + n:
                i = address - at
                buf[i] = (buf[i] & ~weak & 0xFF) | (weak & self._rng.mask(self._weak_density))

    # --- power cuts ---

    def _cut_program(self, at, buf, start, n):
        self._rng = Random(self._cut_operation * 7919 + self._cut_variant)
        old = self.peek(at, n)
        wanted = bytearray(n)
        for i in range(n):
            wanted[i] = old[i] & buf[start + i]
            if wanted[i] != old[i]:
                self._meant[at + i] = wanted[i]
        self._torn(at, old, wanted)

    def _cut_erase(self, at):
        self._rng = Random(self._cut_operation * 7919 + self._cut_variant)
        old = self.peek(at, SECTOR_BYTES)
        wanted = bytearray(SECTOR_BYTES)
        raw_fill(wanted, SECTOR_BYTES, 0xFF, 0)
        if self._cut_model == "bits" and self._cut_variant % 7 >= 5:
            # Chips program a sector to 0 before the erase pulses: a torn erase may change bits from 1 to 0.
            for i in range(SECTOR_BYTES):
                old[i] = 0 if self._cut_variant % 7 == 5 else self._rng.byte()
        if self._cut_model != "nothing":
            self._clear_weak(at, SECTOR_BYTES)
        self._torn(at, old, wanted)

    def _torn(self, at, old, wanted):
        """Write a result between old and wanted, by the armed model, then raise PowerCut."""
        n = len(old)
        model, variant = self._cut_model, self._cut_variant
        rng = self._rng
        if model == "prefix":
            for i in range(variant % (n + 1)):
                old[i] = wanted[i]
        elif model == "bits":
            self._some_bits(old, wanted, variant)
        elif model in ("unreported", "weak"):
            copy(old, 0, wanted, 0, n) if model == "unreported" else self._weaken(at, old, wanted, variant)
        if model != "nothing":
            self._save(at, old, 0, n)
        self._weak_density = (3, 1, 5)[rng.below(3)]
        self.dead = True
        self.cut_id = "%d/%s/%d" % (self._cut_operation, model, variant)
        raise PowerCut(self.cut_id)

    def _changed(self, old, wanted):
        return array("H", (i for i in range(len(old)) if old[i] != wanted[i]))

    def _one_bit(self, byte):
        bits = [bit for bit in range(8) if byte >> bit & 1]
        return 1 << bits[self._rng.below(len(bits))]

    def _some_bits(self, old, wanted, variant):
        """Change a subset of the bits. variant % 7: 1 few, 2 most, 3 all but one, 4 only one, else about half."""
        kind = variant % 7
        rng = self._rng
        changed = self._changed(old, wanted)
        if kind >= 3 and kind < 5 and changed:
            which = changed[rng.below(len(changed))]
            bit = self._one_bit(old[which] ^ wanted[which])
            if kind == 3:
                copy(old, 0, wanted, 0, len(old))
            old[which] ^= bit
            return
        density = {1: 0, 2: 6}.get(kind, 3)
        for i in changed:
            old[i] ^= (old[i] ^ wanted[i]) & rng.mask(density)

    def _weaken(self, at, old, wanted, variant):
        """Change the bits; leave some weak. variant % 5: 0 one, 1 the last few, 2 the first few, 3 one in eight, 4 mixed."""
        kind = variant % 5
        rng = self._rng
        changed = self._changed(old, wanted)
        if not changed:
            return
        weak = {}
        if kind == 0:
            chosen = [changed[rng.below(len(changed))]]
        elif kind in (1, 2):
            near = changed[-8:] if kind == 1 else changed[:8]
            chosen = [near[rng.below(len(near))] for _ in range(3)]
        else:
            chosen = changed if kind == 4 else [i for i in changed if rng.below(8) == 0]
        for i in chosen:
            change = old[i] ^ wanted[i]
            weak[i] = change & rng.mask(3) if kind == 4 else self._one_bit(change)
        for i in changed:
            change = old[i] ^ wanted[i]
            if kind == 4:  # other bits may be changed or not
                change &= rng.mask(4) | weak[i]
            old[i] ^= change
        for i, mask in weak.items():
            if mask:
                old[i] |= mask
                self._weak[at + i] = mask


class FileNorFlash(NorFlash):
    """The chip with its contents in an unbuffered file; with an intent file, a kill can tear an operation.

    A new file is erased flash. `time_scale` multiplies the modelled time of an operation: 0 takes no time, 1.0 the chip's time.
    """

    def __init__(self, path, size_bytes, personality="rp2", seed=1, intent=None, time_scale=0.0):
        self.path = path
        self._intent_path = intent
        self._time_scale = time_scale
        super().__init__(size_bytes, personality, seed)

    def _open_cells(self):
        try:
            self._file = open(self.path, "r+b", buffering=0)
            self._forgot = True
        except OSError:
            with open(self.path, "wb") as new:
                for _ in range(self.size_bytes // PAGE_BYTES):
                    new.write(_BLANK_PAGE)
            self._file = open(self.path, "r+b", buffering=0)
        if self._file.seek(0, 2) != self.size_bytes:
            raise ValueError("%s: not %d bytes" % (self.path, self.size_bytes))
        self._intent = None
        self._intent_page = bytearray(PAGE_BYTES)
        if self._intent_path:
            open(self._intent_path, "ab").close()
            self._intent = open(self._intent_path, "r+b", buffering=0)

    def close(self):
        """Close the files."""
        self._file.close()
        if self._intent:
            self._intent.close()

    def _load(self, at, buf, start, n):
        self._file.seek(at)
        self._file.readinto(memoryview(buf)[start : start + n])

    def _save(self, at, buf, start, n):
        self._file.seek(at)
        self._file.write(memoryview(buf)[start : start + n])

    def _save_erased(self, at):
        self._file.seek(at)
        for _ in range(SECTOR_BYTES // PAGE_BYTES):
            self._file.write(_BLANK_PAGE)

    def _begin(self, kind, at, n, buf, start):
        if self._intent:
            self._put_intent(self._intent, kind, at, n, buf, start)
        if self._time_scale:
            sleep((PROGRAM_MS if kind == "P" else ERASE_MS)[0] / 1000 * self._time_scale)

    def _put_intent(self, intent, kind, at, n, buf, start):
        """Write the intent page by page: a board's heap has no room for two sectors."""
        intent.seek(1)
        head = at.to_bytes(4, "little") + n.to_bytes(4, "little")
        intent.write(head)
        crc = crc32(head)
        page = self._intent_page
        for offset in range(0, n, PAGE_BYTES):
            part = memoryview(page)[: min(PAGE_BYTES, n - offset)]
            self._load(at + offset, page, 0, len(part))
            intent.write(part)
            crc = crc32(part, crc)
        for offset in range(0, n, PAGE_BYTES):
            part = memoryview(_BLANK_PAGE)[: min(PAGE_BYTES, n - offset)]
            if buf is not None:
                part = memoryview(buf)[start + offset : start + offset + len(part)]
            intent.write(part)
            crc = crc32(part, crc)
        intent.write((crc & 0xFFFFFFFF).to_bytes(4, "little"))
        intent.seek(0)
        intent.write(kind.encode())  # last: this makes the intent valid

    def _end(self):
        if self._intent:
            self._intent.seek(0)
            self._intent.write(b"-")
