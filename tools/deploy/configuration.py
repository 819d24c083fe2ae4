"""Read and check `config.toml`, and convert it to the board's configuration.

The board gets one flat JSON object with those keys of `app.configuration.KEYS` that differ from the defaults. Secrets come from
the environment or from `config.local.toml`, which git ignores. `config.local.toml` may have any other key, too, and overrides
`config.toml`. A secret is never printed.
"""

import difflib
import ipaddress
import json
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.configuration import KEYS, SECRETS, ConfigurationError, check, complaint
from tools.bootstrap import ROOT
from tools.deploy.certificates import Tls

# Keys of [broker] with files on this machine; the board gets their paths on the board.
TLS_FILES = ("ca", "cert", "key")
TLS_KEYS = ("tls", *TLS_FILES)
# table -> its keys
TABLES = {
    "broker": ("host", "port", "level", "user", "password", "keep_alive_s", "window", "longest_pause_s", *TLS_KEYS),
    "wifi": ("ssid", "password", "country"),
    "device": ("id", "watchdog_s", "status_s", "log"),
    "readings": ("interval_s", "health_s", "when_full"),
    "journal": ("kib",),
    "time": ("ntp",),
    "home_assistant": ("discovery",),
    "sleep": ("sleep_s", "awake_s"),
}
# Keys that differ on the board: -> the board's key, the factor from our unit to the board's
BOARD_KEYS: dict[str, tuple[str, float]] = {
    "broker.host": ("broker", 1),
    "broker.password": ("broker_password", 1),
    "device.id": ("device", 1),
    "device.status_s": ("status_ms", 1000),
    "readings.interval_s": ("interval_ms", 1000),
    "journal.kib": ("sectors", 1 / 4),
}
TLS_PORT = 8883
ENVIRONMENT = {"password": "FLASHMQTT_WIFI_PASSWORD", "broker_password": "FLASHMQTT_BROKER_PASSWORD"}
HIDDEN = "(hidden)"
CONNECT_BYTES = (
    560  # of user, password and twice the id (also in the will's topic): CONNECT has to fit in the board's buffer
)
HOST = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
NTP = re.compile(HOST.pattern + "(?::([0-9]{1,5}))?")
SENSORS = ROOT / "firmware" / "app" / "sensors"
# kind -> the names of its values (none: the module finds them), the required keys, the other keys
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "bme280": (("temperature", "humidity", "pressure"), ("sda", "scl"), ("bus", "address")),
    "dht22": (("temperature", "humidity"), ("pin",), ()),
    "ds18b20": ((), ("pin",), ()),
}
SENSOR_KEYS = ("kind", "name", "qos", "interval_ms")
SENSOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-:./_]{0,63}")  # RFC 8428, 4.5.1
NAME_RULE = "a text of at most 64 letters (A to Z), digits and - : . / _ that begins with a letter or digit"
NONCHARACTERS = "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
REFUSED = re.compile(f"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{NONCHARACTERS}]")
QUOTED = 100  # characters of a wrong value that an error shows
COUNTRY = re.compile(r"([A-Z]{2})?")
LINE = re.compile(r"\(at (?:line (\d+),|end of document\))")
# How an error of tomllib begins -> what to do.
TOML_HINTS = {
    "Cannot overwrite a value": "it is there twice; delete one of the two",
    "Cannot declare": "it is there twice; write all its keys below one heading",
    "Invalid value": 'a text needs quotation marks ("); true and false have small letters',
    "Illegal character '\\n'": "the closing quotation mark is missing",
    "Invalid statement": "a line is a table's heading, [broker], or key = value",
    "Expected '='": "a line is a table's heading, [broker], or key = value",
    "Unescaped": "a backslash is written twice (\\\\), or the text is put into single quotation marks",
    "Unterminated string": "the closing quotation mark is missing",
    "Expected newline": 'a text needs quotation marks ("); a number has a decimal point, and no unit; one value in a line',
    "'utf-8' codec": "save the file as UTF-8",
}
TYPES = {
    "of type int": "a whole number, without quotation marks and decimal point",
    "of type str": "a text in quotation marks",
}


