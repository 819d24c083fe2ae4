"""A board's ROMFS partition, if its image has one. Modules in ROMFS run in place, without a copy in the heap.

MicroPython (1.25 or newer) mounts the partition at /rom, and imports from /rom and /rom/lib: after "/", before /lib. The whole
partition is rewritten. Its first block is erased first and written last, so an interrupted write leaves nothing to mount.
"""

import hashlib
from collections.abc import Callable, Mapping

from mpremote.romfs import VfsRomWriter

from tools.command import Failure
from tools.deploy.link import CHUNK, Link

FOLDERS = ("/rom/lib/flashmqtt/", "/rom/flashmqtt/", "/rom/app/")  # our folders in ROMFS
_SOURCES = ("/lib/flashmqtt/", "/app/")  # the files that ROMFS gets, with the same path below /rom

_SIZE = """
try:
    import vfs
    d = vfs.rom_ioctl(2, 0) if vfs.rom_ioctl(1) > 0 else None
    blocks = d.ioctl(4, 0), d.ioctl(5, 0)
    try: vfs.mount(vfs.VfsRom(d), '/rom')
    except OSError: pass
    print(blocks)
except (ImportError, AttributeError):
    print((0, 0))
"""
_START = """
import vfs, hashlib
try: vfs.umount('/rom')
except OSError: pass
d = vfs.rom_ioctl(2, 0)
b = bytearray(d.ioctl(5, 0))
d.ioctl(6, 0)
"""
_HASH = """
h = hashlib.sha256()
for n in range(%d):
    d.readblocks(n, b)
    h.update(b)
print(h.digest().hex())
"""


def size(link: Link) -> tuple[int, int]:
    """Return the partition's number of blocks and block size, or zeros if there is none. Mount the partition if possible."""
    return link.literal(_SIZE)


def part(image: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files for ROMFS out of a board's files: path in ROMFS -> content."""
    return {"/rom" + path: content for path, content in image.items() if path.startswith(_SOURCES)}


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a ROMFS image with these files: path below /rom -> content."""
    writer = VfsRomWriter()
    open_folders: list[str] = []
    for path in sorted(files, key=lambda path: path.split("/")):
        *folders, name = path.split("/")[2:]
        while open_folders != folders[: len(open_folders)]:
            writer.closedir()
            open_folders.pop()
        for folder in folders[len(open_folders) :]:
            writer.opendir(folder)
            open_folders.append(folder)
        writer.mkfile(name, files[path])
    for _ in open_folders:
        writer.closedir()
    return bytes(writer.finalise())


def write(link: Link, content: bytes, block_bytes: int, step: Callable[[int], object] = lambda _: None) -> None:
    """Write the partition and check its hash. The next reset mounts it.

    Raises:
        Failure: the hash differs, or the board does not answer.
    """
    content += bytes(-len(content) % block_bytes)
    blocks = len(content) // block_bytes
    link.run(_START)
    for block in (*range(1, blocks), 0):
        start = block * block_bytes
        for at in range(0, block_bytes, CHUNK):
            piece = content[start + at : start + min(at + CHUNK, block_bytes)]
            link.run(f"b[{at}:{at + len(piece)}] = {piece!r}")
        link.run(f"d.writeblocks({block}, b)")  # erases the block before writing
        step(block_bytes)
    if link.run(_HASH % blocks, timeout_s=60).strip() != hashlib.sha256(content).hexdigest():
        raise Failure("ROMFS did not arrive as it was sent; run the command again.")
