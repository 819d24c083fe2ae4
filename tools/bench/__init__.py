"""Measurements: `python -m tools.bench [--only AREA]` prints a table an area and writes `bench.json`."""
