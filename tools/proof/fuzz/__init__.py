"""Attack the decoder: every mutation of every golden packet, random streams, coverage-guided ones; on both interpreters."""
