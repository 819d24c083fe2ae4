"""`python -m tools.journal dump IMAGE`: show a journal as tables: records, their states, wear.

IMAGE is a file with the region's bytes: a `flash.bin` of the virtual board or a dump of a partition. With --pinned, IMAGE is a
littlefs storage with the journal in pinned files. With --board, the region is read from a board over mpremote instead; --save
writes it to a file. Nothing else is written: the states come from the real journal, mounted on a copy in memory.

Exit status: 0: a journal was shown; 1: there is no journal, or it does not mount; 2: the image could not be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.command import ended, number
from tools.journal.image import ImageUnreadable, from_board, from_file, from_pinned_files
from tools.journal.report import report


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.journal", description=(__doc__ or "").split("\n\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    dump = commands.add_parser("dump", help="show a journal as tables", description=__doc__)
    dump.formatter_class = argparse.RawDescriptionHelpFormatter
    dump.add_argument("image", nargs="?", type=Path, help="the image file")
    dump.add_argument(
        "--board", metavar="PORT", help="read the journal from the board at this port; auto: the first board found"
    )
    dump.add_argument("--save", type=Path, metavar="FILE", help="write the bytes read with --board to a file")
    dump.add_argument(
        "--pinned", metavar="DIRECTORY", help="IMAGE is a littlefs with pinned files in DIRECTORY, such as /journal"
    )
    dump.add_argument(
        "--first", type=number(int, 0), default=0, metavar="SECTOR", help="first sector of the region in IMAGE"
    )
    dump.add_argument(
        "--sectors", type=number(int, 0), default=0, metavar="N", help="number of sectors (default: to the end)"
    )
    dump.add_argument("--sector-bytes", type=number(int, 1), default=4096, metavar="N", help="default: 4096")
    dump.add_argument("--all", action="store_true", help="list finished records, too")
    dump.add_argument(
        "--width",
        type=number(int, 1),
        default=60,
        metavar="N",
        help="characters to show of each record's content (default: 60)",
    )
    options = parser.parse_args(arguments)
    if (options.image is None) == (options.board is None):
        dump.error("give either IMAGE or --board")
    try:
        if options.board:
            content, size = from_board(options.board)
            if options.save:
                options.save.write_bytes(content)
        elif options.pinned:
            content, size = from_pinned_files(options.image, options.pinned, options.sector_bytes), options.sector_bytes
        else:
            content, size = (
                from_file(options.image, options.first, options.sectors, options.sector_bytes),
                options.sector_bytes,
            )
    except ImageUnreadable as error:
        print(error, file=sys.stderr)
        return 2
    text, found = report(content, size, everything=options.all, width=options.width)
    print(text)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(ended(main, stopped="stopped"))