def _read(path: Path) -> dict:
    text = ""
    try:
        text = path.read_bytes().decode("utf-8-sig")  # an editor may write a byte order mark
        return tomllib.loads(text)
    except ValueError as error:  # also for invalid UTF-8
        raise ConfigurationError(f"{path.name} is not TOML: {error}{_toml_hint(text, str(error))}") from None
    except RecursionError:
        raise ConfigurationError(
            f"{path.name} is not TOML for a board: its lists or tables are nested too deeply"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path.name} can't be read: {error.strerror}") from None


def _toml_hint(text: str, error: str) -> str:
    """Return what an error of tomllib is about: the known key or table of its line (never a value), and what to do."""
    found = LINE.search(error)
    lines = text.rstrip().split("\n")
    line = lines[int(found[1] or len(lines)) - 1] if found else ""
    name = line.partition("=")[0].partition("#")[0].strip()
    known = {*TABLES, *(key for table in TABLES for key in TABLES[table]), "sensors", *SENSOR_KEYS, "pin"}
    hint = next((hint for words, hint in TOML_HINTS.items() if error.startswith(words)), "")
    return (f", {name!r}" if name.strip("[]") in known else "") + (f": {hint}" if hint else "")


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}... ({len(text):,} characters)"


def _refused(key: str, value: object, rule: str) -> ConfigurationError:
    return ConfigurationError(f"{key}: {_quoted(value)} is not allowed; it has to be {rule}")


def _complaint(value: object, rule: Sequence) -> str:
    problem = complaint(value, rule)
    return TYPES.get(problem, problem)


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word.lower(), known, 1)
    return f"; do you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"


def board_key(table: str, key: str) -> tuple[str, float]:
    """Return the board's key, and the factor from our unit to the board's."""
    return BOARD_KEYS.get(f"{table}.{key}", (key, 1))


def _one(folder: Path, table: str, key: str, value: Any, secrets_allowed: bool) -> tuple[str, object]:
    """Return the board's key and value for one key of a file; of TLS, the key and the setting."""
    if key not in TABLES[table]:
        raise ConfigurationError(f"[{table}] has no key {_quoted(key)}{_near(key, TABLES[table])}")
    if key == "tls" and not isinstance(value, bool):
        raise _refused("broker.tls", value, "true or false; broker.ca is the key for the authority's file")
    if key in TLS_FILES and (not isinstance(value, str) or "\0" in value):
        raise _refused(f"broker.{key}", value, "the name of a file")
    if key in TLS_KEYS:
        return key, value if key == "tls" else folder / value if value else None
    name, factor = board_key(table, key)
    rule = KEYS[name]
    if factor == 1:
        problem = _complaint(value, rule)
        if name == "country" and not (isinstance(value, str) and COUNTRY.fullmatch(value)):
            problem = "two capital letters (ISO 3166), such as AT"
    else:
        least, most = (bound / factor for bound in rule[2:])
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        problem = "" if is_number and least <= value <= most else f"a number from {least:g} to {most:g}"
    if problem and name in SECRETS:
        raise ConfigurationError(f"{table}.{key}: its value is not allowed; it has to be {problem}")
    if problem:
        raise _refused(f"{table}.{key}", value, problem)
    if name in SECRETS and not secrets_allowed:
        raise ConfigurationError(
            f"{table}.{key} is a secret: put it into config.local.toml, which git ignores, "
            f"or into the environment as {ENVIRONMENT[name]}"
        )
    return name, value if factor == 1 else math.ceil(value * factor) if factor < 1 else round(value * factor)


