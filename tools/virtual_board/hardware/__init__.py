"""Fakes of MicroPython's hardware modules `machine`, `network`, `rp2`, `esp32`, for tests and the virtual board.

Each fake has the names and signatures that the boards use of the port's module; a test compares them with the ports' type stubs.
Each fake has an object `simulated`, through which a test sets and reads the hardware's state. It runs on both interpreters.
"""


def with_ethernet(network):
    """Turn the fake of `network` into that of an image with an Ethernet chip and without a radio."""
    from tools.virtual_board.hardware import wiznet

    wiznet.simulated = wiznet.Simulated()  # no state of an earlier board
    del network.WLAN
    network.WIZNET5K = wiznet.WIZNET5K
    network.simulated = wiznet.simulated
