"""`python -m tools.deploy {deploy,monitor,backup,wipe}`: see `make deploy`.

A deployment may be interrupted at any point and run again. While the file `/deploying` exists on the board, its main.py
prints a message and leaves the REPL free. Every file is written under a temporary name, compared by its hash, and renamed;
main.py is the last. So a board with half of the files starts to its REPL, never into half a program.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from app.configuration import ConfigurationError
from tools.bootstrap import ROOT
from tools.command import Failure, exit_status, folder, named, number, parser_of, progress_bar, report_line
from tools.deploy import build, certificates, configuration, ports, romfs
from tools.deploy.image import OLDEST, digest, existing, texts
from tools.deploy.link import SHA256, BoardSaid, Link
from tools.deploy.trace import explained

Result = TypeVar("Result")
DEPLOYING = "/deploying"
OURS = ("/lib/flashmqtt", "/app", "/tls")
SINGLE = ("/main.py", "/board.mpy", "/config.json", "/state.json")
OF_APPLICATION = ("app", "tls", "config.json", "state.json")  # names that a program of the user's own may have, too
RENAMED = ("main.py", "board.py", *OF_APPLICATION)  # if they are the user's: to NAME.before
UNFINISHED = tuple(path + ".new" for path in SINGLE)  # incomplete copies
MARK = '"""flashmqtt: '  # in the first line of our main.py
CONTRACT = "boards/board.pyi"  # in the first line of our board.py
IN_THE_WAY = ("flashmqtt", "flashmqtt.py", "flashmqtt.mpy", "board")
DELIVERY_S = 90
# How the lines begin that say why nothing is delivered.
REASONS = ("configuration:", "deployment:", "journal:", "network:", "broker:", "refused ")
REPL = 'Type "help()" for more information.'  # the program has ended
PAUSE = re.compile(r"broker: connecting in ([\d.]+) s")  # the first attempt after a restart that follows an outage
WATCHDOG_S = 10.0  # timeout while a watchdog may reset the board; a Pico W's watchdog has at most 8 s
OPEN_S = 2.0  # after a board is plugged in, its port may belong to root, or be in use by ModemManager, for a moment
SPARE_BYTES = 16384
LAST_LINES = 20  # of the board's output, shown if nothing was delivered
SECTOR_BYTES = 4096

# littlefs counts a folder's blocks twice: the free ones can be below 0, which MicroPython's 64-bit port returns as 2^32 - n.
_PROBE = """
import sys, os
s = os.statvfs('/')
i = sys.implementation
try:
 from flashmqtt_image import DIGEST as d
except ImportError:
 d = ''
print(repr({'platform': sys.platform, 'machine': getattr(i, '_machine', ''), 'version': tuple(i.version[:3]), 'name': i.name,
 'mpy': getattr(i, '_mpy', 0), 'free': s[0] * (s[3] if s[3] <= s[2] else s[3] - (1 << 32)),
 'files': os.listdir('/'), 'frozen': d}))
"""
# `below` yields everything below a path, each with whether it is a folder; a folder after what is in it.
_BELOW = """
import os
def below(p):
    try: t = os.stat(p)[0] & 0x4000
    except OSError: return
    if t:
        for n in os.listdir(p): yield from below(p + '/' + n)
    yield p, t
"""
_TREE = f"""{_BELOW}{SHA256}
for r in %r:
    for p, t in below(r):
        if not t: print(p, sha256(p))
"""
# `with`: otherwise the garbage collector closes the file, perhaps in the middle of the file system's next write.
_FIRST_LINE = """
try:
    with open(%r, 'rb') as f: print(f.readline(200))
except OSError: pass
"""
# MicroPython would import an empty folder /app instead of /rom/app.
_REMOVE_EMPTY = f"""{_BELOW}
for r in %r:
    for p, t in below(r):
        try:
            if t: os.rmdir(p)
        except OSError: pass
"""
_WIPE = f"""{_BELOW}
for r in %r:
    for p, t in below(r):
        if t:
            os.rmdir(p)
        else:
            os.remove(p)
            print(p)
"""
_RENAME = """
import os
there = os.listdir('/')
for a, b in %r:
    if a in there and b not in there: os.rename('/' + a, '/' + b)
"""
_UNMARK = f"""
import os
try: os.remove({DEPLOYING!r})
except OSError: pass
"""
_JOURNAL = """
import sys
sys.path.append('/lib')
import board
r = board.journal_region(%d)
print(repr((r.sectors, r.sector_bytes, type(r).__name__)))
"""


