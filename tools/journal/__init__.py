"""Looking into a journal: `python -m tools.journal dump IMAGE`, or `dump --board PORT` for one that is in use."""
