"""The board's configuration as people write it, `config.toml`, checked here and made into what the board reads.

Tables and keys are for people; the board gets one flat JSON object with the keys of `app.configuration.KEYS`, only those that
differ from its defaults. Secrets come from the environment or from `config.local.toml`, which git ignores; that file may
hold any other key too, and what it says goes before `config.toml`. A secret is never printed.
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

# table -> key -> (the board's key, how many of the board's unit one of ours is)
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
# Keys of [broker] that concern this machine: the files are here, and the board is told where they will be there.
TLS_FILES = ("ca", "cert", "key")
TLS_KEYS = ("tls", *TLS_FILES)
TLS_PORT = 8883
ENVIRONMENT = {"password": "FLASHMQTT_WIFI_PASSWORD", "broker_password": "FLASHMQTT_BROKER_PASSWORD"}
HIDDEN = "(hidden)"


def _read(path: Path) -> dict:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except ValueError as error:  # of UTF-8, too
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
    """Take the keys about TLS out of [broker]; return them."""
    found: dict = {}
    for key in TLS_KEYS:
        value = content.pop(key, None)
        if value is None:
            continue
        if key == "tls":
            if not isinstance(value, bool):
                raise ConfigurationError(
                    f"{name}: broker.tls: {value!r} is not allowed; "
                    "it has to be true or false (broker.ca names the authority's file)"
                )
            found[key] = value
        elif not isinstance(value, str):
            raise ConfigurationError(f"{name}: broker.{key}: {value!r} is not allowed; it has to be the name of a file")
        elif value:
            found[key] = folder / value
    return found


def _checked_tls(found: dict) -> Tls:
    """Return what the files say about TLS.

    Raises:
        ConfigurationError: keys that don't fit each other.
    """
    tls = Tls(found.get("tls", False), found.get("ca"), found.get("cert"), found.get("key"))
    named = [key for key in TLS_FILES if found.get(key)]
    if named and not tls.on:
        raise ConfigurationError(f"config.toml: broker.{named[0]} is set, and TLS is off: set broker.tls = true")
    if bool(tls.cert) != bool(tls.key):
        raise ConfigurationError("config.toml: broker.cert and broker.key go together: the certificate and its key")
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
    """Return the board's configuration, complete and checked, from `config.toml`, `config.local.toml` and the environment,
    and what they say about TLS; the files that are named there lie beside `config.toml`.

    Raises:
        ConfigurationError: names file, key, value and what is allowed; never a secret.
    """
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigurationError(f"{path} is not there: copy boards/config.example.toml to it and fill it in")
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
            "there is no Wi-Fi password: set FLASHMQTT_WIFI_PASSWORD, or write password under [wifi] into config.local.toml "
            "(an open network: leave ssid empty and join it in boot.py)"
        )
    if set(config["device"]) & set("+#\0"):
        raise ConfigurationError(
            f"device.id: {config['device']!r} can't stand in topics: there +, # and NUL are not allowed"
        )
    if config["level"] == 3 and len(config["device"]) > 23:
        raise ConfigurationError("device.id: MQTT 3.1 allows at most 23 characters")
    return config, tls


def compact(config: dict) -> bytes:
    """Return what is written to the board: JSON of the keys that differ from the board's defaults."""
    return json.dumps(
        {key: value for key, value in config.items() if value != KEYS[key][1]},
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


def shown(config: dict) -> dict:
    """Return a configuration that may be printed."""
    return {key: HIDDEN if key in SECRETS and value else value for key, value in config.items()}