def _checked_tls(given: dict) -> Tls:
    """Take the TLS settings out of the keys that were given; return them.

    Raises:
        ConfigurationError: the keys contradict each other.
    """
    tls = Tls(given.pop("tls", False), *(given.pop(key, None) for key in TLS_FILES))
    named = [key for key in TLS_FILES if getattr(tls, key)]
    if named and not tls.on:
        raise ConfigurationError(f"config.toml: broker.{named[0]} is set, but TLS is off: set broker.tls = true")
    if bool(tls.cert) != bool(tls.key):
        raise ConfigurationError(
            "config.toml: broker.cert and broker.key must be set together: a certificate and its key"
        )
    return tls


def _sensor_complaint(kind: str, key: str, value: object) -> str:
    """Return what a value of an entry of [[sensors]] has to be, or "" if it is allowed."""
    if key == "name":
        return "" if isinstance(value, str) and SENSOR_NAME.fullmatch(value) else NAME_RULE
    if key == "qos":
        return "0, 1 or 2" if complaint(value, (int, 1, (0, 1, 2))) else ""
    if key == "interval_ms":
        return _complaint(value, KEYS[key])
    if kind in KINDS and key != "kind":
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        is_pin = key in KINDS[kind][1] and isinstance(value, str) and value and not value.isdecimal()  # Pin("GP15")
        return "" if is_number or is_pin else 'a number from 0, or a pin\'s name such as "GP15"'
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # a date, or nan
        return "a text, a finite number, true, false, or a list or table of these"
    return ""


def _check_sensors(entries: list) -> None:
    """Check [[sensors]]. Modules that a user added may have any keys.

    Raises:
        ConfigurationError: an entry is wrong, or two values of one message have the same name.
    """
    if problem := complaint(entries, KEYS["sensors"]):
        raise ConfigurationError(f"sensors: {len(entries)} entries are not allowed; it has to be {problem}")
    kinds = sorted(path.stem for path in SENSORS.glob("*.py") if not path.stem.startswith("_"))
    taken = set()
    for n, entry in enumerate(entries, 1):
        where = f"sensors, entry {n}"
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind is None:
            raise ConfigurationError(f"{where}: the key 'kind' is missing; known kinds: {', '.join(kinds)}")
        if kind not in kinds:
            raise ConfigurationError(f"{where}: the kind {_quoted(kind)} is not allowed{_near(str(kind), kinds)}")
        values, required, others = KINDS.get(kind, ((), (), ()))
        known = [*SENSOR_KEYS, *required, *others]
        for key, value in entry.items():
            if kind in KINDS and key not in known:
                raise ConfigurationError(f"{where}: the kind {kind!r} has no key {key!r}{_near(key, known)}")
            problem = _sensor_complaint(kind, key, value)
            if problem:
                raise _refused(f"{where}: {key}", value, problem)
        for key in required:
            if key not in entry:
                raise ConfigurationError(f"{where}: the key {key!r} of the kind {kind!r} is missing")
        given = entry.get("name")
        for value in [f"{given}_{value}" if given else value for value in values] or [given]:
            place = (value, entry.get("qos", 1), entry.get("interval_ms", 0))
            if value and place in taken:
                raise ConfigurationError(f"{where}: two values have the name {value!r}; give each entry its own name")
            taken.add(place)


