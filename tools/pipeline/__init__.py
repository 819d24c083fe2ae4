"""From the collector's log to tables on Spark: readings exactly once, quarantine, delivery audit."""
