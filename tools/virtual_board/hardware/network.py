"""The fake of `network`: a radio that joins the access points of `simulated` after some calls of `isconnected`."""

STA_IF = 0
AP_IF = 1
STAT_IDLE = 0
STAT_CONNECTING = 1
STAT_GOT_IP = 3
STAT_NO_AP_FOUND = -2
STAT_WRONG_PASSWORD = -3
STAT_CONNECT_FAIL = -1
# More of the ESP32's.
STAT_BEACON_TIMEOUT = 200
STAT_ASSOC_FAIL = 203
STAT_HANDSHAKE_TIMEOUT = 204


class Simulated:
    """The radio network.

    Attributes:
        access_points: name -> password.
        questions: how often `isconnected` returns False after a `connect`.
        without_address: the status after joining access points that give no address; None: they give one.
        log: the radio's calls, in order.
    """

    def __init__(self):
        self.access_points = {}
        self.questions = 2
        self.without_address = None
        self.log = []
        self.country = "XX"


simulated = Simulated()


def country(code=None):
    """Get or set the country, which limits the radio's channels."""
    if code is None:
        return simulated.country
    simulated.country = code
    return None


def hostname(name=None):
    """Get or set the name for DHCP."""
    return name or "board"


class WLAN:
    """The radio."""

    PM_PERFORMANCE = 10555714
    PM_NONE = 16
    PM_POWERSAVE = 17
    IF_STA = 0

    def __init__(self, interface_id=STA_IF):
        self._active = False
        self._network = None
        self._left = 0

    def active(self, is_active=None):
        """Switch the radio on or off, or return whether it is on."""
        if is_active is None:
            return self._active
        simulated.log.append("on" if is_active else "off")
        self._active = bool(is_active)
        if not is_active:
            self._network = None
        return None

    def connect(self, ssid=None, password=None, *, bssid=None):
        """Start joining a network."""
        if not self._active:
            raise OSError(1)
        simulated.log.append("connect " + str(ssid))
        self._network = (ssid, password or "")
        self._left = simulated.questions

    def disconnect(self):
        """Leave the network."""
        simulated.log.append("disconnect")
        self._network = None

    def isconnected(self):
        """Return whether it has joined; count the call."""
        if self.status() == STAT_CONNECTING:
            self._left -= 1
        return self.status() == STAT_GOT_IP

    def status(self, param=None):
        """Return the status of joining, or the signal strength."""
        ssid, password = self._network or ("", "")
        if param == "rssi":
            if simulated.access_points.get(ssid) != password:
                raise OSError("Wifi Not Connected")  # like the ESP32's
            return -61
        if self._network is None:
            return STAT_IDLE
        if ssid not in simulated.access_points:
            return STAT_NO_AP_FOUND
        if simulated.access_points[ssid] != password:
            return STAT_WRONG_PASSWORD
        joined = STAT_GOT_IP if simulated.without_address is None else simulated.without_address
        return STAT_CONNECTING if self._left > 0 else joined

    def ifconfig(self, configs=None):
        """Return (address, mask, gateway, name server); zeros until it has joined."""
        return ("127.0.0.1", "255.0.0.0", "127.0.0.1", "127.0.0.1") if self.isconnected() else ("0.0.0.0",) * 4

    def config(self, param=None, *, pm=None, mac=None, ssid=None):
        """Accept a setting; it has no effect."""
        return
