"""The fake of `network.WIZNET5K`: an Ethernet chip with a cable and a DHCP server in `simulated`.

Images for boards with this chip have it in `network` instead of WLAN. The stubs don't have it; its calls follow MicroPython's
documentation and extmod/network_wiznet5k.c.
"""


class Simulated:
    """The cable.

    Attributes:
        cable: whether it is plugged in.
        questions: how often `isconnected` returns False after the DHCP request.
        log: the chip's calls, in order.
    """

    def __init__(self):
        self.cable = True
        self.questions = 2
        self.log = []


simulated = Simulated()


class WIZNET5K:
    """The chip; the image knows its pins."""

    def __init__(self):
        self._active = False
        self._asked = False
        self._left = 0

    def active(self, is_active=None):
        """Switch the chip on or off, or return whether it is on."""
        if is_active is None:
            return self._active
        simulated.log.append("on" if is_active else "off")
        self._active = bool(is_active)
        self._asked = self._asked and self._active
        return None

    def ipconfig(self, *, dhcp4):
        """Request an address."""
        simulated.log.append("dhcp")
        self._asked = dhcp4
        self._left = simulated.questions

    def isconnected(self):
        """Return whether there is a link and an address; count the call."""
        if self._active and self._asked and simulated.cable and self._left > 0:
            self._left -= 1
            return False
        return self._active and self._asked and simulated.cable

    def ifconfig(self):
        """Return (address, mask, gateway, name server)."""
        return ("127.0.0.1", "255.0.0.0", "127.0.0.1", "127.0.0.1")

    def status(self):
        """Return 0 without a link, 2 with a link and the chip on, else 1."""
        return (2 if self._active else 1) if simulated.cable else 0
