"""Real brokers: the same scenarios against each that can be had here; `python -m tools.proof.brokers`, `make brokers`."""
