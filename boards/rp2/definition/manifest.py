# ruff: noqa: F821
# mypy: ignore-errors
"""The modules frozen into the image: the port's own with our _boot.py, flashmqtt, the application, the board."""

freeze("$(PORT_DIR)/modules", ("rp2.py",))
include("$(MPY_DIR)/extmod/asyncio")
require("onewire")
require("ds18x20")
require("dht")
require("neopixel")
require("bundle-networking")

freeze("modules")
include("../../../firmware/manifest.py", application="pico_w")
