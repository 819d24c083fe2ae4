# What the programs here need of a board: a button that is pressed twice, and a lamp. Then the program ends.
import sys


class Pin:
    IN = 0
    OUT = 1

    def __init__(self, number, mode, value=1):
        self._value = value
        self._mode = mode
        self._reads = 0

    def value(self, value=None):
        if value is not None:
            self._value = value
        elif self._mode == self.IN:
            self._reads += 1
            if self._reads > 6:
                sys.exit()
            return self._reads % 3
        return self._value


def unique_id():
    return b"\x01\x02\x03"


def reset():
    print("reset")
    sys.exit()
