"""The board's configuration: one JSON file, checked key by key, so that a mistake is named before anything acts
on it.

It knows no hardware: what a key means is up to its reader.
"""

from json import load as load_json


class ConfigurationError(Exception):
    """The configuration is missing, is not JSON, or has a key or a value that is not allowed; the text names it."""


# key: (type, default, least, most); a default of None means that the key has to be there.
KEYS: "dict[str, tuple]" = {
    "broker": (str, None, 1, 255),
    "port": (int, 1883, 1, 65535),
    "device": (str, "", 0, 64),
    "ssid": (str, "", 0, 32),
    "password": (str, "", 0, 63),
    "keep_alive_s": (int, 30, 0, 65535),
    "interval_ms": (int, 10000, 10, 86400000),
    "window": (int, 8, 1, 32),
    "stop_after": (int, 0, 0, 1 << 29),
}


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
    except ValueError:
        raise ConfigurationError(path + " is not JSON")
    if not isinstance(given, dict):
        raise ConfigurationError(path + " holds no JSON object")
    return check(given)


def check(given):
    """Return the configuration with its defaults; raise ConfigurationError for what is not allowed."""
    for key in given:
        if key not in KEYS:
            raise ConfigurationError("unknown key " + repr(key) + "; known: " + ", ".join(sorted(KEYS)))
    result = {}
    for key, (kind, default, least, most) in KEYS.items():
        value = given.get(key, default)
        if value is None:
            raise ConfigurationError("the key " + repr(key) + " is missing")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ConfigurationError(key + " is " + repr(value) + "; it has to be of type " + kind.__name__)
        size = value if kind is int else len(value)
        if not least <= size <= most:
            what = "a number" if kind is int else "a text of a length"
            shown = "its value" if key == "password" else repr(value)
            raise ConfigurationError(
                "%s: %s is not allowed; it has to be %s from %d to %d" % (key, shown, what, least, most)
            )
        result[key] = value
    return result
