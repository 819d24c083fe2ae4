"""The two loops over bytes that every message needs, as machine code if possible.

    plain_end(buf, start, end)      position of the first byte that is not ASCII, or is 0 or a wildcard; `end` if there is none
    put_message(buf, pos, topic, payload, head)
                                    position after a PUBLISH of levels 3 and 4 that begins at pos; head: its first byte |
                                    packet id << 8 (0: none). 0: it does not fit together with the longest length field;
                                    `encode.put_publish` then checks exactly.

The callers have checked every range. `put_message` halves the cost of a PUBLISH: for 84 bytes of topic and payload it takes
12,000 instructions; bytecode with two calls of `flashmqtt.fast.copy` takes 26,100.
"""

try:
    from .quick_native import plain_end, put_message
except (ImportError, SyntaxError, ValueError):  # CPython; no native emitter; compiled for another processor
    from .quick_plain import plain_end, put_message  # noqa: F401
