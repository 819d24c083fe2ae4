"""Delete devices from a collector's logs: seal all logs, then drop the devices' held messages.

This module takes the collectors' locks, so no collector may be running. It does not rewrite segments, which may lie in an
object store: the pipeline does that, with `without`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from tools.landing.log import HELD, LANDED, LandingError, log_numbers, read_log
from tools.landing.names import Names
from tools.landing.publish import decoded
from tools.landing.seal import DAMAGED, seal
from tools.landing.store import LandingStore

TEXTS = (pa.string(), pa.binary())


@contextmanager
def sealed(landing: Path) -> Iterator[list[LandingStore]]:
    """Seal all logs of a landing; yield the stores with their held messages, and hold the collectors' locks.

    Raises:
        LandingError: a collector runs, or a log is damaged.
    """
    with ExitStack() as stack:
        stores = []
        for directory in sorted(landing.glob("*.logs")):
            if not log_numbers(directory):
                continue
            store = LandingStore(directory, directory.name.removesuffix(".logs"), shared=True)
            stack.callback(store.close)
            store.rotate()
            for number in list(store.closed):
                seal(store.log_path(number), landing)
                store.sealed(number)
            stores.append(store)
        yield stores


def packet(data: bytes, level: int) -> tuple[str, bytes]:
    """Return topic and payload of a PUBLISH packet."""
    _, topic, _, _, payload = next(decoded(data, 0, len(data), level))
    return topic.decode(), payload


def _messages(damaged: Path) -> list[tuple[str, bytes]]:
    """Return topic and payload of all messages in the readable part of a damaged log."""
    try:
        contents = read_log(damaged, salvage=True)
    except LandingError:  # not even its header is readable
        return []
    found = [one for one in contents.entries if one.kind in (LANDED, HELD)]
    packets = chain.from_iterable(decoded(contents.data, one.start, one.end, one.level) for one in found)
    return [(topic.decode(), payload) for _, topic, _, _, payload in packets]


def messages_held(stores: list[LandingStore]) -> list[tuple[str, bytes]]:
    """Return topic and payload of the held messages."""
    return [packet(*one) for store in stores for one in store.packets_held()]


def drop(landing: Path, stores: list[LandingStore], names: Names, own: Callable[[str, bytes], bool]) -> int:
    """Drop the devices' held messages and the damaged logs that contain their names; return the number of messages.

    Held messages of other devices stay, with the names masked, like the rows of segments. `own` returns whether a message,
    by its topic and payload, belongs to the devices.
    """
    gone = 0
    for store in stores:
        if any(names.occur(data) or own(*packet(data, level)) for data, level in store.packets_held()) or names.occur(
            store.log_path(store.number).read_bytes()
        ):
            gone += store.forget_held(lambda data, level: None if own(*packet(data, level)) else names.without(data))
    for path in landing.glob(f"*.logs/*{DAMAGED}"):
        if names.occur(path.read_bytes()) or any(own(*one) for one in _messages(path)):
            path.unlink()
    return gone


def without(
    rows: pa.Table, names: Names, own: np.ndarray | None = None, others: np.ndarray | None = None
) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are kept, with the devices' names masked, and the rows that are deleted.

    A row belongs to a device by `own`, by its column `device`, or by its topic and payload. All rows are kept where there is
    no such column.

    Args:
        rows: rows of one table.
        names: the devices' names.
        own: which rows are known to be the devices' only.
        others: which rows are known to have readings of other devices: they are kept.
    """
    deleted = np.zeros(rows.num_rows, dtype=bool)
    if "topic" in rows.column_names:
        may_own = cache(names.may_own)
        for n, topic in enumerate(rows["topic"].to_pylist()):
            deleted[n] = may_own(topic) and names.own(topic, rows["payload"][n].as_py())
    if own is not None:
        deleted |= own
    if others is not None:
        deleted &= ~others
    if "device" in rows.column_names:
        deleted |= np.isin(np.array(rows["device"].to_pylist(), dtype=object), list(names.devices))
    gone = rows.filter(pa.array(deleted))
    kept = rows.filter(pa.array(~deleted))
    for n, field in enumerate(kept.schema):
        if field.type in TEXTS and field.name != "device" and names.occur(_bytes(kept[field.name])):
            values = [
                names.without(one) if one is not None else None
                for one in kept[field.name].cast(pa.binary()).to_pylist()
            ]
            kept = kept.set_column(n, field, pa.array(values, pa.binary()).cast(field.type))
    return kept, gone


def _bytes(column: pa.ChunkedArray) -> bytes:
    """Return a column's values joined by spaces, without nulls."""
    return b" ".join(one for one in column.cast(pa.binary()).to_pylist() if one)
