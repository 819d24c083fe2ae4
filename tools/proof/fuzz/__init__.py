"""Fuzzes the decoder with mutations of the golden packets, random streams and coverage-guided ones; on both interpreters."""
