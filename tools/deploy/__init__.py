"""Install flashmqtt on a board through mpremote: `make deploy`, `monitor`, `backup`, `wipe`."""
