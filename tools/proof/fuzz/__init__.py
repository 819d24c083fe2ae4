"""Fuzzes the decoder with mutations of the golden packets and random streams, on both interpreters."""