def set_aside(names: Iterable[str]) -> str:
    """Return a script that adds `.before` to the names of files of the user's own."""
    return _RENAME % [(name, f"{name}.before") for name in names]


def put_back(names: Iterable[str]) -> str:
    """Return a script that undoes `set_aside`."""
    return _RENAME % [(f"{name}.before", name) for name in names]


def probe(link: Link) -> dict:
    """Return the board's platform, version, free space and files.

    If a command was interrupted while it kept a program of the user's own from starting, the program gets its names back.
    """
    found = retry_after_reset(link, lambda: link.literal(_PROBE, timeout_s=WATCHDOG_S))
    if "main.py.before" in found["files"] and not {"main.py", "board.mpy", "deploying"}.intersection(found["files"]):
        retry_after_reset(link, lambda: link.run(put_back(RENAMED), WATCHDOG_S))
        return probe(link)
    return found


def which_board(found: dict, board: str, path: str) -> str:
    """Return the board's name in `build.BOARDS`, "" for another one, and check that it is the requested one.

    Args:
        found: the result of `probe`.
        board: the requested board: a name in `build.BOARDS`, "auto", or "" for any, with a board.py of the user's own.
        path: the port, for messages.

    Raises:
        Failure: the board is another one or unknown, or its MicroPython is too old or is another Python.
    """
    if found["name"] != "micropython":
        raise Failure(f"{path}: the board runs {found['name']}, not MicroPython: see boards/*/README.md.")
    machine, version = found["machine"], ".".join(map(str, found["version"]))
    kinds = {(port, ending): name for name, (port, _, ending, _) in build.BOARDS.items()}
    right = next(
        (name for (port, end), name in kinds.items() if port == found["platform"] and machine.endswith(end)), ""
    )
    if board and (not right or board not in ("auto", right)):
        kind = "a known board" if board == "auto" else f"{'an' if board.startswith('e') else 'a'} {board}"
        known = f"Known boards: {', '.join(build.BOARDS)}; boards/README.md explains how to add one."
        raise Failure(f"{path}: the board is a {machine}, not {kind}. {f'Use BOARD={right}.' if right else known}")
    if found["version"][:2] < OLDEST:
        raise Failure(
            f"MicroPython {version} on {path} is too old: {OLDEST[0]}.{OLDEST[1]} or newer is needed "
            "(boards/*/README.md explain how to install it)."
        )
    return right if board else ""


def present(link: Link, roots: tuple[str, ...] = (*OURS, *SINGLE), timeout_s: float = 60) -> dict[str, str]:
    """Return the board's files below these roots, by default flashmqtt's: path -> SHA-256 in hex."""
    listed = link.run(_TREE % (roots,), timeout_s)
    return dict(line.rsplit(" ", 1) for line in listed.splitlines() if line.startswith("/"))


def files_of(found: dict, board: str, march: str, arguments: argparse.Namespace) -> dict[str, bytes]:
    """Return the files for this board: all, or only main.py if the board's image has the others frozen.

    Raises:
        Failure: the image has another version frozen. Files can't replace it: MicroPython imports frozen modules first.
    """
    if not found["frozen"]:
        return dict(build.image(board, march, arguments.plain, arguments.board_file))
    if arguments.board_file or found["frozen"] != digest(texts(board, bool(march), application=True)):
        raise Failure(
            "The board's image has another version of flashmqtt frozen, or not this application; files can't replace it. "
            f"Rebuild the image (make image BOARD={board or '...'} APP=1, boards/IMAGES.md), or install stock MicroPython."
        )
    report_line("frozen", "the library, the application and board.py are in the board's image")
    return {"/main.py": (ROOT / "firmware" / "main.py").read_bytes()}


