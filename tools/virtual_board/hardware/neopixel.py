"""The fake of `neopixel`, a module of images for the ESP32: it records the colours that were written."""

written: "list[tuple]" = []  # the first light's colour at each `write`


class NeoPixel:
    """A chain of lights."""

    def __init__(self, pin, n):
        self._colours = [(0, 0, 0)] * n

    def __setitem__(self, index, colour):
        self._colours[index] = colour

    def write(self):
        """Show the colours."""
        written.append(self._colours[0])
