"""The flash-write shim: regions of sectors that are read, programmed and erased, whatever lies underneath."""
