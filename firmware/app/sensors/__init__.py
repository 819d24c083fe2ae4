"""Plug-in sensors: each module here has `make(settings)`, which returns a list of objects with name, unit and read().

A configuration names the module: {"kind": "dht22", "pin": 15}. To add one of your own, put a file of a few lines beside
these; `application.py` finds it by its name. `read()` returns a number, or None where there is none just now, and must
not wait for longer than some milliseconds.
"""


def make(settings):
    """Return the sensors that one entry of the configuration asks for.

    Raises:
        ValueError: there is no such kind, or its settings are wrong.
    """
    kind = settings["kind"]
    try:
        module = __import__("app.sensors." + kind, None, None, ["make"])
    except ImportError as error:
        raise ValueError("no sensor of the kind %r: %s" % (kind, error))
    try:
        found = module.make(settings)
    except KeyError as error:
        raise ValueError("the sensor %r needs a setting: %s" % (kind, error))
    qos = settings.get("qos", 1)
    for sensor in found:
        if "name" in settings:
            sensor.name = settings["name"] if len(found) == 1 else settings["name"] + "_" + sensor.name
        sensor.qos = qos
        sensor.interval_ms = settings.get("interval_ms", 0)
    return found
