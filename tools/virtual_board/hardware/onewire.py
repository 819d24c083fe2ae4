"""The fake of `onewire`, which stock images bring along."""


class OneWireError(Exception):
    """Nobody answers on the wire."""


class OneWire:
    """The wire."""

    def __init__(self, pin):
        self.pin = pin
