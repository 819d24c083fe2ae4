"""Older programs name it so."""

from binascii import hexlify  # noqa: F401
