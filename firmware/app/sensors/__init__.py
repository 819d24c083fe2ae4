"""Plug-in sensors: each module here has `make(settings)`, which returns a list of objects with name, unit and read().

The configuration names the module: {"kind": "dht22", "pin": 15}. To add a sensor, put a file of a few lines beside these; it is
found by its name. `read()` returns a number, or None if there is none now, and must not wait longer than some milliseconds.
"""


def make(settings):
    """Return the sensors for one entry of the configuration.

    Raises:
        ValueError: an unknown kind, or wrong settings.
    """
    kind = settings["kind"]
    try:
        module = __import__("app.sensors." + kind, None, None, ["make"])
    except ImportError as error:
        raise ValueError("no sensor of the kind %r: %s" % (kind, error))
    try:
        found = list(module.make(settings))
    except KeyError as error:
        raise ValueError("the sensor %r needs a setting: %s" % (kind, error))
    qos = settings.get("qos", 1)
    for sensor in found:
        if "name" in settings:
            sensor.name = settings["name"] if len(found) == 1 else settings["name"] + "_" + sensor.name
        sensor.qos = qos
        sensor.interval_ms = settings.get("interval_ms", 0)
    return found
