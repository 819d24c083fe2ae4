"""The wire audit: which QoS flows captured traffic holds, and who broke a rule; `python -m tools.proof.wire`."""
