"""MQTT packets as bytes: levels 3 (3.1), 4 (3.1.1) and 5 on one tree, without I/O, time or session state.

    packets     names of the types and levels; the named error of a CONNACK code
    encode      put_* functions: write a packet into the caller's buffer, return the next position
    decode      Decoder: what a server sends, out of one fixed buffer
    topics      validity and matching of topic names and filters
    utf8        one scan of a string's bytes: valid? with wildcards?
    level5      level 5 only: what it adds to the packets that `decode` reads
    properties  level 5 only: the 27 properties, to and from bytes
    reasons     level 5 only: reason codes, by name and by packet
    aliases     level 5 only: topic aliases, both ways
    server      for hosts only: what a client sends, decoded; what a server sends, encoded

A board imports `encode`, `decode` and what they need; the modules of level 5 are imported by the first packet that needs
them, `server` by nobody on a board.
"""
