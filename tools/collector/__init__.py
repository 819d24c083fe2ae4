"""The collector: stores a broker's messages and acknowledges them once they are durable; `python -m tools.collector`."""
