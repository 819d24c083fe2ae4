"""The same scenarios against each real broker that can be installed here; `python -m tools.proof.brokers`, `make brokers`."""
