"""The loops of `quick` in plain Python: for CPython, and for a MicroPython without the native emitter."""

_is_ascii = getattr(bytes, "isascii", None)  # CPython's


def plain_end(buf, start, end):
    """Return where plain text ends, or a position before."""
    if _is_ascii is None:
        return start
    text = bytes(memoryview(buf)[start:end])
    return end if _is_ascii(text) and 0 not in text and 43 not in text and 35 not in text else start


def same(buf, start, other, n):
    """Return whether the bytes are the same."""
    return buf[start : start + n] == other[:n]


def put_message(buf, pos, head, n, topic, topic_length, packet_id, payload, payload_length):
    """Put a PUBLISH; return the position behind it."""
    buf[pos] = head
    pos += 1
    while n > 127:
        buf[pos] = n & 127 | 128
        n >>= 7
        pos += 1
    buf[pos] = n
    buf[pos + 1] = topic_length >> 8
    buf[pos + 2] = topic_length & 255
    pos += 3
    buf[pos : pos + topic_length] = topic
    pos += topic_length
    if packet_id:
        buf[pos] = packet_id >> 8
        buf[pos + 1] = packet_id & 255
        pos += 2
    buf[pos : pos + payload_length] = payload
    return pos + payload_length
