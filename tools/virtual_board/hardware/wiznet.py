"""The fake of `network.WIZNET5K`: an Ethernet chip with a cable and a DHCP server, as `simulated` says.

Images for boards with this chip have it in `network`, in place of WLAN; the stubs don't have it, so its calls are those of
MicroPython's documentation and of extmod/network_wiznet5k.c.
"""


class Simulated:
    """The cable.

    Attributes:
        cable: whether it is plugged in.
        questions: how often `isconnected` says no after DHCP was asked.
        log: what was asked of the chip, in order.
    """

    def __init__(self):
        self.cable = True
        self.questions = 2
        self.log = []


simulated = Simulated()


class WIZNET5K:
    """The chip, on the pins that its board's image knows."""

    def __init__(self):
        self._active = False
        self._asked = False
        self._left = 0

    def active(self, is_active=None):
        """Switch it on or off, or ask."""
        if is_active is None:
            return self._active
        simulated.log.append("on" if is_active else "off")
        self._active = bool(is_active)
        self._asked = self._asked and self._active
        return None

    def ipconfig(self, *, dhcp4):
        """Ask for an address."""
        simulated.log.append("dhcp")
        self._asked = dhcp4
        self._left = simulated.questions

    def isconnected(self):
        """Return whether there is a link and an address, counting the question."""
        if self._active and self._asked and simulated.cable and self._left > 0:
            self._left -= 1
            return False
        return self._active and self._asked and simulated.cable

    def ifconfig(self):
        """Return (address, mask, gateway, name server)."""
        return ("127.0.0.1", "255.0.0.0", "127.0.0.1", "127.0.0.1")

    def status(self):
        """Return 0 without a link, else 1, or 2 where it is switched on."""
        return (2 if self._active else 1) if simulated.cable else 0
