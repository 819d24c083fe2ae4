"""A broker that misbehaves on purpose, by script."""
