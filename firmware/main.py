"""flashmqtt: what a board runs after its start: read the configuration, then be a sensor board.

What can't be mended by starting again (the configuration, a journal that is not ours) is said, shown by the LED, and ends at the
REPL, where it can be mended; the watchdog is off then. Anything else that goes wrong is printed, and after a while, in which
Ctrl-C gives the REPL, the board starts again: nobody has to come.
"""

import gc
import sys
from os import listdir
from time import sleep

RESTART_S = 10


def blink(led):
    """Blink fast for two seconds, then leave the LED on: somebody has to look."""
    for _ in range(10):
        led(False)
        sleep(0.1)
        led(True)
        sleep(0.1)


def configuration(board):
    """Return the configuration, or None where it can't be used, which is said; what read it leaves the heap again: 3.5 KB."""
    import app
    from app.configuration import ConfigurationError, load

    try:
        return load("config.json")
    except ConfigurationError as error:
        print("configuration:", error)
        print("Mend config.toml and run `make deploy` again.")
        blink(board.led)
        return None
    finally:
        del sys.modules["app.configuration"]
        del app.configuration


def main():
    """Run the application."""
    if "deploying" in listdir():
        print("deployment: unfinished; run `make deploy` again")
        return
    # While modules are imported much garbage is made between what stays. Collected late, it leaves a heap of holes: on the
    # virtual board 12 KB in one piece instead of 54, of 56 KB that are free either way.
    gc.threshold(4096)  # type: ignore[attr-defined]
    import board  # type: ignore[import-not-found]

    from flashmqtt.errors import StoreError, UsageError

    config = configuration(board)
    if config is None:
        return
    application = None
    try:
        from app.application import Application

        gc.threshold(-1)  # type: ignore[attr-defined]
        application = Application(board, config)
        application.run()
    except StoreError as error:
        board.watchdog_off()
        print("journal:", type(error).__name__, error)
        blink(board.led)
    except Exception as error:
        board.watchdog_off()
        if application is None and isinstance(error, UsageError):  # a certificate that can't be read, say
            print("configuration:", error)
            blink(board.led)
            return
        if hasattr(sys, "print_exception"):  # CPython has none
            sys.print_exception(error)
        print("restart: in %d s; Ctrl-C gives the REPL" % RESTART_S)
        sleep(RESTART_S)
        board.reset()
    finally:
        board.watchdog_off()  # Ctrl-C: whoever is at the REPL now must not be reset


main()
