"""Numbered messages over a link, a broker and a board that fail at every place there is."""
