"""One scan over a string's bytes: is it a UTF-8 string by §1.5.3 (3.1.1) and §1.5.4 (5), and does it have wildcards?

    text_kind(buf, start, end) -> int    -1: not such a string; 0: valid; 1: valid, with a `+` or a `#`

Invalid are UTF-8 that is not well-formed (truncated, overlong, surrogates D800-DFFF, beyond 10FFFF) and U+0000. A leading U+FEFF
is a normal character [MQTT-1.5.3-3] [MQTT-1.5.4-3]. The scan allocates nothing and knows no packets.

Plain ASCII is scanned by machine code if there is any (`quick`): 20 bytes take 0.1 us on a PC instead of 4. Other text is scanned
by the bytecode below, which takes a third of the size of viper code for both.
"""

from flashmqtt.compat import TYPE_CHECKING

from .quick import plain_end

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251


def text_kind(buf: "bytes | bytearray | memoryview", start: int, end: int) -> "Any":
    """Return the kind of buf[start:end] (see above); raise IndexError if that is outside the buffer."""
    if start < 0 or start > end or end > len(buf):  # a wrong length field must not cause a read outside the buffer
        raise IndexError
    i = plain_end(buf, start, end)
    kind = 0
    while i < end:
        c = buf[i]
        i += 1
        if c < 0x80:
            if not c:  # [MQTT-1.5.3-2] [MQTT-1.5.4-2]
                return -1
            if c == 43 or c == 35:
                kind = 1
        else:  # [MQTT-1.5.3-1] [MQTT-1.5.4-1]
            if c < 0xC2 or c > 0xF4:
                return -1
            # The second byte's range excludes what is overlong, a surrogate, or beyond 10FFFF; the others' is 80 to BF.
            low = 0xA0 if c == 0xE0 else 0x90 if c == 0xF0 else 0x80
            high = 0x9F if c == 0xED else 0x8F if c == 0xF4 else 0xBF
            after = i + (1 if c < 0xE0 else 2 if c < 0xF0 else 3)
            while i < after:
                if i == end or not low <= buf[i] <= high:
                    return -1
                low = 0x80
                high = 0xBF
                i += 1
    return kind
