"""The wire audit: the QoS flows of captured traffic, and the rules that were broken; `python -m tools.proof.wire`."""
