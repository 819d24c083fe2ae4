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
from collections.abc import Mapping
from pathlib import Path

from app.configuration import KEYS, SECRETS, ConfigurationError, check, complaint

# table -> key -> (the board's key, how many of the board's unit one of ours is)
TABLES: dict[str, dict[str, tuple[str, float]]] = {
    "broker": {
        "host": ("broker", 1),
        "port": ("port", 1),
        "level": ("level", 1),
        "tls": ("tls", 1),
        "user": ("user", 1),
        "password": ("broker_password", 1),
        "keep_alive_s": ("keep_alive_s", 1),
        "window": ("window", 1),
        "longest_pause_s": ("longest_pause_s", 1),
    },
    "wifi": {"ssid": ("ssid", 1), "password": ("password", 1), "country": ("country", 1)},
    "device": {"id": ("device", 1), "watchdog_s": ("watchdog_s", 1), "status_s": ("status_ms", 1000)},
    "readings": {"interval_s": ("interval_ms", 1000), "health_s": ("health_s", 1), "when_full": ("when_full", 1)},
    "journal": {"kib": ("sectors", 1 / 4)},
    "time": {"ntp": ("ntp", 1)},
    "home_assistant": {"discovery": ("discovery", 1)},
    "sleep": {"sleep_s": ("sleep_s", 1), "awake_s": ("awake_s", 1)},
}
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


def _near(word: str, known: Mapping) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; do you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"


def _shown(board_key: str, value: object) -> str:
    return "its value" if board_key in SECRETS else repr(value)


def _one(name: str, table: str, key: str, value: object) -> tuple[str, object]:
    """Return the board's key and value for one key of a file."""
    known = TABLES[table]
    if key not in known:
        raise ConfigurationError(f"{name}: [{table}] has no key {key!r}{_near(key, known)}")
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


def _flat(name: str, tables: dict, secrets_allowed: bool) -> dict:
    flat: dict = {}
    for table, content in tables.items():
        if table == "sensors":
            if not isinstance(content, list):
                raise ConfigurationError(f"{name}: sensors have to be written as [[sensors]]")
            flat["sensors"] = content
            continue
        if table not in TABLES:
            raise ConfigurationError(f"{name}: unknown table [{table}]{_near(table, {**TABLES, 'sensors': None})}")
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


def load(folder: Path, environment: Mapping[str, str] = os.environ) -> dict:
    """Return the board's configuration, complete and checked, from `config.toml`, `config.local.toml` and the environment.

    Raises:
        ConfigurationError: names file, key, value and what is allowed; never a secret.
    """
    path = folder / "config.toml"
    if not path.exists():
        raise ConfigurationError(f"{path} is not there: copy boards/config.example.toml to it and fill it in")
    given = _flat(path.name, _read(path), False)
    local = folder / "config.local.toml"
    if local.exists():
        given |= _flat(local.name, _read(local), True)
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
    return config


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
