"""MicroPython's lock of the heap, under which an allocation raises MemoryError. CPython runs the same steps without one."""

try:
    from micropython import heap_lock, heap_unlock
except ImportError:  # CPython

    def heap_lock():
        """Do nothing."""

    heap_unlock = heap_lock
