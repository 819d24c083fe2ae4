"""Time: an uptime that does not wrap, and its offset to UTC, asked from an NTP server without waiting (RFC 5905).

A board starts without knowing the time. Its messages have the uptime from the first sample on. Once a server has answered, the
difference of UTC and uptime is known, so that all messages of this boot can be dated, also those stored before. The answer is
checked: it must come from a synchronised server, be later than 2024, and have the random number of the request, so that a late
or forged packet does not set the clock.
"""

import socket

from flashmqtt.compat import const, ticks_diff, ticks_ms

_TO_1970 = const(2208988800)  # seconds from NTP's epoch, 1900
_ERA = const(1 << 32)
_EARLIEST = const(3944678400)  # 2025: an earlier time is that of a server whose own clock is not set
_ANSWER_MS = const(2000)
_RETRY_LEAST_MS = const(5000)
_RETRY_MOST_MS = const(600000)
_AGAIN_MS = const(6 * 3600 * 1000)
_SHIFT_MS = const(2000)


class Uptime:
    """Milliseconds since the start. Call `ms` at least once in six days, because the ticks wrap."""

    def __init__(self):
        self._last = ticks_ms()
        self._ms = 0

    def ms(self):
        """Return the milliseconds since the start."""
        now = ticks_ms()
        self._ms += ticks_diff(now, self._last)
        self._last = now
        return self._ms


def question(nonce):
    """Return a request to a server: version 4, mode client, and the nonce (8 bytes) as its transmit time."""
    return b"\x23" + bytes(39) + nonce


def answer(packet, nonce):
    """Return the milliseconds since 1970 in a server's answer, or None if it does not answer our request."""
    if len(packet) < 48 or packet[0] & 7 != 4 or packet[0] >> 6 == 3 or not 1 <= packet[1] <= 15:
        return None
    if bytes(packet[24:32]) != nonce:
        return None
    seconds = int.from_bytes(packet[40:44], "big")
    if 0 < seconds < _ERA // 2:  # after February 2036; 0: unknown
        seconds += _ERA
    if seconds < _EARLIEST:
        return None
    return (seconds - _TO_1970) * 1000 + (int.from_bytes(packet[44:48], "big") * 1000 >> 32)


class NetworkTime:
    """Asks a time server at intervals, one step per `turn`.

    Args:
        uptime: an `Uptime`.
        host, port: the server; with an empty host, no server is asked.
        random_bytes: makes the nonce.
        feed: feeds the watchdog. Two name servers that do not answer block a lookup for 14 s; a Pico's watchdog waits 8 s.
    """

    def __init__(self, uptime, host, port=123, random_bytes=None, feed=None):
        self._uptime = uptime
        self._host = host
        self._port = port
        self._random_bytes = random_bytes or _random_bytes
        self._feed = feed
        self._socket = None
        self._nonce = b""
        self._sent_ms = 0
        self._due_ms = 0
        self._retry_ms = _RETRY_LEAST_MS
        self.offset_ms = None  # UTC minus uptime
        self.asked = 0

    def set(self, unix_ms):
        """Set the time from another source, such as a clock that keeps running in deep sleep."""
        self.offset_ms = unix_ms - self._uptime.ms()

    def unix_ms(self):
        """Return the milliseconds since 1970 UTC, or None while they are not known."""
        return None if self.offset_ms is None else self._uptime.ms() + self.offset_ms

    @property
    def waiting(self):
        """Whether a request is waiting for its answer."""
        return self._socket is not None

    def turn(self):
        """Do the next step; only the name lookup may block. Return True if the time became known or has changed."""
        if not self._host:
            return False
        now = self._uptime.ms()
        if self._socket is None:
            if now >= self._due_ms:
                self._ask(now)
            return False
        if now - self._sent_ms > _ANSWER_MS:  # an answer read later would set the clock late by up to half of this time
            self._later(now)
            return False
        try:
            packet = self._socket.recv(64)
        except OSError:  # nothing yet
            return False
        unix_ms = answer(packet, self._nonce)
        if unix_ms is None:
            return False
        trip_ms = now - self._sent_ms
        offset = unix_ms + trip_ms // 2 - now
        shifted = self.offset_ms is None or abs(offset - self.offset_ms) > _SHIFT_MS
        self.offset_ms = offset
        self._close()
        # Ask again soon after a change, probably another server of a pool: this one's time may be wrong.
        self._due_ms = now + (_RETRY_MOST_MS if shifted else _AGAIN_MS)
        self._retry_ms = _RETRY_LEAST_MS
        return shifted

    def _ask(self, now):
        self.asked += 1
        self._nonce = self._random_bytes()
        try:
            if self._feed:
                from flashmqtt.guard import look_up

                found = look_up(self._feed, socket.getaddrinfo, self._host, self._port, socket.SOCK_DGRAM)
            else:
                found = socket.getaddrinfo(self._host, self._port, 0, socket.SOCK_DGRAM)
            address = found[0][-1]
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.sendto(question(self._nonce), address)
            self._sent_ms = self._uptime.ms()
        except (OSError, IndexError):  # no address
            self._later(now)

    def _later(self, now):
        self._close()
        self._due_ms = now + self._retry_ms
        self._retry_ms = min(self._retry_ms * 2, _RETRY_MOST_MS)

    def _close(self):
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _random_bytes():
    from os import urandom

    return urandom(8)
