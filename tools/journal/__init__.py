"""Show a journal's contents: `python -m tools.journal dump IMAGE`, or `dump --board PORT` for a board's journal."""
