"""pyarrow that does not load pandas: importing a module of ours that uses Arrow imports this one.

pyarrow loads pandas when it first converts a Python object, if it is installed: half of the start of a command. It is there for
Spark and notebooks; no command uses it. pyarrow asks again if a program converts to pandas later.
"""

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


class _WithoutPandas(MetaPathFinder):  # (pyarrow would take None in `sys.modules` for pandas)
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("pyarrow does not need it here")


if "pandas" not in sys.modules:
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(finder)