def for_rom(link: Link, image: dict[str, bytes]) -> tuple[dict[str, bytes], bytes | None, int]:
    """Split a board's files between its ROMFS partition, if it has one, and its file system.

    Returns:
        The files for the file system; the new ROMFS, or None if it does not change; the size of its blocks in bytes.
    """
    blocks, block_bytes = romfs.size(link)
    if not blocks:
        return image, None, 0
    there = present(link, ("/rom",))
    ours = romfs.part(image)
    kept = {path: link.get(path) for path in there if not path.startswith(romfs.FOLDERS)}
    content = romfs.packed({**kept, **ours})
    if ours and len(content) > blocks * block_bytes:
        room = blocks * block_bytes // 1024
        report_line(
            "romfs", f"{-(-len(content) // 1024)} KB are needed, the partition has {room}: the modules stay files"
        )
        ours, content = {}, romfs.packed(kept)
    old = {path: there[path] for path in there if path not in kept}
    changed = old != {path: sha256(module).hexdigest() for path, module in ours.items()}
    if ours:
        what = f"{len(content) / 1000:.1f} KB to write" if changed else "as it is"
        report_line("romfs", f"{len(ours)} modules of the library and the application; {what}")
    files = {path: module for path, module in image.items() if "/rom" + path not in ours}
    return files, content if changed else None, block_bytes


def write_rom(link: Link, content: bytes, block_bytes: int) -> None:
    """Write the ROMFS partition, with a progress bar."""
    with progress_bar(total=len(content), unit="B", unit_scale=True) as bar:
        bar.set_postfix_str("ROMFS", refresh=False)
        romfs.write(link, content, block_bytes, bar.update)
    report_line("romfs", f"{len(content) / 1000:.1f} KB written, compared by SHA-256")


