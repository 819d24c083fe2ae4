# ruff: noqa: F821
# mypy: ignore-errors
"""The library for freezing into an image: `include("path/to/firmware/manifest.py")` in your own manifest.py.

Frozen, its code runs from flash: the heap keeps what is data. MicroPython's build reads this file, no interpreter does.
"""

metadata(version="0.1.0", description="MQTT that loses nothing when the power or the network goes", license="MIT")

package("flashmqtt", base_path=".", opt=2)
