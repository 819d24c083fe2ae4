"""The databases to which `tools.pipeline.sink` can copy the readings."""
