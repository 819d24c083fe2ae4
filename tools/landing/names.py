"""Find and mask devices' names in bytes.

An occurrence inside the name of a device that is kept (`dev-1` in `dev-10`) does not count; so the names of all kept devices
must be given. Bytes are searched for every form in which a name is written in flashmqtt's files: plain, escaped for JSON, HTML or
a URL, and inside base64.
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
"""Shorter names occur in any file by chance."""
LEAST_BASE64 = 6
"""The same, for base64."""


class Names:
    """The names of devices to be deleted, and of those that are kept.

    Args:
        names: the devices to be deleted.
        kept: all other devices.
        words: a text with all words of flashmqtt's file formats.

    Attributes:
        weak: names that are too short, or a word of a file format, so that a search of bytes can't find them reliably.
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
        self._around: dict[
            tuple[int, int], set[bytes]
        ] = {}  # (a form's position in a kept name, the kept name's length): kept names
        for name in self.kept:
            for whole in forms_of(name, base64_too=False):
                for form in ordered:
                    at = whole.find(form)
                    while at >= 0:
                        self._around.setdefault((at, len(whole)), set()).add(whole)
                        self.longest = max(self.longest, len(whole))
                        at = whole.find(form, at + 1)

    def places(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the begin and end of each occurrence of a name."""
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
        """Return the bytes with each name replaced by asterisks. The length stays the same, so length fields stay valid."""
        made = bytearray(data)
        for begin, end in self.places(data):
            made[begin:end] = b"*" * (end - begin)
        return bytes(made)

    def own(self, topic: str, payload: bytes = b"") -> bool:
        """Return whether a message belongs to a device that is to be deleted.

        The topic decides if it contains the name of a device as whole levels; of two such names, one inside the other, the
        longer one decides. Otherwise the payload decides.
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
    """Return the possible devices of a topic: the device of a board's topic, or everything before the last level."""
    return {device_of(topic), topic.rpartition("/")[0]}


def forms_of(name: str, base64_too: bool = True) -> set[bytes]:
    """Return the forms in which a name may be written in a file."""
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
        for before in range(3):  # the characters that do not depend on the bytes before and after the name
            text = base64.b64encode(bytes(before) + plain)
            skipped = (0, 2, 3)[before]
            whole = len(bytes(before) + plain) * 8 // 6
            forms |= {text[skipped:whole], text[skipped:whole].translate(bytes.maketrans(b"+/", b"-_"))}
    return forms
