"""The landing directory: the collector writes logs and seals them into segments, and the pipeline reads the segments."""
