"""Find and mask devices' names in bytes.

An occurrence inside a text of a device that is kept (`dev-1` in the device `dev-10`, `pump` in the reading `pump-speed`) does
not count; so these texts must be given. Bytes are searched for every form in which a name is written in flashmqtt's files:
plain, escaped for JSON, HTML or a URL, and inside base64.
"""

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator

from tools.landing.segments import device_of

LEAST_BYTES = 4
"""Shorter names occur in any file by chance."""
LEAST_BASE64 = 6
"""The same, for base64."""
MOST_IN_A_TEXT = 16
"""So many occurrences in a text that is kept are enough to recognise the text: it may consist of thousands."""


class Names:
    """The names of devices to be deleted, and of those that are kept.

    Args:
        names: the devices to be deleted.
        kept: all other devices.
        words: a text with all words of flashmqtt's file formats.
        texts: other texts of kept devices that may contain a name: their readings' names, their topics.
        topics: for some topics, whether their messages belong to a device that is to be deleted.
        of: returns the possible devices of a message, from its topic and its payload (None if it is unknown).

    Attributes:
        forms: all other names, in the forms in which they may be written, longest first.
        weak: names that a search of bytes can't distinguish from other things: they are too short, a word of a file format,
            or the name of a kept device's reading.
    """

    def __init__(
        self,
        names: Iterable[str],
        kept: Iterable[str] = (),
        words: bytes = b"",
        texts: Iterable[str] = (),
        topics: dict[str, bool] | None = None,
        *,
        of: Callable[[str, bytes | None], set[str]],
    ):
        self.devices = set(names)
        self.kept = set(kept) - self.devices
        texts, self._topics, self._of = set(texts), topics or {}, of
        self.weak = {name for name in self.devices if len(name.encode()) < LEAST_BYTES or name.encode() in words}
        self.weak |= self.devices & texts
        forms = {form: name for name in self.devices - self.weak for form in forms_of(name)}
        self.longest = max(map(len, forms), default=1)
        self.forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self.forms))) if forms else None
        self._longer = {name: [one for one in self.kept if f"/{name}/" in f"/{one}/"] for name in self.devices}
        # (a form's position in a kept name, the kept name's length): kept names
        self._around: dict[tuple[int, int], set[bytes]] = {}
        for name in self.kept | texts:
            for whole in forms_of(name, base64_too=False):
                for form in self.forms:
                    at = -1
                    for _ in range(MOST_IN_A_TEXT):
                        at = whole.find(form, at + 1)
                        if at < 0:
                            break
                        self._around.setdefault((at, len(whole)), set()).add(whole)
                        self.longest = max(self.longest, len(whole))

    def places(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the begin and end of each occurrence of a name."""
        if self._pattern is None:
            return
        kept_to = 0
        for found in self._pattern.finditer(data):
            begin, end = found.span()
            if end <= kept_to:
                continue
            ends = (
                begin - at + size
                for (at, size), names in self._around.items()
                if at <= begin and data[begin - at : begin - at + size] in names
            )
            kept_to = max(ends, default=0)
            if not kept_to:
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

    def may_own(self, topic: str) -> bool:
        """Return whether a message of this topic may belong to a device that is to be deleted."""
        return self._topics[topic] if topic in self._topics else bool(self._of(topic, None) & self.devices)

    def own(self, topic: str, payload: bytes | None = None) -> bool:
        """Return whether a message belongs to a device that is to be deleted.

        Where the message may be of several devices (only a mapping would tell), a kept device in the topic decides.
        """
        if topic in self._topics:
            return self._topics[topic]
        possible = self._of(topic, payload)
        if len(possible) == 1:
            return possible <= self.devices
        levels = f"/{topic}/"
        device = device_of(topic)
        for name in possible & self.devices:
            longer = any(f"/{one}/" in levels for one in self._longer[name])
            other = device in self.kept and f"/{device}/" not in f"/{name}/"
            if not longer and not other:
                return True
        return False


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
