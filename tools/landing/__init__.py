"""The landing directory, which the collector writes and the pipeline reads: logs, and the segments sealed from them."""
