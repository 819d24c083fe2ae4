// As RPI_PICO_W: the storage is divided by _boot.py, not here, so that rp2.Flash() still spans all of it.
#define MICROPY_HW_BOARD_NAME "Raspberry Pi Pico W"
#define MICROPY_HW_FLASH_STORAGE_BYTES (848 * 1024)
#define MICROPY_PY_NETWORK_HOSTNAME_DEFAULT "PicoW"

#include "enable_cyw43.h"
