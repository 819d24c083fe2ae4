"""The application's few values that survive a power cut, in one small file that is replaced atomically.

The new file is written beside the old one and renamed over it; rename is atomic on littlefs and on every POSIX file system. This
module does not know what the values mean.
"""

from json import dump, load
from os import rename


class State:
    """A dict in a file; if the file can't be read, the dict is empty.

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
        self.facts = facts if isinstance(facts, dict) else {}

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
