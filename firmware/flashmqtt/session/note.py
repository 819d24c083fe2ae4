"""The note: what a session keeps in its store about itself, so that it survives a power cut.

Its 12 bytes: the level (3 and 4 have the same packets); the backoff's step | doubt << 7; a suspect's failed trials, and its
sequence & 255 (FF twice: none); the CRC-32 of the client id; the CRC-32 of the broker's address. The CRCs are of the last
connection. They are inverted if it was at the other level, and FF or 0 if no broker has accepted a connection of this store. The
second is 0 if the broker's session ended with the connection.

The note knows no messages: `session.py` says what is in doubt, `suspect.py` what a suspect is, `link.py` what a step is.
"""

from flashmqtt.compat import TYPE_CHECKING, const
from flashmqtt.errors import StoreWorn
from flashmqtt.fast import raw_crc32

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_LEVEL_5 = const(5)
_BLANK = const(0xFF)
_IN_NOTE = const(0x80)  # added to the step: messages past PUBREC are in doubt


class Note:
    """The note of one store.

    Args:
        store: a journal, or a RamStore.
        level: 3, 4 or 5.
        remember: False: nothing is written, and the broker's session is taken for this store's.

    Attributes:
        octets: the 12 bytes.
        remember: as given, and False for a store in RAM, where only the level is noted.

    Raises:
        UsageError: messages of another level are stored.
    """

    def __init__(self, store: "Any", level: int, remember: bool) -> None:
        self._store = store
        self._level = level
        self.remember = remember
        self.octets = store.note
        noted = self.octets[0]
        if noted == _BLANK or (noted == _LEVEL_5) != (level == _LEVEL_5):
            # Level 5's PUBLISH has another layout, and stored packets are sent as they are.
            if noted != _BLANK and store.low != store.next_seq:
                from flashmqtt.arguments import refuse_level

                refuse_level(noted)
            # Inverted CRCs are not valid; they are again if the session returns to its other level without a connection.
            crcs = [octet ^ _BLANK for octet in self.octets[4:]]
            # Write it now: messages may be stored before the first connection.
            self.change(0, [_LEVEL_5 if level == _LEVEL_5 else 4, 0, _BLANK, _BLANK] + crcs)
        if getattr(store, "volatile", False):
            self.remember = False

    def is_of(self, client_id: "Any", broker: "Any") -> bool:
        """Return whether the broker's session for this client id is known to have begun with this store."""
        return not self.remember or self.octets[4:] == _crc(client_id) + _crc(broker)

    def begin(self, client_id: "Any", broker: "Any") -> None:
        """Note that this broker's session for this client id began with this store."""
        if not self.is_of(client_id, broker):
            self.change(0, bytes((self._level, 0, _BLANK, _BLANK)) + _crc(client_id) + _crc(broker))

    def keep_step(self, step: "Any") -> None:
        """Keep the backoff's step, up to 127."""
        self.change(1, (min(step, _IN_NOTE - 1) | self.octets[1] & _IN_NOTE,))

    def change(self, at: int, octets: "Any") -> None:
        """Set these bytes, and write the note if that changes it."""
        changed = bytearray(self.octets)
        changed[at : at + len(octets)] = bytes(octets)
        same = changed == self.octets
        self.octets = changed
        if same or not self.remember:
            return
        try:
            self._store.write_note(changed)
        except StoreWorn:
            pass  # the store takes no writes any more; stored messages are still sent


def _crc(octets: "bytes | bytearray | memoryview") -> bytes:
    """Return the CRC-32 of these bytes, as bytes."""
    n = len(octets)
    buf = bytearray(n + 4)
    buf[:n] = octets
    raw_crc32(buf, 0, n, 0, n, 1)
    return bytes(buf[n:])
