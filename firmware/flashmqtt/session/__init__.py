"""The session: what outlives a network connection (3.1.1 and 5, section 4.1)."""
