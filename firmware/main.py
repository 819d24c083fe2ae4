"""flashmqtt: the program that a board runs after its start: read the configuration, then run the application.

An error that a restart can't repair (the configuration, a journal that is not ours) is printed and shown by the LED; the program
ends at the REPL, with the watchdog off. Any other error is printed, and after 10 seconds the board restarts by itself; Ctrl-C in
this time gives the REPL.
"""

import gc
import sys
from os import listdir
from time import sleep

RESTART_S = 10


def blink(led):
    """Blink fast for two seconds, then leave the LED on: a person is needed."""
    for _ in range(10):
        led(False)
        sleep(0.1)
        led(True)
        sleep(0.1)


def configuration(board):
    """Return the configuration, or None after printing why it can't be used. Unload the module that read it: 3.5 KB."""
    import app
    from app.configuration import ConfigurationError, load

    try:
        return load("config.json")
    except ConfigurationError as error:
        print("configuration:", error)
        print("Fix config.toml and run `make deploy` again.")
        blink(board.led)
        return None
    finally:
        del sys.modules["app.configuration"]
        del app.configuration


def restart(error, reset):
    """Print an unexpected error, wait, and reset the board."""
    if hasattr(sys, "print_exception"):  # CPython has none
        sys.print_exception(error)
    print("restart: in %d s; Ctrl-C gives the REPL" % RESTART_S)
    sleep(RESTART_S)
    reset()


def main():
    """Run the application."""
    if "deploying" in listdir():
        print("deployment: unfinished; run `make deploy` again")
        return
    # Modules are loaded when they are first needed, and an import makes much garbage. Without early collection, the modules
    # fragment the heap. A TLS connection on a Pico W needs 17 KB in one piece: on the virtual board the largest free piece is
    # 96 of 101 KB, otherwise 7.
    gc.threshold(16384)  # type: ignore[attr-defined]
    try:
        import board  # type: ignore[import-not-found]

        from flashmqtt.errors import FlashFailed, StoreError, UsageError
    except Exception as error:  # such as a board.py of your own, whose chip does not answer
        from machine import reset

        restart(error, reset)
        return
    application = None
    try:
        config = configuration(board)
        if config is None:
            return
        from app.application import Application

        application = Application(board, config)
        application.run()
    except Exception as error:
        board.watchdog_off()
        # (A read of the flash that failed may succeed after a restart.)
        if isinstance(error, StoreError) and not isinstance(error, FlashFailed):
            print("journal:", type(error).__name__, error)
            blink(board.led)
            return
        if application is None and isinstance(error, UsageError):  # such as a certificate that can't be read
            print("configuration:", error)
            blink(board.led)
            return
        restart(error, board.reset)
    finally:
        board.watchdog_off()  # after Ctrl-C, a person may use the REPL: no watchdog must reset the board


main()
