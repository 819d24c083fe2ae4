"""From a bare board to its first delivered reading: `make deploy`, `monitor`, `backup`, `wipe`, all through mpremote."""
