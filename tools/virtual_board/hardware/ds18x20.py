"""The fake of `ds18x20`, a module of stock images: thermometers with values that a test sets."""


class Simulated:
    """The thermometers: serial number -> degrees Celsius, or None for a wrong checksum."""

    def __init__(self):
        self.thermometers = {}


simulated = Simulated()


class DS18X20:
    """The thermometers on a wire."""

    def __init__(self, onewire):
        pass

    def scan(self):
        """Return their serial numbers."""
        return [bytearray(rom) for rom in sorted(simulated.thermometers)]

    def convert_temp(self):
        """Start a conversion."""
        if not simulated.thermometers:
            raise OSError(19)

    def read_temp(self, rom):
        """Return the converted temperature."""
        value = simulated.thermometers[bytes(rom)]
        if value is None:
            raise Exception("CRC error")  # as the driver does
        return value
