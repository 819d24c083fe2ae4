"""Read and check `config.toml`, and convert it to the board's configuration.

The board gets one flat JSON object with those keys of `app.configuration.KEYS` that differ from the defaults. Secrets come from
the environment or from `config.local.toml`, which git ignores. `config.local.toml` may have any other key, too, and overrides
`config.toml`. A secret is never printed.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from app.configuration import KEYS, SECRETS, ConfigurationError, check, complaint
from tools.deploy.certificates import Tls

# table -> key -> (the board's key, the factor from our unit to the board's)
TABLES: dict[str, dict[str, tuple[str, float]]] = {
    "broker": {
        "host": ("broker", 1),
        "port": ("port", 1),
        "level": ("level", 1),
        "user": ("user", 1),
        "password": ("broker_password", 1),
        "keep_alive_s": ("keep_alive_s", 1),
        "window": ("window", 1),
        "longest_pause_s": ("longest_pause_s", 1),
    },
    "wifi": {"ssid": ("ssid", 1), "password": ("password", 1), "country": ("country", 1)},
    "device": {
        "id": ("device", 1),
        "watchdog_s": ("watchdog_s", 1),
        "status_s": ("status_ms", 1000),
        "log": ("log", 1),
    },
    "readings": {"interval_s": ("interval_ms", 1000), "health_s": ("health_s", 1), "when_full": ("when_full", 1)},
    "journal": {"kib": ("sectors", 1 / 4)},
    "time": {"ntp": ("ntp", 1)},
    "home_assistant": {"discovery": ("discovery", 1)},
    "sleep": {"sleep_s": ("sleep_s", 1), "awake_s": ("awake_s", 1)},
}
# Keys of [broker] with files on this machine; the board gets their paths on the board.
TLS_FILES = ("ca", "cert", "key")
TLS_KEYS = ("tls", *TLS_FILES)
TLS_PORT = 8883
ENVIRONMENT = {"password": "FLASHMQTT_WIFI_PASSWORD", "broker_password": "FLASHMQTT_BROKER_PASSWORD"}
HIDDEN = "(hidden)"


def _read(path: Path) -> dict:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except ValueError as error:  # also for invalid UTF-8
        raise ConfigurationError(f"{path.name} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path.name} can't be read: {error.strerror}") from None


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; do you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"


def _shown(board_key: str, value: object) -> str:
    return "its value" if board_key in SECRETS else repr(value)


def _one(name: str, table: str, key: str, value: object) -> tuple[str, object]:
    """Return the board's key and value for one key of a file."""
    known = TABLES[table]
    if key not in known:
        raise ConfigurationError(
            f"{name}: [{table}] has no key {key!r}{_near(key, [*known, *(TLS_KEYS if table == 'broker' else ())])}"
        )
    board_key, factor = known[key]
    rule = KEYS[board_key]
    if factor != 1:
        least, most = (bound / factor for bound in rule[2:])
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ConfigurationError(
                f"{name}: {table}.{key}: {value!r} is not allowed; it has to be a number from {least:g} to {most:g}"
            )
        return board_key, round(value * factor) if factor > 1 else math.ceil(value * factor)
    problem = complaint(value, rule)
    if problem:
        raise ConfigurationError(
            f"{name}: {table}.{key}: {_shown(board_key, value)} is not allowed; it has to be {problem}"
        )
    return board_key, value


def _tls(name: str, folder: Path, content: dict) -> dict:
    """Remove the TLS keys from [broker]; return them."""
    found: dict = {}
    for key in TLS_KEYS:
        value = content.pop(key, None)
        if value is None:
            continue
        if key == "tls":
            if not isinstance(value, bool):
                raise ConfigurationError(
                    f"{name}: broker.tls: {value!r} is not allowed; "
                    "it has to be true or false; broker.ca is the key for the authority's file"
                )
            found[key] = value
        elif not isinstance(value, str):
            raise ConfigurationError(f"{name}: broker.{key}: {value!r} is not allowed; it has to be the name of a file")
        elif value:
            found[key] = folder / value
    return found


def _checked_tls(found: dict) -> Tls:
    """Return the TLS settings.

    Raises:
        ConfigurationError: the keys contradict each other.
    """
    tls = Tls(found.get("tls", False), found.get("ca"), found.get("cert"), found.get("key"))
    named = [key for key in TLS_FILES if found.get(key)]
    if named and not tls.on:
        raise ConfigurationError(f"config.toml: broker.{named[0]} is set, but TLS is off: set broker.tls = true")
    if bool(tls.cert) != bool(tls.key):
        raise ConfigurationError(
            "config.toml: broker.cert and broker.key must be set together: a certificate and its key"
        )
    return tls


def _flat(name: str, tables: dict, secrets_allowed: bool) -> dict:
    flat: dict = {}
    for table, content in tables.items():
        if table == "sensors":
            if not isinstance(content, list):
                raise ConfigurationError(f"{name}: sensors have to be written as [[sensors]]")
            flat["sensors"] = content
            continue
        if table not in TABLES:
            raise ConfigurationError(f"{name}: unknown table [{table}]{_near(table, [*TABLES, 'sensors'])}")
        if not isinstance(content, dict):
            raise ConfigurationError(f"{name}: {table} has to be a table, [{table}]")
        for key, value in content.items():
            board_key, board_value = _one(name, table, key, value)
            if board_key in SECRETS and not secrets_allowed:
                raise ConfigurationError(
                    f"{name}: {table}.{key} is a secret: put it into config.local.toml, which git ignores, "
                    f"or into the environment as {ENVIRONMENT[board_key]}"
                )
            flat[board_key] = board_value
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
    found: dict = {}
    for one, secrets_allowed in ((path, False), (folder / "config.local.toml", True)):
        if one is path or one.exists():
            tables = _read(one)
            if isinstance(tables.get("broker"), dict):
                found |= _tls(one.name, folder, tables["broker"])
            given |= _flat(one.name, tables, secrets_allowed)
    tls = _checked_tls(found)
    given |= tls.paths()
    if tls.on:
        given.setdefault("port", TLS_PORT)
    for board_key, variable in ENVIRONMENT.items():
        if environment.get(variable):
            given[board_key] = environment[variable]
    if "broker" not in given:
        raise ConfigurationError("config.toml: broker.host is missing: the broker's name or address")
    config = check(given)
    if config["ssid"] and not config["password"]:
        raise ConfigurationError(
            "there is no Wi-Fi password: set FLASHMQTT_WIFI_PASSWORD, or write password under [wifi] into config.local.toml. "
            "For an open network, leave ssid empty and join the network in boot.py"
        )
    if set(config["device"]) & set("+#\0"):
        raise ConfigurationError(
            f"device.id: {config['device']!r} is not allowed: it is a part of topics, which can't contain +, # or NUL"
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
