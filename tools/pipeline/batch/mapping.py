"""Convert topics and payloads of any kind to readings, by a mapping file or by default rules.

A mapping file is TOML, with a table `[[map]]` for each kind of reading (README.md has an example). The first table whose
`topic` matches applies, together with all other tables of the same `topic`. Each gives the readings that its paths find.
A message without any reading, or with an invalid value, raises `Misfit` with the reason, and goes to quarantine.

Without a mapping, a payload that is one number or boolean is a reading: the topic's last level is its name, and the levels
before it are the device. Topics below `flashmqtt/` are of our boards, whose messages have an identity.

This module uses neither Arrow nor Spark. Spark sends a mapping to the executors, so JSON paths are compiled there.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tools.command import Failure, explained

OURS = "flashmqtt/"
NO_READINGS = ("flashmqtt-live/", "flashmqtt-commands/", "homeassistant/")
"""Messages of our programs that are no readings: live values, commands, Home Assistant's discovery."""
NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
# JSON's booleans, Python's, and the words of devices that announce their connection.
BOOLEANS = {"true": True, "True": True, "online": True, "false": False, "False": False, "offline": False}
WORDS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
UNITS_US = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0, "ns": 0.001}
LATEST_US = 253_402_300_799_000_000  # the end of the year 9999
KEYS = ("topic", "device", "path", "name", "value", "unit", "time", "time_unit", "format", "as", "ignore")
CHOICES = {"time_unit": tuple(UNITS_US), "format": ("json", "text"), "as": ("number", "boolean")}
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
STEPS = re.compile(r"[$@](\.[A-Za-z_][A-Za-z0-9_]*)*")
LONGEST_SHOWN = 60


class MappingError(Failure):
    """A mapping file can't be used. The text has the line and the reason."""


class Misfit(ValueError):
    """A message does not fit its mapping. The text has the reason."""


class Reading(NamedTuple):
    """A reading that a mapping found."""

    device: str
    name: str
    unit: str | None
    value: float | None
    text: str | None
    flag: bool | None
    time_us: int | None


Nodes = list[tuple[Any, Any]]
"""What a path finds: each value with its key or index (None for the whole payload)."""


@dataclass(frozen=True)
class Rule:
    """A table `[[map]]`. Its values are texts with placeholders, or JSON paths, which begin with `$` or `@`."""

    topic: str
    pattern: re.Pattern[str]
    ignore: bool = False
    device: str = "{device}"
    path: str = "$"
    name: str = "{key}"
    value: str = "@"
    unit: str | None = None
    time: str | None = None
    time_unit: str = "s"
    format: str = "json"
    convert: str | None = None

    def readings(self, words: dict[str, str], whole: Any) -> Iterator[Reading]:
        """Yield the readings that the rule finds in a payload.

        Raises:
            Misfit: a value is not a reading.
        """
        several = not _is_single(self.path)
        for item, item_key in _find(self.path, whole, whole):
            for found, key in _find(self.value, whole, item):
                if isinstance(found, dict | list):
                    if several or not _is_single(self.value):
                        continue
                    raise Misfit(f"{self.value} is neither a number, a boolean nor a text")
                if found is None:
                    continue
                filled = {**words, "key": _shown(item_key if key is None else key)}
                device, name = (self._text(which, filled, whole, item) for which in ("device", "name"))
                if not device or not name:
                    raise Misfit(f"no {'name' if device else 'device'}")
                unit = self._text("unit", filled, whole, item) if self.unit is not None else None
                yield Reading(device, name, unit, *self._typed(found), self._time_us(whole, item))

    def _text(self, which: str, filled: dict[str, str], whole: Any, item: Any) -> str | None:
        """Return a text of the rule: with its placeholders replaced, or the value that its path finds."""
        template = getattr(self, which)
        if template[:1] not in ("$", "@"):
            return PLACEHOLDER.sub(lambda match: filled[match[1]], template)
        found = _first(template, whole, item)
        if isinstance(found, bool | dict | list):
            raise Misfit(f"{which}: {template} is no text")
        return None if found is None else str(found)

    def _typed(self, found: Any) -> tuple[float | None, str | None, bool | None]:
        if self.convert == "number" and isinstance(found, str):
            number = found.strip()
            if not NUMBER.fullmatch(number):
                raise Misfit(f"{self.value} is no number: {_shown(found)}")
            found = float(number)
        elif self.convert == "boolean" and not isinstance(found, bool):
            word = str(found).strip().lower()
            if word not in WORDS:
                raise Misfit(f"{self.value} is no boolean: {_shown(found)}")
            found = WORDS[word]
        if isinstance(found, bool):
            return None, None, found
        if isinstance(found, str):
            return None, found, None
        if not math.isfinite(value := float(found)):
            raise Misfit(NOT_FINITE)
        return value, None, None

    def _time_us(self, whole: Any, item: Any) -> int | None:
        found = _first(self.time, whole, item) if self.time is not None else None
        if found is None:
            return None
        if isinstance(found, str):
            try:
                moment = datetime.datetime.fromisoformat(found)
            except ValueError:
                raise Misfit(f"time: {_shown(found)} is no ISO 8601 time") from None
            if moment.tzinfo is None:
                raise Misfit(f"time: {_shown(found)} has no offset from UTC")
            since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            time_us: float = since // datetime.timedelta(microseconds=1)
        elif isinstance(found, int | float) and not isinstance(found, bool):
            time_us = found * UNITS_US[self.time_unit]
        else:
            raise Misfit(f"time: {self.time} is no time")
        if not 0 <= time_us <= LATEST_US:
            raise Misfit(f"time: {_shown(found)} is out of range")
        return round(time_us)


