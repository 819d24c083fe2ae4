"""The sensor-board application built on flashmqtt."""
