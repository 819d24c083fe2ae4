"""Power cuts at every flash operation of the journal, under every fault model, and what must hold afterwards."""
