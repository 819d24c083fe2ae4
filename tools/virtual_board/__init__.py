"""A board without hardware: the real application on a real MicroPython, with a simulated flash that can lose
its power."""
