# An ESP32 whose image holds flashmqtt and whose table has a partition for the journal.
configure_file(${MICROPY_BOARD_DIR}/sdkconfig.board ${CMAKE_BINARY_DIR}/sdkconfig.flashmqtt)

set(SDKCONFIG_DEFAULTS
    boards/sdkconfig.base
    boards/sdkconfig.ble
    ${CMAKE_BINARY_DIR}/sdkconfig.flashmqtt
)

set(MICROPY_FROZEN_MANIFEST ${MICROPY_BOARD_DIR}/manifest.py)
