"""Message Expiry Interval, counted down while a message is stored (5, section 3.3.2.3.3).

Loaded with the first such message. Its record in the store is the PUBLISH, with bit 3 of the first byte set (DUP, which is 0 in a
stored packet), and 12 bytes behind it that are never sent: the boot, the uptime and the calendar's time when it was published.

How long it has waited: within a boot, the difference of the uptimes, exactly. After a reboot, the difference of the calendar's
times, where the board's clock was set at both moments (the year is 2024 or later); without a clock, only what passed since the
reboot. So a message may live longer than its interval by the time before the reboot, and never shorter, if the clock is right.

A message that has expired is not sent, but reported. One of QoS 2 that may have been sent before is sent again in any case
[MQTT-4.3.3-7], with an interval of a second: its flow has to come to an end.
"""

import time
from struct import pack, unpack_from

from flashmqtt.codec.properties import MESSAGE_EXPIRY_INTERVAL, find
from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff, ticks_ms

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

STAMP_BYTES = const(12)
MARK = const(8)  # in a record's first byte
_YEAR = const(2024)
_TURN_MS = const(1 << 30)  # after so many, ticks begin again
_SLACK_MS = const(10000)


class Expiry:
    """The clocks, and what they say about a stored message."""

    def __init__(self, store: "Any") -> None:
        self._store = store
        self._stamp = bytearray(STAMP_BYTES)
        self._uptime_ms = 0
        self._ticks = ticks_ms()
        self._time = int(time.time())

    def uptime_s(self) -> int:
        """Return the seconds since this object was made; ticks wrap within days, and the clock may be set meanwhile."""
        ticks = ticks_ms()
        now = int(time.time())
        passed = ticks_diff(ticks, self._ticks) % _TURN_MS
        by_clock = (now - self._time) * 1000
        if by_clock > passed and (by_clock - passed + _SLACK_MS) % _TURN_MS <= 2 * _SLACK_MS:
            passed = by_clock
        self._ticks = ticks
        self._time = now
        self._uptime_ms += passed
        return self._uptime_ms // 1000

    def clock_s(self) -> "Any":
        """Return the calendar's time in seconds, 0 where it is not known."""
        now = int(time.time())
        return now if time.gmtime(now)[0] >= _YEAR else 0

    def stamp(self) -> "Any":
        """Return what stands behind a packet in the store."""
        return pack("<III", self._store.boot, self.uptime_s(), self.clock_s())

    def left(self, seq: int, n: int, interval: "Any") -> "Any":
        """Return how much of its interval a stored message of n bytes has left, 0 or less: it has expired."""
        stamp = self._stamp
        self._store.read(seq, n, stamp, 0, STAMP_BYTES)
        boot, uptime, clock = unpack_from("<III", stamp)
        waited = self.uptime_s()
        if boot == self._store.boot:
            waited -= uptime
        else:
            now = self.clock_s()
            if now and clock:
                waited = max(waited, now - clock)
        return interval - waited if waited else max(interval, 1)


def interval_at(buf: "bytearray | memoryview", at: int, end: int) -> "Any":
    """Return where the interval stands in the PUBLISH that begins at buf[at], 0: not before `end`."""
    at += 1
    while buf[at] & 0x80:
        at += 1
    at += 3 + (buf[at + 1] << 8 | buf[at + 2])
    at += 2 if at + 2 < end else end  # the packet id
    n = shift = 0
    while at < end and buf[at] & 0x80:
        n |= (buf[at] & 0x7F) << shift
        shift += 7
        at += 1
    if at >= end:
        return 0
    stop = at + 1 + (n | buf[at] << shift)
    found = find(buf, at + 1, stop, MESSAGE_EXPIRY_INTERVAL) if stop <= end else -1
    return max(found, 0)
