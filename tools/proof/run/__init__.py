"""`make run`: the whole chain under faults on one machine, and the proof that each reading arrived once."""
