"""A serial NOR flash that can be cut off from its power at any program or erase: `nor` the chip, `tear` for killed processes."""
