"""Message Expiry Interval, counted down while a message is stored (5, section 3.3.2.3.3).

Loaded with the first such message. Its record in the store is the PUBLISH with bit 3 of the first byte set (DUP, which is 0 in a
stored packet), and a stamp of 12 bytes after it that is never sent: boot number, uptime and wall clock at the time of `publish`.

The waiting time within one boot is the difference of the uptimes, which is exact. After a reboot it is the difference of the wall
clocks, if the clock was set at both times (the year is 2024 or later); without a clock, it is the time since the reboot. So
without a clock a message may live too long, by the time before the reboot. With a correct clock it never expires too early.

An expired message is not sent, but reported. A QoS 2 message that may have been sent before is retransmitted in any case
[MQTT-4.3.3-7], with an interval of one second, because its flow must be completed.
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
_TURN_MS = const(1 << 30)  # the period of the ticks
_SLACK_MS = const(10000)


class Expiry:
    """The clocks by which stored messages expire."""

    def __init__(self, store: "Any") -> None:
        self._store = store
        self._stamp = bytearray(STAMP_BYTES)
        self._uptime_ms = 0
        self._ticks = ticks_ms()
        self._time = int(time.time())

    def uptime_s(self) -> int:
        """Return the seconds since this object was made, although ticks wrap within days and the clock may be set."""
        ticks = ticks_ms()
        now = int(time.time())
        passed = ticks_diff(ticks, self._ticks) % _TURN_MS
        turns, rest = divmod((now - self._time) * 1000 - passed + _SLACK_MS, _TURN_MS)
        if turns > 0 and rest <= 2 * _SLACK_MS:
            passed += turns * _TURN_MS
        self._ticks = ticks
        self._time = now
        self._uptime_ms += passed
        return self._uptime_ms // 1000

    def clock_s(self) -> "Any":
        """Return the wall clock in seconds, 0 if it is not set."""
        now = int(time.time())
        return now if time.gmtime(now)[0] >= _YEAR else 0

    def stamp(self) -> "Any":
        """Return the stamp that is stored after a packet."""
        return pack("<III", self._store.boot, self.uptime_s(), self.clock_s())

    def left(self, seq: int, n: int, interval: "Any") -> "Any":
        """Return the rest of a stored message's interval, 0 or less if it has expired; n: the length of its packet."""
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
    """Return the position of the interval in the PUBLISH at buf[at], 0 if it is not before `end`."""
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
