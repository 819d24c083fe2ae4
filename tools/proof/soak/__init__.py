"""`make soak`: a fleet of boards under every fault at once, for a given time; then memory and flash wear are judged."""
