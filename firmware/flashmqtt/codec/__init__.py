"""MQTT packets as bytes: levels 3 (3.1), 4 (3.1.1) and 5 in one codec, without I/O, time or session state.

    packets     names of the types and levels; the error for a CONNACK code
    encode      put_* functions: write a packet into the caller's buffer, return the next position
    decode      Decoder: reads a server's packets from one fixed buffer
    chunks      a PUBLISH that is longer than this buffer
    malformed   the errors for packets that no conforming server sends
    topics      validity and matching of topic names and filters
    utf8        one scan of a string's bytes: valid? with wildcards?
    level5      level 5 only: its additions to the packets that `decode` reads
    properties  level 5 only: the 27 properties, to and from bytes
    reasons     level 5 only: reason codes, by name and by packet
    aliases     level 5 only: topic aliases in both directions

A board imports `encode`, `decode` and the modules that these need. The first packet that needs another module imports it.
"""
