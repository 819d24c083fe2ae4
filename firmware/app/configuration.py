"""The board's configuration: one JSON file, of which every key is checked before any is used.

It knows no hardware: the modules that read a key define its meaning.
"""

from json import load as load_json


class ConfigurationError(Exception):
    """The configuration is missing, is not JSON, or has a key or a value that is not allowed; the text names it."""


# key: (type, default, least, most), for a text or list of its length; or (type, default, the allowed values).
# A default of None means that the key is required.
KEYS: "dict[str, tuple]" = {
    "broker": (str, None, 1, 255),
    "port": (int, 1883, 1, 65535),
    "level": (int, 4, (3, 4, 5)),
    "tls": (str, "", 0, 64),
    "tls_cert": (str, "", 0, 64),
    "tls_key": (str, "", 0, 64),
    "user": (str, "", 0, 255),
    "broker_password": (str, "", 0, 255),
    "keep_alive_s": (int, 30, 0, 65535),
    "window": (int, 8, 1, 32),
    "longest_pause_s": (int, 120, 1, 3600),
    "device": (str, "", 0, 64),
    "ssid": (str, "", 0, 32),
    "password": (str, "", 0, 63),
    "country": (str, "", 0, 2),
    "interval_ms": (int, 10000, 10, 86400000),
    "sensors": (list, [], 0, 16),
    "health_s": (int, 300, 0, 86400),
    "discovery": (str, "", 0, 64),
    "ntp": (str, "", 0, 255),
    "sleep_s": (int, 0, 0, 86400),
    "awake_s": (int, 20, 1, 3600),
    "sectors": (int, 64, 4, 400),
    "when_full": (str, "drop-oldest", ("refuse", "drop-oldest", "drop-newest")),
    "watchdog_s": (int, 0, 0, 120),
    "status_ms": (int, 10000, 50, 86400000),
    "log": (bool, True, (False, True)),
    "stop_after": (int, 0, 0, 1 << 29),
}
SECRETS = ("password", "broker_password")


def load(path):
    """Return the configuration in a file as a dict in which every key of KEYS has a value.

    Raises:
        ConfigurationError: see the class.
    """
    try:
        with open(path) as file:
            given = load_json(file)
    except OSError:
        raise ConfigurationError("no configuration: the file " + path + " is not there")
    except (MemoryError, ValueError):
        raise ConfigurationError(path + " is not JSON, or too long")
    if not isinstance(given, dict):
        raise ConfigurationError(path + " holds no JSON object")
    return check(given)


def check(given):
    """Return the configuration with its defaults; raise ConfigurationError for an unknown key or a value not allowed."""
    for key in given:
        if key not in KEYS:
            raise ConfigurationError("unknown key " + repr(key) + "; known: " + ", ".join(sorted(KEYS)))
    result = {}
    for key, rule in KEYS.items():
        value = given.get(key, rule[1])
        if value is None:
            raise ConfigurationError("the key " + repr(key) + " is missing")
        problem = complaint(value, rule)
        if problem:
            shown = "its value" if key in SECRETS else repr(value)
            raise ConfigurationError("%s: %s is not allowed; it has to be %s" % (key, shown, problem))
        result[key] = value
    name, colon, port = result["ntp"].partition(":")
    # (As bytes: CPython takes a superscript for a digit.)
    if colon and not (name and port.encode().isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError("ntp: %r is not allowed; it has to be a name, or name:port" % result["ntp"])
    for sensor in result["sensors"]:
        if not isinstance(sensor, dict) or not isinstance(sensor.get("kind"), str):
            raise ConfigurationError("sensors: %r is not allowed; it has to be an object with a kind" % (sensor,))
        if sensor.get("qos", 1) not in (0, 1, 2):
            raise ConfigurationError("sensors: a qos of %r is not allowed; it has to be 0, 1 or 2" % (sensor["qos"],))
    return result


def complaint(value, rule):
    """Return what a value has to be by a rule of KEYS, or "" if it is allowed."""
    kind = rule[0]
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        return "true or false" if kind is bool else "of type " + kind.__name__
    if len(rule) == 3:
        return "" if value in rule[2] else "one of " + ", ".join(str(allowed) for allowed in rule[2])
    size = value if kind is int else len(value)
    if rule[2] <= size <= rule[3]:
        return ""
    what = {int: "a number", str: "a text of a length", list: "a list of a length"}[kind]
    return "%s from %d to %d" % (what, rule[2], rule[3])
