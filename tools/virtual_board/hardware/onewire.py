"""The fake of `onewire`, a module of stock images."""


class OneWireError(Exception):
    """No device answers on the wire."""


class OneWire:
    """The wire."""

    def __init__(self, pin):
        self.pin = pin
