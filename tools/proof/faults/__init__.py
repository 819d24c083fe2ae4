"""Numbered messages over a link, a broker and a board that fail at every place there is.

`tools.proof.hostile` stands on its device and on its packets, a codec that shares nothing with the library's.
"""
