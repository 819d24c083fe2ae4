"""Numbered messages over a link, a broker and a board that fail at every place there is, and a broker that misbehaves.

What speaks for the far end (the peer, the hostile broker, the audit) uses `tools.proof.packets`, a codec that shares nothing
with the library's.
"""
