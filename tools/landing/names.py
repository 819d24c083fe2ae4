"""Devices' names in bytes: where they occur, and what a text is without them.

A name that is a part of another device's name (`dev-1` in `dev-10`) is not taken for it: the names that are kept are known, and
an occurrence that is one of theirs is none of ours. Bytes are searched for the forms that a name takes in our files: as it is, as
JSON, HTML and a URL write it, and as a part of a base64 text.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator

from tools.landing.segments import device_of

LEAST_BYTES = 4
"""A shorter name occurs in any file by chance."""
LEAST_BASE64 = 6


class Names:
    """Some devices' names, to be looked for beside others that are kept.

    Args:
        names: the devices.
        kept: all other devices.
        words: a text of the words of our formats.

    Attributes:
        weak: names that can't be told from our own words, or from chance, by their bytes.
    """

    def __init__(self, names: Iterable[str], kept: Iterable[str] = (), words: bytes = b""):
        self.devices = set(names)
        self.kept = set(kept) - self.devices
        self.weak = {name for name in self.devices if len(name.encode()) < LEAST_BYTES or name.encode() in words}
        forms = {form: name for name in self.devices - self.weak for form in forms_of(name)}
        self.longest = max(map(len, forms), default=1)
        ordered = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, ordered))) if forms else None
        self._longer = {name: [one for one in self.kept if f"/{name}/" in f"/{one}/"] for name in self.devices}
        self._around: dict[tuple[int, int], set[bytes]] = {}  # (a form's place in a kept name, its length): those names
        for name in self.kept:
            for whole in forms_of(name, base64_too=False):
                for form in ordered:
                    at = whole.find(form)
                    while at >= 0:
                        self._around.setdefault((at, len(whole)), set()).add(whole)
                        self.longest = max(self.longest, len(whole))
                        at = whole.find(form, at + 1)

    def places(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where a name begins and ends."""
        if self._pattern is None:
            return
        for found in self._pattern.finditer(data):
            begin, end = found.span()
            if not any(
                data[begin - at : begin - at + size] in names
                for (at, size), names in self._around.items()
                if at <= begin
            ):
                yield begin, end

    def occur(self, data: bytes) -> bool:
        """Return whether a name occurs."""
        return next(self.places(data), None) is not None

    def without(self, data: bytes) -> bytes:
        """Return some bytes with asterisks in the place of the names: as many, so that what holds lengths stays right."""
        made = bytearray(data)
        for begin, end in self.places(data):
            made[begin:end] = b"*" * (end - begin)
        return bytes(made)

    def own(self, topic: str, payload: bytes = b"") -> bool:
        """Return whether a message is one of theirs: by its topic, or where the topic names none that is kept, by its payload.

        A name counts that is whole levels of the topic. Where a kept one is, too, the one counts that the other is a part of.
        """
        levels = f"/{topic}/"
        device = device_of(topic)
        for name in self.devices:
            if f"/{name}/" not in levels or (name in self.weak and name not in devices_of(topic)):
                continue
            longer = any(f"/{one}/" in levels for one in self._longer[name])
            other = device in self.kept and f"/{device}/" not in f"/{name}/"
            if not longer and not other:
                return True
        return device not in self.kept and self.occur(payload)


def devices_of(topic: str) -> set[str]:
    """Return the devices that a topic may stand for: of our boards' topics, and what is before the last level of others."""
    return {device_of(topic), topic.rpartition("/")[0]}


def forms_of(name: str, base64_too: bool = True) -> set[bytes]:
    """Return the bytes that a name may be in a file."""
    plain = name.encode()
    in_json = json.dumps(name)[1:-1]
    forms = {
        plain,
        in_json.encode(),
        in_json.replace("/", "\\/").encode(),
        json.dumps(name, ensure_ascii=False)[1:-1].encode(),
    }
    forms |= {html.escape(name).encode(), html.escape(in_json).encode()}
    forms |= {urllib.parse.quote(name).encode(), urllib.parse.quote(name, safe="").encode()}
    if base64_too and len(plain) >= LEAST_BASE64:
        for before in range(3):  # what of it does not depend on its neighbours
            text = base64.b64encode(bytes(before) + plain)
            skipped = (0, 2, 3)[before]
            whole = len(bytes(before) + plain) * 8 // 6
            forms |= {text[skipped:whole], text[skipped:whole].translate(bytes.maketrans(b"+/", b"-_"))}
    return forms
