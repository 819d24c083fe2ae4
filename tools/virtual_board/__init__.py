"""A board without hardware: the application on MicroPython, with a simulated flash and power cuts."""
