"""The fake of `machine`: pins and converters with values that a test sets; a reset ends the program."""

PWRON_RESET = 1
HARD_RESET = 2
WDT_RESET = 3
DEEPSLEEP_RESET = 4
SOFT_RESET = 5
_WATCHDOG_CLEAR = (0x4005B000, 0x400DB000)  # RP2040, RP2350
_WATCHDOG_ENABLE = 1 << 30


class Simulated:
    """The state of the fake hardware.

    Attributes:
        cause: the result of `reset_cause()`.
        registers: address -> value of `mem32`; the scratch registers survive a reset, as on the chip.
        adc: channel or pin -> 16-bit reading.
        pins: pin -> the value written last.
        sleeps: milliseconds of every `lightsleep`.
        fed: how often a watchdog was fed.
        watchdog_ms: the watchdog's timeout; 0: it does not run.
        on_reset: called with "reset" or "deep-sleep" before the program ends.
        on_feed: called when a watchdog is started, fed or stopped.
        timers: the running timers; `tick()` calls each of them once.
        clock: the board's module `time`, which sleeping advances.
        i2c: address -> {register: bytes} of the chips on the bus.
    """

    def __init__(self):
        self.cause = PWRON_RESET
        self.registers = {}
        self.adc = {4: 14050, 29: 33100}
        self.pins = {}
        self.sleeps = []
        self.fed = 0
        self.watchdog_ms = 0
        self.watchdog_left = 0
        self.on_reset = None
        self.on_feed = None
        self.timers = []
        self.clock = None
        self.id = b"\xe6\x61\x64\x08\x43\x2b\x1c\x2f"
        self.lightsleep_returns_at_once = False
        self.datetime = None
        self.i2c = {}

    def end(self, how):
        """End the program, as a reset does."""
        if self.on_reset:
            self.on_reset(how)
        raise SystemExit(how)

    def tick(self):
        """Call the callback of every running timer."""
        for timer in list(self.timers):
            timer.callback(timer)

    def passed(self, ms):
        """Advance the time; raise RuntimeError if the watchdog was not fed in time."""
        if self.clock:
            self.clock.sleep_ms(ms)
        if self.watchdog_ms:
            self.watchdog_left -= ms
            if self.watchdog_left <= 0:
                raise RuntimeError("the watchdog bit during a sleep: an RP2040 would hang now")


simulated = Simulated()


class Memory32:
    """Registers by address."""

    def __getitem__(self, address):
        return simulated.registers.get(address, 0)

    def __setitem__(self, address, value):
        simulated.registers[address] = value
        if address in _WATCHDOG_CLEAR and value & _WATCHDOG_ENABLE:
            simulated.watchdog_ms = 0
            if simulated.on_feed:
                simulated.on_feed()


mem32 = Memory32()


def reset_cause():
    """Return why the chip started."""
    return simulated.cause


def reset():
    """End the program."""
    simulated.end("reset")


def deepsleep(time_ms=0):
    """Record the sleep and end the program."""
    simulated.sleeps.append(time_ms)
    simulated.end("deep-sleep")


def lightsleep(time_ms=0):
    """Record the sleep."""
    simulated.sleeps.append(time_ms)
    if not simulated.lightsleep_returns_at_once:
        simulated.passed(time_ms)


def unique_id():
    """Return the id."""
    return simulated.id


class Pin:
    """A pin."""

    IN = 0
    OUT = 1
    ALT = 3
    PULL_UP = 1
    PULL_DOWN = 2

    def __init__(self, id, mode=-1, pull=-1, *, value=None, alt=-1):
        self.id = id
        if value is not None:
            self.value(value)

    def value(self, x=None):
        """Read or write."""
        if x is None:
            return simulated.pins.get(self.id, 0)
        simulated.pins[self.id] = x
        return None


class ADC:
    """An analog-to-digital converter's channel."""

    def __init__(self, id):
        self._id = id

    def read_u16(self):
        """Return the value that the test set."""
        return simulated.adc.get(self._id, 0)


class WDT:
    """The watchdog."""

    def __init__(self, *, id=0, timeout=5000):
        if timeout > 8388 and simulated.registers.get("chip", "rp2") == "rp2":
            raise ValueError("timeout exceeds 8388")
        simulated.watchdog_ms = timeout
        self.feed()

    def feed(self):
        """Restart the timeout."""
        simulated.fed += 1
        simulated.watchdog_left = simulated.watchdog_ms
        if simulated.on_feed:
            simulated.on_feed()


class Timer:
    """A timer; `Simulated.tick` calls its callback."""

    def __init__(self, id=-1):
        if id != -1 and simulated.registers.get("chip", "rp2") == "rp2":
            raise ValueError("Timer doesn't exist")
        self.callback = None

    def init(self, *, mode=1, period=-1, callback=None):
        """Start."""
        self.callback = callback
        simulated.timers.append(self)

    def deinit(self):
        """Stop."""
        if self in simulated.timers:
            simulated.timers.remove(self)


class RTC:
    """The real-time clock."""

    def __init__(self, id=0):
        pass

    def datetime(self, datetimetuple=None):
        """Set it: (year, month, day, weekday, hour, minute, second, subsecond)."""
        simulated.datetime = datetimetuple
        if simulated.clock and datetimetuple:
            year, month, day, _, hour, minute, second, _ = datetimetuple
            simulated.clock.unix_s = (
                simulated.clock.mktime((year, month, day, hour, minute, second, 0, 0)) - simulated.clock.ms // 1000
            )
        return simulated.datetime


class I2C:
    """An I2C bus with the chips of `simulated.i2c`."""

    def __init__(self, id=-1, *, scl=None, sda=None, freq=400000, timeout=50000):
        pass

    def readfrom_mem(self, addr, memaddr, nbytes, *, addrsize=8):
        """Return a chip's registers.

        Raises:
            OSError: there is no chip at the address.
        """
        if addr not in simulated.i2c:
            raise OSError(5)
        return simulated.i2c[addr][memaddr][:nbytes]

    def writeto_mem(self, addr, memaddr, buf, *, addrsize=8):
        """Write a chip's register."""
        if addr not in simulated.i2c:
            raise OSError(5)
        simulated.i2c[addr][memaddr] = bytes(buf)
