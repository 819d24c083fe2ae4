"""A batch's work: decode messages, assign them to lives, remove duplicates, audit."""
