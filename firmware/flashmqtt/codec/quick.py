"""The three loops over bytes that every message goes through, as machine code where there is any.

    plain_end(buf, start, end)      position of the first byte that is not ASCII, or is 0 or a wildcard; `end` where there is none
    same(buf, start, other, n)      is buf[start:start+n] == other[0:n]?
    put_message(buf, pos, topic, payload, head)
                                    position behind a PUBLISH of levels 3 and 4 that begins at pos, 0 where it does not fit;
                                    head: its first byte | packet id << 8 (0: none)

Nothing else is checked here: the callers have compared every range with its buffer. `put_message` halves what a PUBLISH costs:
26,100 instructions with bytecode and two calls of `flashmqtt.fast.copy`, 12,000 so, for 84 bytes of topic and payload.
"""

try:
    from .quick_native import plain_end, put_message, same
except (ImportError, SyntaxError, ValueError):  # CPython; no native emitter; compiled for another processor
    from .quick_plain import plain_end, put_message, same  # noqa: F401
