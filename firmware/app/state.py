"""The application's few values that survive a power cut, in one small file that is replaced atomically.

The new file is written beside the old one and renamed over it; rename is atomic on littlefs and on every POSIX file system. This
module knows only the types and limits of the values. A file that violates them is damaged: as with one that can't be read, the
application begins anew.
"""

from json import dump, load
from os import rename

# name: (least, most) of a number
_NUMBERS = {"interval_ms": (100, 86400000), "life": (1, 0x3FFFFFFF), "since": (1, 0x3FFFFFFF)}
_INTENT = {"id": str, "do": str, "ms": int, "seq": int}


def _is_whole(facts):
    """Return whether the values have the types and limits that the application's other modules rely on."""
    for name, (least, most) in _NUMBERS.items():
        value = facts.get(name, least)
        if type(value) is not int or not least <= value <= most:
            return False
    intent = facts.get("intent")
    return isinstance(facts.get("done", []), list) and (
        intent is None
        or (isinstance(intent, dict) and all(type(intent.get(name)) is kind for name, kind in _INTENT.items()))
    )


class State:
    """A dict in a file; if the file can't be read or has a value of a wrong type, the dict is empty.

    Args:
        path: the file.
    """

    def __init__(self, path="state.json"):
        self._path = path
        try:
            with open(path) as file:
                facts = load(file)
        except (OSError, ValueError):
            facts = None
        self.facts = facts if isinstance(facts, dict) and _is_whole(facts) else {}

    def get(self, name, default=None):
        """Return a value."""
        return self.facts.get(name, default)

    def save(self, **changes):
        """Change values atomically and durably. None removes a value.

        Raises:
            OSError: the file can't be written; nothing has changed.
        """
        facts = dict(self.facts)
        for name, value in changes.items():
            if value is None:
                facts.pop(name, None)
            else:
                facts[name] = value
        with open(self._path + ".new", "w") as file:
            dump(facts, file)
        rename(self._path + ".new", self._path)
        self.facts = facts
