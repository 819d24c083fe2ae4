"""The plug-in sensors, with fakes of their drivers and buses."""

import sys
from struct import pack

import pytest

HARDWARE = "tools.virtual_board.hardware."
DRIVERS = ("machine", "dht", "onewire", "ds18x20")


def _fakes():
    """Import new fakes of the drivers, and then the plug-ins again; return the fakes and `make`."""
    found = {}
    for name in DRIVERS:
        sys.modules.pop(HARDWARE + name, None)
        __import__(HARDWARE + name)
        found[name] = sys.modules[HARDWARE + name]
    for name in ("dht22", "ds18b20", "bme280"):
        sys.modules.pop("app.sensors." + name, None)
    from app.sensors import make

    return found, make


def _make(settings, prepare=None):
    fakes, make = _fakes()
    if prepare:
        prepare(fakes)
    before = {name: sys.modules.get(name) for name in DRIVERS}
    sys.modules.update(fakes)
    try:
        return fakes, make(settings)
    finally:
        for name in DRIVERS:
            if before[name] is None:
                sys.modules.pop(name)
            else:
                sys.modules[name] = before[name]


@pytest.mark.req("B1")
def test_dht22_gives_both_values_of_one_measurement():
    fakes, (temperature, humidity) = _make({"kind": "dht22", "pin": 15, "qos": 2, "interval_ms": 60000})
    assert (temperature.name, temperature.unit, temperature.read()) == ("temperature", "Cel", 21.5)
    assert (humidity.name, humidity.unit, humidity.read()) == ("humidity", "%RH", 48.2)
    assert temperature.qos == 2 and humidity.interval_ms == 60000
    fakes["dht"].simulated.answers = False
    assert temperature.read() is None and humidity.read() is None
    fakes["dht"].simulated.answers = True
    assert (temperature.read(), humidity.read()) == (21.5, 48.2)

    def measure():
        raise Exception("checksum error")  # as the real driver does

    temperature._chip.measure = measure
    with pytest.raises(Exception) as wrong:
        temperature.read()
    assert str(wrong.value) == "checksum error" and humidity.read() is None


@pytest.mark.req("B1")
def test_ds18b20_reads_the_previous_conversion():
    roms = {b"\x28\x01\x02\x03\x04\x05\x06\x07": 20.25, b"\x28\x11\x12\x13\x14\x15\x16\x17": -5.5}

    def prepare(fakes):
        fakes["ds18x20"].simulated.thermometers = roms

    _, sensors = _make({"kind": "ds18b20", "pin": 22}, prepare)
    assert [sensor.name for sensor in sensors] == ["temperature_010203040506", "temperature_111213141516"]
    assert [(sensor.qos, sensor.interval_ms) for sensor in sensors] == [(1, 0), (1, 0)]  # if nothing is set
    assert [sensor.read() for sensor in sensors] == [None, None]
    assert [sensor.read() for sensor in sensors] == [20.25, -5.5]
    roms[b"\x28\x01\x02\x03\x04\x05\x06\x07"] = None
    assert sensors[0].read() is None and sensors[1].read() == -5.5


def _bme280(fakes):
    # Bosch's worked example (BMP280 data sheet, 3.12): 25.08 degrees and 100653 Pa. The numbers for humidity are ours: the
    # floating-point formula of the BME280 data sheet (8.1) gives 51.18 % for them.
    calibration = (
        pack("<Hhh", 27504, 26435, -1000),
        pack("<Hhhhhhhhh", 36477, -10685, 3024, 2855, 140, -7, 15500, -14600, 6000),
    )
    humidity = pack("<hBbBbb", 365, 0, 20, 0x05, 3, 30)
    t, p, h = 519888, 415148, 30000
    raw = bytes((p >> 12, p >> 4 & 255, p << 4 & 255, t >> 12, t >> 4 & 255, t << 4 & 255, h >> 8, h & 255))
    fakes["machine"].simulated.i2c = {
        0x76: {0xD0: b"\x60", 0x88: calibration[0], 0x8E: calibration[1], 0xA1: b"\x4b", 0xE1: humidity, 0xF7: raw}
    }


@pytest.mark.req("B1")
def test_bme280_compensates_as_the_data_sheet_does():
    fakes, sensors = _make({"kind": "bme280", "sda": 4, "scl": 5}, _bme280)
    assert [sensor.read() for sensor in sensors] == [None, None, None]
    temperature, humidity, pressure = [sensor.read() for sensor in sensors]
    assert abs(temperature - 25.08) < 0.011 and abs(pressure - 100653) <= 3 and abs(humidity - 51.2) < 0.11
    assert fakes["machine"].simulated.i2c[0x76][0xF4] == b"\x25"
    chips = fakes["machine"].simulated.i2c
    fakes["machine"].simulated.i2c = {}
    assert [sensor.read() for sensor in sensors] == [None, None, None]
    fakes["machine"].simulated.i2c = chips
    assert [sensor.read() for sensor in sensors] == [None, None, None]  # this read only starts a measurement
    assert None not in [sensor.read() for sensor in sensors]


@pytest.mark.req("B1")
def test_error_names_a_wrong_chip_at_the_address():
    def prepare(fakes):
        fakes["machine"].simulated.i2c = {0x76: {0xD0: b"\x58"}}

    with pytest.raises(ValueError) as wrong:
        _make({"kind": "bme280", "sda": 4, "scl": 5}, prepare)
    assert "0x58" in str(wrong.value)


@pytest.mark.parametrize("settings,words", [({"kind": "sonar"}, "sonar"), ({"kind": "dht22"}, "pin")])
@pytest.mark.req("B1")
def test_unknown_kind_and_missing_setting_are_named(settings, words):
    with pytest.raises(ValueError) as wrong:
        _make(settings)
    assert words in str(wrong.value)


@pytest.mark.req("B1")
def test_configured_name_prefixes_the_readings():
    _, sensors = _make({"kind": "dht22", "pin": 3, "name": "cellar"})
    assert [sensor.name for sensor in sensors] == ["cellar_temperature", "cellar_humidity"]
