"""One scan over the bytes of a string: is it a UTF-8 string as §1.5.3 (3.1.1) and §1.5.4 (5) want it, has it wildcards?

    text_kind(buf, start, end) -> int    NOT_TEXT (-1), or 0, or WILD (1) where it has a `+` or a `#`

A string is refused where it is not well-formed UTF-8 (truncated, overlong, surrogates D800-DFFF, beyond 10FFFF) and where it
has a U+0000. A leading U+FEFF is a character like any other. The scan allocates nothing. It knows no packets.

Like `flashmqtt.fast`, this file chooses between machine code and plain Python: a topic of 20 bytes takes 0.1 us on a PC in
viper and 4 us in bytecode, as long as all the rest of a packet.
"""

try:
    from .utf8_native import text_kind
except (ImportError, SyntaxError, ValueError):  # CPython; no native emitter; compiled for another processor
    from .utf8_plain import text_kind  # noqa: F401

NOT_TEXT = -1
WILD = 1
