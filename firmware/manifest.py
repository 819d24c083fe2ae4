# ruff: noqa: F821
# mypy: ignore-errors
"""The library for freezing into an image: `include("path/to/firmware/manifest.py")` in your own manifest.py.

Frozen code runs from flash, so that the heap has only data. MicroPython's build runs this file with Python 3.11 or newer; it
freezes what `make image` freezes. With `application="pico_w"`: the application and this board's `board.py`, too.
"""

import os
import sys

options.defaults(application="")
metadata(version="0.1.0", description="MQTT that loses no message when the power or the network fails", license="MIT")

sys.path[:0] = [os.getcwd(), os.path.dirname(os.getcwd())]  # MicroPython's build runs a manifest in its folder
from tools.deploy.image import library_to_freeze  # noqa: E402

freeze(library_to_freeze(options.application), opt=2)
