"""The few facts that the application itself has to remember over a power cut, in one small file that is replaced whole.

The file is written beside the old one and renamed over it, which littlefs and every POSIX file system do at once or not
at all. It knows nothing of what the facts mean.
"""

from json import dump, load
from os import rename


class State:
    """A dict in a file; what can't be read is an empty one.

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
        """Return a fact."""
        return self.facts.get(name, default)

    def save(self, **changes):
        """Change facts, all or none of them; they are durable on return. None removes one."""
        for name, value in changes.items():
            if value is None:
                self.facts.pop(name, None)
            else:
                self.facts[name] = value
        with open(self._path + ".new", "w") as file:
            dump(self.facts, file)
        rename(self._path + ".new", self._path)