NOT_FINITE = "a value is not finite"


@dataclass(frozen=True)
class Mapping:
    """The rules of a file, in its order; empty without a file."""

    rules: tuple[Rule, ...] = ()

    def of(self, topic: str) -> tuple[tuple[Rule, ...], dict[str, str]] | None:
        """Return the rules for a topic, and the values of the topic's placeholders; None if no rule matches."""
        for rule in self.rules:
            words = matched(rule.pattern, topic)
            if words is not None:
                return tuple(one for one in self.rules if one.topic == rule.topic), words
        return None


NO_MAPPING = Mapping()


def readings(rules: tuple[Rule, ...], words: dict[str, str], payload: bytes) -> list[Reading]:
    """Return the readings of a message; an empty list if it is to be ignored.

    Raises:
        Misfit: it does not fit the rules.
    """
    if any(rule.ignore for rule in rules):
        return []
    wholes: dict[str, Any] = {}
    found: list[Reading] = []
    for rule in rules:
        if rule.format not in wholes:
            wholes[rule.format] = _whole(rule.format, payload)
        found += rule.readings(words, wholes[rule.format])
    if not found:
        where = (rule.value if rule.path == "$" else f"{rule.path} {rule.value}" for rule in rules)
        raise Misfit(f"nothing at {' nor '.join(dict.fromkeys(where))}")
    return found


def _whole(kind: str, payload: bytes) -> Any:
    if kind == "text":
        try:
            return payload.decode()
        except UnicodeDecodeError:
            raise Misfit("not UTF-8") from None
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise Misfit(f"not JSON: {error.msg}") from None


def _shown(value: Any) -> str:
    return str(value)[:LONGEST_SHOWN]


# JSON paths.


@functools.lru_cache(1024)
def _compiled(path: str) -> Any:
    """Compile a path (RFC 9535). `@` is the item that `path` found, `$` the whole payload."""
    import jsonpath

    return jsonpath.JSONPathEnvironment(strict=True).compile("$" + path[1:])


@functools.lru_cache(1024)
def _steps(path: str) -> tuple[str, ...] | None:
    """Return the names of a path that consists of names only (it needs no JSON path library); None for other paths."""
    return tuple(path.split(".")[1:]) if STEPS.fullmatch(path) else None


