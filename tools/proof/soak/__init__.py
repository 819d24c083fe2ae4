"""`make soak`: a fleet under every fault at once, for as long as one likes; then what it cost in memory and in flash."""
