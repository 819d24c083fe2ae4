"""`python -m tools.journal dump IMAGE`: what is in a journal, as tables: records, their states, wear.

IMAGE is the region's bytes (a `flash.bin` of the virtual board, a dump of a partition), or with --pinned a whole chip's
littlefs storage in which the journal lies in pinned files. With --board the region is read from a board over mpremote instead,
and --save keeps it. Nothing is written anywhere else: states are asked of the real journal, mounted on a copy in memory.

Exit status: 0 a journal was shown; 1 there is none, or it does not mount; 2 the image could not be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.journal.image import ImageUnreadable, from_board, from_file, from_pinned_files
from tools.journal.report import report


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.journal", description=(__doc__ or "").split("\n\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    dump = commands.add_parser("dump", help="show a journal as tables", description=__doc__)
    dump.formatter_class = argparse.RawDescriptionHelpFormatter
    dump.add_argument("image", nargs="?", type=Path, help="the file")
    dump.add_argument("--board", metavar="PORT", help="read it from the board at this port; auto: the first one found")
    dump.add_argument("--save", type=Path, metavar="FILE", help="keep what --board read")
    dump.add_argument(
        "--pinned", metavar="DIRECTORY", help="IMAGE is a littlefs with pinned files there, such as /journal"
    )
    dump.add_argument("--first", type=int, default=0, metavar="SECTOR", help="where the region begins in IMAGE")
    dump.add_argument(
        "--sectors", type=int, default=0, metavar="N", help="how many sectors it has (default: to the end)"
    )
    dump.add_argument("--sector-bytes", type=int, default=4096, metavar="N", help="default: 4096")
    dump.add_argument("--all", action="store_true", help="list finished records too, not only what is alive")
    dump.add_argument(
        "--width", type=int, default=60, metavar="N", help="characters of each record's content (default 60)"
    )
    options = parser.parse_args(arguments)
    if (options.image is None) == (options.board is None):
        dump.error("either IMAGE or --board")
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
    sys.exit(main())
