"""The boards that `make deploy` knows, and that the virtual board can be. For CPython and MicroPython."""

# name -> sys.platform, which is also the folder in boards/; the two parts of sys.implementation._machine, of which only the first
# may differ in another image of the board; KB of the stock image's file system.
BOARDS = {
    "pico_w": ("rp2", "Raspberry Pi ", "Pico W with RP2040", 848),
    "pico2_w": ("rp2", "Raspberry Pi ", "Pico 2 W with RP2350", 2560),
    "w5500_evb_pico": ("rp2", "", "W5500-EVB-Pico with RP2040", 1408),
    "esp32": ("esp32", "Generic ESP32 module ", "with ESP32", 2048),
    "esp32_s3": ("esp32", "Generic ESP32S3 module ", "with ESP32S3", 2048),
    "esp32_c3": ("esp32", "Generic ESP32C3 module ", "with ESP32C3", 2048),
}
