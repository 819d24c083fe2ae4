"""The machine code that mpy-cross makes of `flashmqtt.fast` for the RP2040 runs on an emulated Cortex-M0+.

On x64 viper's int has 64 bits; here it has 32, as on the board. No firmware is needed: the test itself implements the calls of
the native code to MicroPython's table of functions. So the emulator runs exactly the code that a Pico runs.
"""

from __future__ import annotations

import random
import subprocess
import sys
from binascii import crc32
from pathlib import Path

import pytest

from tools.bootstrap import ROOT

pytest.importorskip("rp2040py", reason="rp2040py is not installed: no emulated Cortex-M0+")

NATIVE = ROOT / "firmware" / "flashmqtt" / "fast" / "native.py"
SRAM = 0x20000000
CODE, TABLES, STUBS, STACK, BUFFERS = SRAM, SRAM + 0x8000, SRAM + 0xA000, SRAM + 0x18000, SRAM + 0x20000
FROM_OBJ, TO_OBJ, SWAP_GLOBALS, LOAD_GLOBAL, FUNCTIONS = 3, 4, 5, 7, 50
RETURN = 60
NONE, FALSE, TRUE = 0x1000, 0x1008, 0x1010


class Mpy:
    """A compiled module: its constants, and the code of each native function."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 4
        assert content[:2] == b"M\x06"
        n_names, n_constants = self._number(), self._number()
        self.names = [self._name() for _ in range(n_names)]
        self.constants = [self._constant() for _ in range(n_constants)]
        self.codes: list[bytes] = []
        self._raw_code()

    def _number(self) -> int:
        value = 0
        while True:
            byte = self._content[self._at]
            self._at += 1
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value

    def _name(self) -> str:
        length = self._number()
        if length & 1:
            return f"static {length >> 1}"
        self._at += (length >> 1) + 1
        return self._content[self._at - (length >> 1) - 1 : self._at - 1].decode()

    def _constant(self) -> bytes | None:
        kind = self._content[self._at]
        self._at += 1
        if kind == 0:  # the table of functions
            return None
        assert kind == 6, kind  # bytes
        length = self._number()
        self._at += length + 1
        return self._content[self._at - length - 1 : self._at - 1]

    def _raw_code(self) -> None:
        head = self._number()
        kind, length = head & 3, head >> 3
        code = self._content[self._at : self._at + length]
        self._at += length
        if kind:
            assert kind == 2  # viper
            self._number()
            self.codes.append(code)
        if head & 4:
            for _ in range(self._number()):
                self._raw_code()


class Chip:
    """An emulated core with the module's code in its RAM."""

    def __init__(self, mpy: Mpy) -> None:
        from rp2040py.boards import BOARDS, build_rp2040_from_spec

        self.mcu = build_rp2040_from_spec(BOARDS["pico"])
        self.entries = []
        at = CODE
        for code in mpy.codes:
            self.entries.append(at)
            self.write(at, code)
            at += len(code) + 64 & ~63
        # A function object has a type and a context. A context has two words of the module, the names and the constants.
        self.function, context, names, constants, table = (TABLES + i * 0x200 for i in range(5))
        self.words(self.function, 0, context)
        self.words(context, 0, 0, names, constants)
        self.write(names, b"".join((0x100 + i).to_bytes(2, "little") for i in range(len(mpy.names))))
        self.polynomials = TABLES + 0xC00
        found = next(constant for constant in mpy.constants if constant)
        self.write(self.polynomials, found)
        self.words(constants, *(table if constant is None else self.polynomials for constant in mpy.constants))
        self.global_names = {0x100 + i: name for i, name in enumerate(mpy.names)}
        self.words(table, NONE, FALSE, TRUE, *(STUBS + 4 * i + 1 for i in range(3, FUNCTIONS)))
        for i in range(RETURN + 1):
            self.write(STUBS + 4 * i, b"\x70\x47\x00\xbf")  # bx lr; nop
        self.instructions = 0

    def write(self, at: int, content: bytes | bytearray) -> None:
        for i, byte in enumerate(content):
            self.mcu.write_uint8(at + i, byte)

    def read(self, at: int, n: int) -> bytes:
        return bytes(self.mcu.read_uint8(at + i) for i in range(n))

    def words(self, at: int, *values: int) -> None:
        for i, value in enumerate(values):
            self.mcu.write_uint32(at + 4 * i, value & 0xFFFFFFFF)

    def call(self, index: int, *arguments: int) -> int:
        """Call the index-th native function; integers below 2^28 are numbers, others addresses of buffers."""
        core = self.mcu.core
        objects = [a if a >= SRAM else (a << 1 | 1) & 0xFFFFFFFF for a in arguments]
        self.words(STACK + 0x1000, *objects)
        for i, value in enumerate((self.function, len(arguments), 0, STACK + 0x1000)):
            core.registers[i] = value
        core.sp = STACK
        core.lr = STUBS + 4 * RETURN + 1
        core.pc = self.entries[index]
        start = self.instructions
        while core.pc != STUBS + 4 * RETURN:
            if STUBS <= core.pc < STUBS + 4 * FUNCTIONS and core.pc % 4 == 0:
                core.registers[0] = self._answer((core.pc - STUBS) // 4, core.registers)
            core.execute_instruction()
            self.instructions += 1
            assert self.instructions - start < 2_000_000
        return core.registers[0]

    def _answer(self, which: int, registers) -> int:
        first, second = registers[0], registers[1]
        if which == FROM_OBJ:  # converts a small integer, or returns a buffer's address
            if (second in (2, 3) and first < SRAM) or first & 1:
                return (first >> 1) - (1 << 31 if first >> 31 else 0) & 0xFFFFFFFF
            return first
        if which == TO_OBJ:
            return (TRUE if first else FALSE) if second == 1 else (first << 1 | 1) & 0xFFFFFFFF
        if which == SWAP_GLOBALS:
            return first
        if which == LOAD_GLOBAL:
            name = self.global_names[first]
            if name == "_TABLE":
                return self.polynomials
            raise AssertionError(f"the code loads the unexpected global {name}")
        raise AssertionError(f"the code calls the unexpected function {which} of the table")


@pytest.fixture(scope="module")
def chip(tmp_path_factory: pytest.TempPathFactory) -> Chip:
    out = tmp_path_factory.mktemp("mpy") / "native.mpy"
    subprocess.run(
        [str(Path(sys.executable).parent / "mpy-cross"), "-march=armv6m", "-o", str(out), str(NATIVE)], check=True
    )
    return Chip(Mpy(out.read_bytes()))


COPY, RUN, FILL, CRC = range(4)  # the order of the functions in the module


def _crc(chip: Chip, start: int, end: int, at: int, seed: int, put: int) -> int:
    return chip.call(CRC, BUFFERS, seed, end - start, start, at, put)


@pytest.mark.req("B1", "S4")
def test_crc_on_the_chip_equals_zlib(chip: Chip) -> None:
    rng = random.Random(3)
    for n in (0, 1, 2, 3, 12, 63, 100, 224):
        for seed in (0, 1, 0xFFFF, (1 << 28) - 1):
            content = bytearray(rng.randbytes(256))
            chip.write(BUFFERS, content)
            assert _crc(chip, 5, 5 + n, 240, seed, 1) == TRUE
            content[240:244] = crc32(content[5 : 5 + n], seed).to_bytes(4, "little")
            assert chip.read(BUFFERS, 256) == content
            assert _crc(chip, 5, 5 + n, 240, seed, 0) == TRUE
            bit = rng.randrange(32)
            chip.write(BUFFERS + 240 + bit // 8, bytes([content[240 + bit // 8] ^ 1 << bit % 8]))
            assert _crc(chip, 5, 5 + n, 240, seed, 0) == FALSE


@pytest.mark.req("B1", "S4")
def test_copy_and_fill_on_the_chip_are_correct(chip: Chip) -> None:
    content = bytearray(range(64))
    for at in (0, 1, 4, 7, 20):
        for start in (0, 2, 7, 8, 21):
            for n in (0, 1, 5, 16):
                chip.write(BUFFERS, content)
                chip.call(COPY, BUFFERS, BUFFERS, n, at, start)
                wanted = bytearray(content)
                wanted[at : at + n] = content[start : start + n]
                assert chip.read(BUFFERS, 64) == wanted
    for start, end, value in ((3, 60, 0xFF), (4, 61, 0x5A), (8, 8, 0)):
        chip.write(BUFFERS, content)
        chip.call(FILL, BUFFERS, end - start, value, start)
        assert chip.read(BUFFERS, 64) == content[:start] + bytes([value]) * (end - start) + content[end:]


@pytest.mark.req("B1", "S4")
def test_compare_and_overlay_on_the_chip_are_correct(chip: Chip) -> None:
    rng = random.Random(5)
    other = BUFFERS + 0x100
    for _ in range(120):
        at, start, n = rng.randrange(8), rng.randrange(8), rng.randrange(20)
        old = bytearray(rng.choice((0xFF, 0xFF, 0x0F, 0x12)) for _ in range(32))
        new = bytearray(rng.choice((0xFF, 0xFF, 0xFF, 0x0F)) for _ in range(32))
        if rng.random() < 0.3:
            new[start : start + n] = old[at : at + n]
        chip.write(BUFFERS, old)
        chip.write(other, new)
        a, b = old[at : at + n], new[start : start + n]
        assert chip.call(RUN, BUFFERS, other, n, at, start, 0) == (TRUE if a == b else FALSE)
        allowed = all(x == y or 0xFF in (x, y) for x, y in zip(a, b, strict=True))
        assert chip.call(RUN, BUFFERS, other, n, at, start, 1) == (TRUE if allowed else FALSE)
        if allowed:
            old[at : at + n] = bytes(x & y for x, y in zip(a, b, strict=True))
            assert chip.read(BUFFERS, 32) == old


@pytest.mark.req("B1")
def test_code_for_a_page_is_much_faster_than_its_program(chip: Chip) -> None:
    """Assumes 1.3 cycles per instruction at 125 MHz. The chip needs 0.4 ms to program a page."""
    chip.write(BUFFERS, b"\xff" * 1024)
    for most_us, arguments in (
        (70, (CRC, BUFFERS, 1, 112, 0, 120, 1)),
        (15, (COPY, BUFFERS + 512, BUFFERS, 100, 0, 0)),
        (15, (FILL, BUFFERS, 256, 0xFF, 0)),
        (30, (RUN, BUFFERS + 512, BUFFERS + 256, 256, 0, 0, 0)),
    ):
        before = chip.instructions
        chip.call(*arguments)
        assert (chip.instructions - before) * 1.3 / 125 < most_us, arguments
