"""The collector: takes what a broker delivers and acknowledges what is durable; `python -m tools.collector`."""
