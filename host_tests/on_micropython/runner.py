"""Run the cases of one test module on MicroPython: `micropython runner.py MODULE CASE...`.

A CASE is `name` or `name/index`; without any, all are run; with `--few`, each function with its first, middle and
last parameters. Each prints one line, `@case NAME OUTCOME`, with the
traceback or reason behind it as indented lines, so that the host can tell the cases apart even where the process dies
half-way.
"""

import io
import sys

import pytest


def run(module, wanted):
    """Run one case and print its outcome."""
    name, _, index = wanted.partition("/")
    case = getattr(module, name)
    arguments = case.parameters[int(index)] if index else ()
    print("@start", wanted)
    outcome, detail = "passed", ""
    try:
        case(*arguments)
    except pytest.Skipped as skipped:
        outcome, detail = "skipped", str(skipped)
    except Exception as error:
        trace = io.StringIO()
        sys.print_exception(error, trace)
        outcome, detail = "failed", trace.getvalue()
    print("@case", wanted, outcome)
    for line in detail.split("\n"):
        if line:
            print("    " + line)


def cases(module, few=False):
    """Return the names of all cases of a module, or of each function's first, middle and last one."""
    found = []
    for name in dir(module):
        if name.startswith("test_"):
            parameters = getattr(getattr(module, name), "parameters", None)
            count = 0 if parameters is None else len(parameters)
            indices = sorted({0, (count - 1) // 2, count - 1}) if few and count else range(count)
            found += [name] if parameters is None else ["%s/%d" % (name, i) for i in indices]
    return found


def main():
    """Import the module and run what the command line names."""
    module = __import__(sys.argv[1])
    given = sys.argv[2:]
    for wanted in cases(module, given == ["--few"]) if given in ([], ["--few"]) else given:
        run(module, wanted)


main()