def _check_texts(config: dict) -> None:
    """Check the texts that are names of hosts or parts of topics.

    Raises:
        ConfigurationError: one is not allowed.
    """
    host, server = config["broker"], config["ntp"]
    if not HOST.fullmatch(host) and not _is_ipv6(host):
        raise _refused("broker.host", host, "a name or an address only; the port is broker.port")
    found = NTP.fullmatch(server)
    if server and not (found and 0 < int(found[1] or 123) < 65536):
        raise _refused("time.ntp", server, "a name or IPv4 address, or name:port")
    if len(config["ssid"].encode()) > 32:
        raise ConfigurationError(f"wifi.ssid: {config['ssid']!r} is too long: it has at most 32 bytes in UTF-8")
    parts = (("device.id", config["device"]), ("home_assistant.discovery", config["discovery"]))
    for key, text in parts:
        if set(text) & set("+#\0"):
            raise ConfigurationError(
                f"{key}: {text!r} is not allowed: it is a part of topics, which can't contain +, # or NUL"
            )
    for key, text in (("broker.user", config["user"]), *parts):
        if REFUSED.search(text):
            raise ConfigurationError(
                f"{key}: {text!r} is not allowed: brokers refuse control characters and Unicode's noncharacters "
                "(MQTT 3.1.1, 1.5.3)"
            )
    size = len((config["user"] + config["broker_password"] + 2 * config["device"]).encode())
    if size > CONNECT_BYTES:
        raise ConfigurationError(
            f"broker.user, broker.password and twice device.id are too long together: {size} bytes; {CONNECT_BYTES} at most"
        )


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _flat(folder: Path, tables: dict, secrets_allowed: bool) -> dict:
    flat: dict = {}
    for table, content in tables.items():
        if table == "sensors":
            if not isinstance(content, list):
                raise ConfigurationError("sensors have to be written as [[sensors]]")
            _check_sensors(content)
            flat["sensors"] = content
        elif table not in TABLES and not isinstance(content, dict | list):
            places = " or ".join(f"[{one}]" for one in TABLES if table in TABLES[one]) or "a table's heading"
            raise ConfigurationError(f"{table!r} is above the first table: write it below {places}")
        elif table not in TABLES:
            raise ConfigurationError(f"unknown table [{table}]{_near(table, [*TABLES, 'sensors'])}")
        elif not isinstance(content, dict):
            raise ConfigurationError(f"{table} has to be a table, [{table}]")
        else:
            flat.update(_one(folder, table, key, value, secrets_allowed) for key, value in content.items())
    return flat


def load(folder: Path, environment: Mapping[str, str] = os.environ) -> tuple[dict, Tls]:
    """Return the board's complete configuration and the TLS settings.

    They come from `config.toml`, `config.local.toml` and the environment. Paths of files are relative to `config.toml`.

    Raises:
        ConfigurationError: the text has file, key, value and what is allowed; never a secret.
    """
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist: copy boards/config.example.toml there and fill it in")
    given: dict = {}
    for one, secrets_allowed in ((path, False), (folder / "config.local.toml", True)):
        if one is path or one.exists():
            tables = _read(one)
            try:
                given |= _flat(folder, tables, secrets_allowed)
            except ConfigurationError as error:
                raise ConfigurationError(f"{one.name}: {error}") from None
    tls = _checked_tls(given)
    given |= tls.paths()
    if tls.on:
        given.setdefault("port", TLS_PORT)
    for board_key, variable in ENVIRONMENT.items():
        if environment.get(variable):
            given[board_key] = environment[variable]
            try:
                environment[variable].encode()
            except UnicodeEncodeError:
                raise ConfigurationError(f"{variable} in the environment is not UTF-8") from None
    if "broker" not in given:
        raise ConfigurationError("config.toml: broker.host is missing: the broker's name or address")
    _check_texts({key: rule[1] for key, rule in KEYS.items()} | given)
    config = check(given)
    if config["ssid"] and not config["password"]:
        raise ConfigurationError(
            "there is no Wi-Fi password: set FLASHMQTT_WIFI_PASSWORD, or write password under [wifi] into config.local.toml. "
            "For an open network, leave ssid empty and join the network in boot.py"
        )
    if config["broker_password"] and not config["user"] and config["level"] < 5:
        raise ConfigurationError(
            "broker.user is empty, but there is a broker password: give both or neither "
            f"(level {config['level']} has no password without a user)"
        )
    if config["level"] == 3 and len(config["device"]) > 23:
        raise ConfigurationError(f"device.id: {config['device']!r} is too long: MQTT 3.1 allows at most 23 characters")
    return config, tls


def compact(config: dict) -> bytes:
    """Return the board's config.json: the keys that differ from the board's defaults."""
    return json.dumps(
        {key: value for key, value in config.items() if value != KEYS[key][1]},
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


def shown(config: dict) -> dict:
    """Return a configuration with hidden secrets, for printing."""
    return {key: HIDDEN if key in SECRETS and value else value for key, value in config.items()}
