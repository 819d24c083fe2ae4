"""One network connection, without I/O: handshake, keep alive, buffers (3.1.1 and 5, sections 3.1, 3.2 and 3.12).

It knows no socket and no clock: bytes come in through `decoder.room()` and `decoder.received(n)`, bytes go out through
`output()` and `sent(n)`, and the time is an argument. The session below it outlives it; make a new connection for each
network connection, over the same session (or call `start` again on the same object, which saves the buffers).

How to pump it, for any kind of loop (the blocking client does just this; so does the collector):

    session = Session(store, level=4, window=8)
    connection = Connection(session, client_id=b"collector", buffer_bytes=16384, keep_alive_s=60)
    sock.connect(...)
    connection.start(now_ms)                    # CONNECT is in the output now
    while True:
        output = connection.output()            # store.sync() happens here, before the bytes can leave
        if output:
            connection.sent(sock.send(output))  # a short write is fine: the rest stays
        n = sock.recv_into(connection.decoder.room())   # when the socket is readable
        connection.received(n, now_ms)          # n == 0 is the peer's end: ConnectionLost
        while True:
            event = connection.process(now_ms)  # raises MalformedPacket, ProtocolViolation, ... : close the socket
            if event == NOTHING:                # no whole packet left: write the output, then wait for bytes
                break
            if event == OUTPUT:                 # the output buffer is full: write it, then go on processing
                ...
            elif event == MESSAGE:              # connection.message: topic, payload, qos, retain, dup (views, valid
                ...                             # until the next process(), which acknowledges it: take it before)
            elif event == CONNECTED: ...        # connection.session_present
            elif event == DELIVERED: ...        # connection.handle: what session.publish() returned
            elif event == SUBSCRIBED: ...       # see session.subscriptions
        wait_ms = connection.check(now_ms)      # keep alive, retries, deadlines; how long the loop may sleep

An inbound message's acknowledgement is put into the output by the `process()` that follows it, and everything that one
batch of bytes brought leaves after one `store.sync()`: that is the whole of group commit.
"""

from .compat import const

NOTHING = const(0)
OUTPUT = const(1)
CONNECTED = const(2)
MESSAGE = const(3)
DELIVERED = const(4)
SUBSCRIBED = const(5)
IN_DOUBT = const(6)
REFUSED = const(7)
