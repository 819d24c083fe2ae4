"""Measurements: `python -m tools.proof.bench [--only AREA]` prints a table an area and writes `bench.json`."""
