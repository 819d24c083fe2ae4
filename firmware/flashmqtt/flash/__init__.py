"""Flash access: regions of sectors that are read, programmed and erased, over different devices."""
