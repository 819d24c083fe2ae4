"""A broker that misbehaves on purpose, by script, with a codec of its own."""