@functools.lru_cache(1024)
def _is_single(path: str) -> bool:
    """Return whether a path finds at most one value."""
    return _steps(path) is not None or bool(_compiled(path).singular_query())


def _find(path: str, whole: Any, item: Any) -> Nodes:
    at = whole if path[0] == "$" else item
    steps = _steps(path)
    if steps is None:
        return _found(path, at) if isinstance(at, dict | list) else []
    for step in steps:
        if not isinstance(at, dict) or step not in at:
            return []
        at = at[step]
    return [(at, steps[-1] if steps else None)]


def _first(path: str, whole: Any, item: Any) -> Any:
    """Return the first value that a path finds and that is not null; None if there is none."""
    return next((found for found, _ in _find(path, whole, item) if found is not None), None)


def _found(path: str, at: dict[str, Any] | list[Any]) -> Nodes:
    import jsonpath

    try:
        return [(one.obj, one.parts[-1] if one.parts else None) for one in _compiled(path).finditer(at)]
    except (jsonpath.JSONPathError, RecursionError) as error:  # nested too deeply
        raise Misfit(f"{path}: {str(error).splitlines()[0]}") from None


# Reading a mapping file.


def read(path: str | Path) -> Mapping:
    """Read a mapping file.

    Raises:
        MappingError: it does not exist, is no TOML, or has an invalid key or value. The text has the line.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
        content = tomllib.loads(text)
    except OSError as error:
        raise MappingError(explained(error)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise MappingError(f"{path}: {error}") from error
    lines = text.splitlines()
    begins = [0, *(n for n, line in enumerate(lines) if re.match(r"\s*\[\[\s*map\s*\]\]", line)), len(lines)]

    def wrong(table: int, key: str, reason: str) -> MappingError:
        """Return an error with the line of a key of the file (0) or of a table, which the TOML parser does not return."""
        inside = range(begins[table], begins[table + 1]) if 0 < table < len(begins) - 1 else range(len(lines))
        pattern = rf"""\s*\[?["']?{re.escape(key)}["']?\s*[=\]]"""
        line = next((n for n in inside if re.match(pattern, lines[n])), inside.start)
        return MappingError(f"{path}, line {line + 1}: {reason}")

    for key in content:
        if key != "map":
            raise wrong(0, key, f"unknown key {key!r}; a mapping consists of tables [[map]]")
    tables = content.get("map", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise wrong(0, "map", "there is no table [[map]]")
    return Mapping(tuple(_rule(functools.partial(wrong, n), table) for n, table in enumerate(tables, 1)))


def _rule(wrong: Callable[[str, str], MappingError], table: dict[str, Any]) -> Rule:
    """Return a table's rule. `wrong`: returns the error about a key."""
    for key, value in table.items():
        if key not in KEYS:
            raise wrong(key, f"unknown key {key!r}; known: {', '.join(KEYS)}")
        if key == "ignore":
            if not isinstance(value, bool):
                raise wrong(key, f"ignore = {value!r} has to be true or false")
        elif not isinstance(value, str) or not value:
            raise wrong(key, f"{key} = {value!r} has to be a non-empty text")
        elif key in CHOICES and value not in CHOICES[key]:
            raise wrong(key, f"{key} = {value!r} has to be one of {', '.join(CHOICES[key])}")
    if "topic" not in table:
        raise wrong("topic", 'there is no topic, such as topic = "{device}/{name}"')
    topic = table["topic"]
    try:
        pattern = _pattern(topic)
        words = set(pattern.groupindex)
    except ValueError as error:
        raise wrong("topic", f"topic = {topic!r}: {error}") from None
    given = {"convert" if key == "as" else key: value for key, value in table.items()}
    if "name" in words:
        given.setdefault("name", "{name}")
    rule = Rule(pattern=pattern, **given)
    if rule.ignore:
        if len(table) > 2:
            raise wrong("ignore", "ignore = true allows no other key than topic: remove the others")
        return rule
    if "value" not in table and "path" not in table:
        raise wrong("topic", 'there is neither a value nor a path: value = "$" is the whole payload')
    for key in ("path", "value", "time"):
        if key in table and table[key][0] not in "$@":
            raise wrong(
                key,
                f"{key} = {table[key]!r} has to be a JSON path, which begins with $ (or with @ for the item of path)",
            )
    if rule.path[0] == "@":
        raise wrong("path", f"path = {rule.path!r} has to begin with $: it finds the items in the payload")
    for key in ("device", "path", "name", "value", "unit", "time"):
        try:
            _check(table.get(key, ""), words | {"key"})
        except ValueError as error:
            raise wrong(key, str(error)) from None
    if "device" not in table and "device" not in words:
        raise wrong("topic", f"topic = {topic!r} has no {{device}}, and there is no key device")
    has_key = rule.value != "$" and (rule.value, rule.path) != ("@", "$")
    if "{key}" in rule.name and not has_key:
        raise wrong("topic", f"there is no name: give one, or put {{name}} into topic = {topic!r}")
    return rule


def _check(text: str, known: set[str]) -> None:
    """Check a path, or a text's placeholders.

    Raises:
        ValueError: it is invalid.
    """
    if text[:1] in ("$", "@"):
        try:
            _is_single(text)
        except Exception as error:  # a JSONPathError
            raise ValueError(f"{text!r} is no JSON path (RFC 9535): {str(error).splitlines()[0]}") from None
        return
    for name in PLACEHOLDER.findall(text):
        if name not in known:
            raise ValueError(f"{text!r}: there is no {{{name}}}; known: {', '.join(sorted(known))}")
    if re.search(r"[{}]", PLACEHOLDER.sub("", text)):
        raise ValueError(f"{text!r}: unbalanced braces")


def _pattern(topic: str) -> re.Pattern[str]:
    """Return a topic pattern as a regular expression for the reversed topic.

    The first placeholder of a level is as long as possible. So, from the right, each other one ends where the text before it
    occurs first. An expression in the usual direction could backtrack for days on a topic that a publisher has chosen for that.
    """
    words: set[str] = set()
    *levels, last = topic.split("/")
    made = []
    for level in (*levels, last) if last != "#" else levels:
        if level == "#":
            raise ValueError("# has to be the last level")
        if level == "+":
            made.append("[^/]*")
            continue
        if "+" in level or "#" in level:
            raise ValueError("+ and # have to be whole levels")
        parts = PLACEHOLDER.split(level)
        texts, own = [re.escape(text[::-1]) for text in parts[::2]], parts[1::2]
        for word in own:
            if not word.isidentifier():
                raise ValueError(f"{{{word}}} is no placeholder, such as {{device}}")
            if word in words | {"key"}:
                raise ValueError(f"{{{word}}} is used twice or reserved")
            words.add(word)
        if re.search(r"[{}]", "".join(texts)):
            raise ValueError("unbalanced braces")
        others = [f"(?>(?P<{word}>[^/]+?){text})" for word, text in zip(own[1:], texts[1:], strict=False)]
        first = f"(?P<{own[0]}>[^/]+){texts[0]}" if own else ""
        made.append("".join((texts[-1], *reversed(others), first)))
    end = "" if last != "#" else "(?:.*/)?" if levels else ".*"
    return re.compile(end + "/".join(reversed(made)), re.DOTALL)


def matched(pattern: re.Pattern[str], topic: str) -> dict[str, str] | None:
    """Return the placeholders' values in a topic; None if it does not match."""
    found = pattern.fullmatch(topic[::-1])
    return {word: text[::-1] for word, text in found.groupdict().items()} if found else None


def device_and_name(topic: str) -> tuple[str, str | None]:
    """Return the device and the reading's name of a topic without a mapping."""
    device, _, name = topic.rpartition("/")
    return (device, name) if device and name else (topic, None)
