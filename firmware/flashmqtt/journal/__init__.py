"""The journal: a power-safe log of records on flash that knows no MQTT. FORMAT.md has its bytes."""
