# ruff: noqa: F821
# mypy: ignore-errors
"""The library for freezing into an image: `include("path/to/firmware/manifest.py")` in your own manifest.py.

Frozen code runs from flash, so that the heap has only data. Only MicroPython's build reads this file.
"""

metadata(version="0.1.0", description="MQTT that loses no message when the power or the network fails", license="MIT")

package("flashmqtt", base_path=".", opt=2)
