"""The tables of an output directory: schemas, files, commits, sums, Delta logs."""
