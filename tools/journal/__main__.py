"""`python -m tools.journal dump IMAGE`: show a journal as tables: records, their states, wear.

IMAGE is a file with the region's bytes, such as a dump of a partition, or a folder that `make backup` made. Without IMAGE, the
region is read from a board. Nothing is written: the states come from the real journal, mounted on a copy in memory.

Exit status: 0: a journal was shown; 1: there is no journal, or it does not mount; 2: the image could not be read.
"""

import argparse
import sys
from pathlib import Path

from tools.command import exit_status, named, number, parser_of
from tools.journal.image import from_board, from_file
from tools.journal.report import report


@named("dump")
def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("tools.journal", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    dump = commands.add_parser("dump", help="show a journal as tables", description=__doc__)
    dump.formatter_class = argparse.RawDescriptionHelpFormatter
    dump.add_argument("image", nargs="?", type=Path, help="the image file, or a backup")
    dump.add_argument("--board", metavar="PORT", default="auto", help="the board's port; auto: the only board")
    dump.add_argument("--sector-bytes", type=number(int, 1), default=4096, metavar="N", help="of IMAGE; default: 4096")
    dump.add_argument("--all", action="store_true", help="list finished records, too")
    options = parser.parse_args(arguments)
    if options.image and options.board != "auto":
        dump.error("give an image (IMAGE=) or a board's port (PORT=, --board), not both")
    size = options.sector_bytes
    content, size = (from_file(options.image, size), size) if options.image else from_board(options.board)
    text, found = report(content, size, everything=options.all)
    print(text)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
