"""Checks that the `board.py` on this board fulfils the contract, `boards/board.pyi`: `mpremote run boards/check.py`.

It calls all functions except `reset`, `sleep` and `watchdog`, which would end it, and joins no network. If there is no journal,
it makes one of 16 sectors. It prints a line for each function; a line with WRONG has the contract's requirement.
"""

import sys

CAUSES = ("power-on", "brown-out", "watchdog", "reset", "deep-sleep", "unknown")
FUNCTIONS = (
    "unique_id reset_cause reset network_up network_problem network_down network_strength journal_region sensors led"
    " watchdog watchdog_off sleep supply_millivolts clock set_clock"
).split()
NAME_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-:./_"
wrong = 0


def tell(name, value, fits, asked):
    """Print the result of a function, and whether the contract allows it."""
    global wrong
    if not fits:
        wrong += 1
    print("%-20s %s %r%s" % (name, "ok   " if fits else "WRONG", value, "" if fits else ": it has to be " + asked))


def optional_integer(value):
    """Return whether a value is a whole number or None."""
    return value is None or isinstance(value, int)


def check_sensor(sensor):
    """Read a sensor, and print a line for it and for each of its attributes that is wrong."""
    name, unit = getattr(sensor, "name", None), getattr(sensor, "unit", None)
    try:
        value = sensor.read()
        fits = value is None or (type(value) in (int, float) and value * 0.0 == 0)
    except (Exception, SystemExit) as error:
        value, fits = error, False
    tell("sensor %s" % name, value, fits, "a finite number or None")
    if not isinstance(name, str) or not name or name[0] in "-:./_" or set(name) - set(NAME_CHARACTERS):
        rule = "a text of letters (A to Z), digits and - : . / _ that begins with a letter or digit"
        tell("  its name", name, False, rule)
    if not isinstance(unit, str):
        tell("  its unit", unit, False, "a text")


def check(board):
    """Call the functions, and print a line for each."""
    for name in FUNCTIONS:
        found = getattr(board, name, None)
        tell(name, "there" if found else "missing", callable(found), "a function")
    model = getattr(board, "MODEL", "")
    tell("MODEL", model, isinstance(model, str) and model, "a text")
    if wrong:
        return  # add these first
    ident = board.unique_id()
    tell(
        "unique_id", ident, isinstance(ident, str) and ident and not set(ident) - set("0123456789abcdef"), "hex digits"
    )
    cause = board.reset_cause()
    tell("reset_cause", cause, cause in CAUSES, "one of " + ", ".join(CAUSES))
    tell("network_up", board.network_up("", "", ""), True, "")
    problem = board.network_problem()
    tell("network_problem", problem, isinstance(problem, str), "a text")
    tell("network_strength", board.network_strength(), optional_integer(board.network_strength()), "dBm or None")
    supply = board.supply_millivolts()
    tell("supply_millivolts", supply, optional_integer(supply), "a whole number or None")
    clock = board.clock()
    tell("clock", clock, clock is None or clock > 1700000000, "None until it is set, then seconds since 1970")
    before = int(clock or 1800000000)
    board.set_clock(before)
    tell("set_clock", board.clock(), abs((board.clock() or 0) - before) < 5, "the time that was set")
    board.led(True)
    board.led(False)
    tell("led", "switched", True, "")
    for sensor in board.sensors():
        check_sensor(sensor)
    region = board.journal_region(16)
    shape = (region.sectors, region.sector_bytes, region.page_bytes)
    tell(
        "journal_region",
        shape,
        region.sectors >= 4 and region.sector_bytes % region.page_bytes == 0,
        "4 sectors or more",
    )
    page = bytearray(region.page_bytes)
    region.read(0, page)
    tell("region.read", "%d bytes" % len(page), True, "")


if __name__ == "__main__":
    sys.path.append("/lib")
    import board

    check(board)
    print("the board keeps the contract" if not wrong else "%d lines are WRONG" % wrong)
