"""The fake of `dht`, a module of stock images: values that a test sets, or no answer."""


class Simulated:
    """The chip: its values, and whether it answers."""

    def __init__(self):
        self.values = (21.5, 48.2)
        self.answers = True


simulated = Simulated()


class DHTBase:
    """One chip."""

    def __init__(self, pin):
        self._now = (0.0, 0.0)

    def measure(self):
        """Read the values from the chip."""
        if not simulated.answers:
            raise OSError(110)
        self._now = simulated.values


class DHT22(DHTBase):
    """The DHT22."""

    def humidity(self):
        """Return per cent."""
        return self._now[1]

    def temperature(self):
        """Return degrees Celsius."""
        return self._now[0]
