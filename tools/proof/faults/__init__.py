"""Numbered messages over a link, a broker and a board that fail at every possible place; and a broker that breaks the rules.

The peer, the hostile broker and the audit use `tools.proof.packets`, a codec that shares nothing with the library's.
"""
