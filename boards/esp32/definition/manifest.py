# ruff: noqa: F821
# mypy: ignore-errors
"""The modules frozen into the ESP32's image: the port's own, flashmqtt, the application, the board."""

include("$(PORT_DIR)/boards/manifest.py")
include("../../../firmware/manifest.py", application="esp32")
