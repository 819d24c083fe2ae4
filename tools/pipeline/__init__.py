"""From the collector's segments to tables on Spark: readings exactly once, quarantine, delivery audit."""
