"""The application's few values that survive a power cut, in one small file that is replaced atomically.

The new file is written beside the old one and renamed over it; rename is atomic on littlefs and on every POSIX file system. This
module knows only the types and limits of the values. A file that violates them is damaged: as with one that can't be read, the
application begins anew.
"""

from json import dump, load
from os import rename


def _is_whole(facts):
    """Return whether the values, and those of the intent, have the types that the application's other modules rely on."""
    for name, value in facts.items():
        kind = {"done": list, "intent": dict, "id": str, "do": str, "device": str}.get(name, int)
        if type(value) is not kind or (kind is int and not 0 <= value < 1 << 30):
            return False
        if isinstance(value, dict) and (set(value) != {"id", "do", "ms", "seq"} or not _is_whole(value)):
            return False
    return True


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
        except Exception:  # also MemoryError, for a file that is not ours
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