def plan(image: dict[str, bytes], there: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the paths to copy, main.py last, and the paths of flashmqtt's files to remove."""
    copy = [path for path, content in image.items() if there.get(path) != sha256(content).hexdigest()]
    copy.sort(key=lambda path: (path == "/main.py", path))
    remove = [path for path in there if path not in image and path.startswith(tuple(folder + "/" for folder in OURS))]
    return copy, remove


def ask(question: str, yes: bool) -> bool:
    """Ask the user; return whether the answer is yes."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise Failure(f"{question} There is no terminal to ask: to agree, run this again with YES=1.")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        return False


def retry_after_reset(link: Link, act: Callable[[], Result]) -> Result:
    """Call `act`; repeat it up to twice if the board's watchdog resets the board meanwhile, or if the board has no memory left.

    The program that ran before may still hold the memory.
    """
    for last in (False, False, True):
        try:
            return act()
        except BoardSaid as said:
            if last or "MemoryError" not in str(said):
                raise
            link.stop(soft_reset=True)
        except Failure:
            if last:
                raise
            link.close()
            link.reopen()
            link.stop()
    raise AssertionError


def stop_program(link: Link, found: dict) -> None:
    """Reset the board without starting main.py: so no watchdog of a running program resets the board later.

    The next reset starts main.py, however this command ends; but not if a deployment is unfinished.
    """
    if "main.py" not in found["files"]:
        return
    if MARK in retry_after_reset(link, lambda: link.run(_FIRST_LINE % "/main.py", WATCHDOG_S)):
        retry_after_reset(link, lambda: link.create(DEPLOYING, WATCHDOG_S))
    else:
        retry_after_reset(link, lambda: link.run(set_aside(["main.py"]), WATCHDOG_S))
    link.reset()
    link.stop()
    allow_start(link, found)


def allow_start(link: Link, found: dict) -> None:
    """Undo what `stop_program` did to keep main.py from starting."""
    if DEPLOYING.lstrip("/") not in found["files"]:
        link.run(_UNMARK)
    if "main.py" in found["files"]:
        link.run(put_back(["main.py"]))


@contextlib.contextmanager
def restarted_on_error(link: Link, found: dict) -> Iterator[None]:
    """Start the board's program again if the block fails, or if Ctrl-C or the end of the terminal ends it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Failure):
            link.stop()  # it may still run what it was sent
            allow_start(link, found)
            link.reset()
        raise


@contextlib.contextmanager
def stopped(port: str) -> Iterator[tuple[Link, dict]]:
    """Yield the board at a port, its program stopped, and the result of `probe`; start the program again at the end."""
    with Link(ports.find(port)) as link:
        found = probe(link)
        with restarted_on_error(link, found):
            stop_program(link, found)
            yield link, found
            link.reset()


def check_imports(found: dict) -> None:
    """Check that MicroPython would import our files.

    Raises:
        Failure: it would import another file or folder instead.
    """
    for name in IN_THE_WAY:
        if name in found["files"]:
            raise Failure(
                f"The board has a /{name} that MicroPython would import instead of the deployed one. Remove it "
                f"(.venv/bin/mpremote rm -r :{name}), and run the command again."
            )


def foreign_files(link: Link, found: dict) -> list[str]:
    """Return those names in "/" that flashmqtt uses, and that belong to another program: files or folders."""
    files = found["files"]
    signs = {name: sign for name, sign in (("main.py", MARK), ("board.py", CONTRACT)) if name in files}
    foreign = [name for name, sign in signs.items() if sign not in link.run(_FIRST_LINE % f"/{name}")]
    is_ours = "main.py" not in foreign and ("main.py" in files or DEPLOYING.lstrip("/") in files)
    if not is_ours and not link.run(_FIRST_LINE % "/app/application.mpy"):
        foreign += [name for name in OF_APPLICATION if name in files]
    return foreign


def deploy(arguments: argparse.Namespace) -> None:
    """Install the application on a board and wait for its first delivered reading."""
    config, tls = configuration.load(arguments.config)
    for warning in certificates.warnings(config, tls):
        report_line("warning", warning)
    wanted = {"/config.json": configuration.compact(config)}
    wanted |= certificates.files(tls, config["broker"], config["port"])
    path = ports.find(arguments.port)
    with Link(path) as link:
        found = probe(link)
        version = ".".join(map(str, found["version"]))
        report_line("board", f"{found['machine']}, MicroPython {version}, on {path}")
        board = which_board(found, "" if arguments.board_file else arguments.board, path)
        march = build.architecture(found["mpy"])
        check_imports(found)
        foreign = retry_after_reset(link, lambda: foreign_files(link, found))
        for name in foreign:
            if f"{name}.before" in found["files"]:
                raise Failure(
                    f"The board has a {name} that is not flashmqtt's, and {name}.before from an earlier time. Copy what you want "
                    f"to keep to this machine (.venv/bin/mpremote cp -r :{name}.before .), remove one of the two "
                    f"(.venv/bin/mpremote rm -r :{name}.before), and run the command again."
                )
        with restarted_on_error(link, found):
            stop_program(link, found)  # at once: a running watchdog resets the board within seconds
            image = {**files_of(found, board, march, arguments), **wanted}
            image, rom, rom_block = for_rom(link, image)
            there = {path: content for path, content in present(link).items() if path.split("/")[1] not in foreign}
            copy, remove = plan(image, there)
            if "/board.mpy" in there and "/board.mpy" not in image:
                remove.append("/board.mpy")  # MicroPython would import it instead of the frozen one
            if "board.py" in found["files"] and "board.py" not in foreign:
                remove.append("/board.py")  # MicroPython would import it instead of /board.mpy
            size = sum(len(image[name]) for name in copy)
            new = sum(name not in there for name in copy)
            changed, unchanged = len(copy) - new, len(image) - len(copy)
            counts = f"{new} new, {changed} changed, {unchanged} as they are"
            report_line("files", f"{len(image)}: {counts}; {size / 1000:.1f} KB to copy")
            replaced = [name for name in copy if name in there]
            found["free"] += freed_bytes(link, remove + replaced)
            sizes = {name: _blocks(len(image[name])) for name in copy}
            # While a file is replaced, both are there.
            check_room(found, config, sum(sizes.values()) + max((sizes[name] for name in replaced), default=0))
            if foreign and not arguments.dry_run:
                own = f"The board has files that are not flashmqtt's: {', '.join(foreign)}."
                if not ask(f"{own} Add .before to their names and continue?", arguments.yes):
                    raise Failure("Stopped; nothing was changed.")
            if arguments.dry_run:
                for name in foreign:
                    report_line("", f"rename /{name} to /{name}.before")
                for name in copy:
                    report_line("", f"{'copy' if name not in there else 'replace'} {name} ({len(image[name])} bytes)")
                for name in remove:
                    report_line("", f"remove {name}")
                if rom is not None:
                    report_line("", f"write ROMFS ({len(rom)} bytes)")
                report_line("config", json.dumps(configuration.shown(config), ensure_ascii=False))
                report_line("dry run", "nothing was changed")
                link.reset()
                return
        link.run(set_aside(foreign))
        for name in foreign:
            report_line("renamed", f"/{name} to /{name}.before; make wipe restores it")
        if copy or remove or rom is not None:
            link.create(DEPLOYING)
        if rom is not None:
            write_rom(link, rom, rom_block)
            link.reset()  # mounts ROMFS
            link.stop()
        if copy or remove:
            copy_files(link, image, copy, remove, size)
        link.run(_REMOVE_EMPTY % (OURS,))
        prepare_journal(link, config["sectors"])
        started = time.monotonic()
        link.run(_UNMARK)
        link.reset()
        wait_for_delivery(link, started, arguments.timeout, arguments.board_file)


def _blocks(size: int) -> int:
    """Return the bytes of a file's own blocks. littlefs keeps small files in the folder's blocks."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES if size > SECTOR_BYTES // 8 else 0


def freed_bytes(link: Link, remove: list[str]) -> int:
    """Return the bytes that removing these files frees."""
    return sum(map(_blocks, link.literal(f"import os\nprint([os.stat(p)[6] for p in {remove!r}])")))


def check_room(found: dict, config: dict, needed: int) -> None:
    """Check that the files and the journal fit.

    Raises:
        Failure: they do not.
    """
    journal = 0 if "journal" in found["files"] else config["sectors"] * SECTOR_BYTES
    needed += SPARE_BYTES + journal
    if needed > found["free"]:
        raise Failure(
            f"The board's file system is too full: {needed // 1024} KB are needed"
            + (f", {journal // 1024} KB of them for the journal" if journal else "")
            + f"; {max(0, found['free']) // 1024} KB are free. Remove files"
            + (", or make journal.kib smaller." if journal else ".")
        )


def copy_files(link: Link, image: dict[str, bytes], copy: list[str], remove: list[str], size: int) -> None:
    """Remove and copy files, with a progress bar."""
    for name in remove:
        link.run(f"import os\nos.remove({name!r})")
    with progress_bar(total=size, unit="B", unit_scale=True) as bar:
        for name in copy:
            bar.set_postfix_str(name, refresh=False)
            link.put(name, image[name], bar.update)
    removed = f"; old ones removed: {len(remove)}" if remove else ""
    report_line("copied", f"files: {len(copy)}, compared by SHA-256{removed}")


def prepare_journal(link: Link, sectors: int) -> None:
    """Allocate the journal's flash, if it is not there. An existing journal keeps its messages."""
    try:
        count, size, kind = link.literal(_JOURNAL % sectors, timeout_s=120)
    except BoardSaid as error:
        where = 'firmware/TROUBLESHOOTING.md, "The store"; boards/check.py checks a board.py of your own'
        raise Failure(f"The journal can't be allocated: {error} ({where})") from error
    pinned = kind == "PinnedFiles"
    where = "pinned in the file system" if pinned else "in its own partition"
    report_line("journal", f"{count * size // 1024} KB {where}")
    if pinned and count != sectors:
        wanted = f"{sectors * size // 1024} KB, as in config.toml"
        report_line("", f"made earlier; for {wanted}: make wipe JOURNAL=1, then make deploy")
        report_line("", "(this deletes messages that are not yet delivered)")


def _numbers(words: list[str]) -> dict[str, int]:
    """Return the numbers of a line with words like `stored=3`."""
    return {pair.group(1): int(pair.group(2)) for word in words if (pair := re.fullmatch(r"(\w+)=(\d+)", word))}


def _all_delivered(numbers: dict[str, int], before: dict[str, int]) -> bool:
    """Return whether a status line reports a connection and new messages, and all of them are acknowledged."""
    pending = numbers.get("waiting", 1) or numbers.get("dropped", 1) > before.get("dropped", 0)
    return not pending and numbers.get("stored", 0) > before["stored"] and numbers.get("connects", 0) > 0


def wait_for_delivery(link: Link, started: float, timeout_s: float, board_file: Path | None = None) -> None:
    """Show the console until the first reading after the reset is delivered; if none is, also the last hidden lines.

    Raises:
        Failure: nothing was delivered in time, or the program ended; the text has the board's last message about the reason.
    """
    shown: list[str] = []
    hidden: deque[str] = deque(maxlen=LAST_LINES)  # such as what a sensor's file prints
    reason = ""
    in_traceback = False
    before = {"stored": 0}  # the numbers of the boot line; `dropped` of a status line before the first connection
    ended = False
    for line in (explained(line, board_file) for line in link.lines(timeout_s)):
        words = line.split()
        numbers = _numbers(words)
        after = f"{time.monotonic() - started:.1f} s after the reset"
        if numbers.get("connects") == 0:  # so the broker has refused nothing yet
            before.setdefault("dropped", numbers.get("dropped", 0))
        in_traceback = line.startswith("Traceback") or (in_traceback and reason.startswith(("Traceback", " ")))
        if in_traceback or line.startswith(REASONS):
            if in_traceback or line != reason:
                report_line("", line)
            reason = line
            if pause := PAUSE.match(line):
                link.listen_until += float(pause[1])
                timeout_s += float(pause[1])
        elif line.startswith("sensor:"):
            if line not in shown:
                report_line("", line)
                shown.append(line)
        elif line.startswith("boot "):
            report_line("boot", line[5:])
            before |= numbers
        elif words[:1] == ["delivered"]:
            if words[1:] and words[1].isdigit() and int(words[1]) <= before["stored"]:
                link.listen_until = time.monotonic() + timeout_s
                continue  # an older message: there may be thousands
            report_line("delivered", f"message {' '.join(words[1:])}, {after}")
            return
        elif words[:1] == ["status"] and _all_delivered(numbers, before):
            # It was delivered before the port was open again.
            report_line("delivered", f"everything stored, {after} at the latest")
            return
        elif line == REPL:
            ended = True
            break
        elif line.strip():
            hidden.append(line)
    for n, line in enumerate(hidden):
        report_line("" if n else "output", line)
    reason = reason or (shown[-1] if shown else "")
    about = f"firmware/TROUBLESHOOTING.md explains the board's last message: {reason}"
    hint = about if reason else "`make monitor` shows the board's output."
    limit = "before the program ended" if ended else f"within {timeout_s:.0f} s"
    raise Failure(f"All files were copied, but nothing was delivered {limit}. {hint}")


def monitor(arguments: argparse.Namespace) -> None:
    """Show the board's output until Ctrl-C. The board's program runs on.

    Tracebacks have the repository's names, unless --plain.
    """
    path = ports.find(arguments.port)
    link = Link(path)

    def away() -> None:
        print(f"monitor: {path} has disappeared: the board sleeps or was unplugged; waiting for it", file=sys.stderr)

    try:
        link.reopen(OPEN_S)
        with contextlib.suppress(Failure):  # the time is up while the port is away
            for line in link.lines(arguments.timeout, away):
                print(line if arguments.plain else explained(line, arguments.board_file), flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        link.close()


def backup(arguments: argparse.Namespace) -> None:
    """Copy all files and the journal of the board into a folder that only its owner can read."""
    with stopped(arguments.port) as (link, found):
        files = present(link, tuple(f"/{name}" for name in found["files"]), timeout_s=300)
        if outside := [name for name in files if ".." in name.split("/")]:  # no file system of MicroPython has this
            raise Failure(f"The board has a file {outside[0]}, which would be written outside the backup's folder.")
        folder = arguments.output / time.strftime("%Y%m%d-%H%M%S")
        folder.mkdir(parents=True)
        try:
            folder.chmod(0o700)
            for name in progress_bar(sorted(files), unit=" files"):
                target = folder / name.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(link.get(name))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # a part of a backup would be taken for a whole one
            raise
        report_line("backup", f"all files ({len(files)}) of the {found['machine']} in {os.path.relpath(folder)}")
        secret = [name for name in ("config.json", "tls/key.pem") if f"/{name}" in files]
        if secret:
            report_line("", f"secrets are in {' and '.join(secret)}: keep the folder private")


def wipe(arguments: argparse.Namespace) -> None:
    """Remove flashmqtt's files from the board, after asking."""
    with stopped(arguments.port) as (link, found):
        own = [name for name in foreign_files(link, found) if name != "board.py"]
        parts = ["flashmqtt's library"] if own else ["flashmqtt", "the application", "its configuration"]
        parts += ["the journal with its undelivered messages"] if arguments.journal else []
        what = " and ".join(", ".join(parts).rsplit(", ", 1))
        if not ask(f"Remove from the {found['machine']} on {link.path}: {what}?", arguments.yes):
            raise Failure("Stopped; nothing was changed.")
        # main.py is the first: a board with half of the files must not start.
        roots = [*OURS[:1]] if own else [*SINGLE, *UNFINISHED, *OURS]
        roots += [*(["/journal"] if arguments.journal else []), DEPLOYING]
        kept = not arguments.journal and "journal" in found["files"]
        if not own:
            link.create(DEPLOYING)
            found["files"] = [DEPLOYING.lstrip("/")]  # until it is removed as the last file: the next wipe goes on
        gone = set(link.run(_WIPE % roots, timeout_s=60).split()) - {DEPLOYING}
        link.run(put_back(RENAMED))
        _, rom, rom_block = for_rom(link, {})
        if rom is not None:
            write_rom(link, rom, rom_block)
        if not gone and rom is None:
            what = "nothing: the board has no file of flashmqtt's"
        elif own:
            what += f"; not flashmqtt's, so they stay: {', '.join(own)} and all other files"
        report_line("wiped", what + ("; the journal is kept (JOURNAL=1 removes it too)" if kept else ""))


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of("tools.deploy", "Install flashmqtt on a board, and maintain it.")
    commands = parser.add_subparsers(dest="command", required=True)
    for act in (deploy, monitor, backup, wipe):
        command = commands.add_parser(act.__name__, help=(act.__doc__ or "").splitlines()[0])
        command.set_defaults(act=act)
        add = command.add_argument
        add("--port", default="auto", help="the serial port; auto: the only connected board")
        if act is deploy:
            add("--board", choices=("auto", *build.BOARDS), default="auto", help="auto: ask the board")
            add("--board-file", type=existing, help="your own board.py (boards/README.md)")
            add("--config", type=Path, default=ROOT, help="the folder with config.toml")
            add("--plain", action="store_true", help="keep all names and modules: tracebacks have line numbers")
            add("--dry-run", action="store_true", help="only show what would be done")
            waits = "seconds to wait for the first delivery; default: %(default)s"
            add("--timeout", type=number(float, 0.1), default=DELIVERY_S, help=waits)
        if act is monitor:
            add("--board-file", type=existing, help="the --board-file of the deployment, for tracebacks")
            add("--plain", action="store_true", help="for a deployment with --plain")
            add("--timeout", type=number(float, 0.1), default=0, help="seconds until it ends; default: until Ctrl-C")
        if act in (deploy, wipe):
            add("--yes", action="store_true", help="answer yes to every question")
        if act is backup:
            add("--output", type=folder, default=ROOT / "backups", help="the folder for backups; default: backups/")
        if act is wipe:
            add("--journal", action="store_true", help="also remove the journal, with the stored messages")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    arguments = parse(argv)
    act = named(arguments.command, ConfigurationError, status=1)(arguments.act)
    stopped = "stopped"
    if arguments.act is deploy and not arguments.dry_run:
        stopped += "; copied files stay on the board: run the command again to continue"
    return exit_status(lambda: act(arguments) or 0, stopped=stopped)


if __name__ == "__main__":
    sys.exit(main())
