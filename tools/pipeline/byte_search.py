"""Check that no file contains a device's name: search all bytes of all files, and all values of compressed files.

Each file is searched as raw bytes. Parquet files are also searched by value, including dictionary entries that no row uses.
gzip and zstd files are also searched after decompression. The rows of the plots' file are searched instead of its bytes.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tools.landing.names import Names

from . import series
from .tables.storage import Storage, StorageError

CHUNK = 1 << 20
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}


def search(storage: Storage, names: Names) -> Iterator[str]:
    """Yield the files below a directory that contain a device's name in their bytes, their values or their path."""
    for name in storage.list("", recursive=True):
        if names.occur(name.encode()) or in_file(storage, name, names):
            yield name


def in_file(storage: Storage, name: str, names: Names, whole: bool = False) -> bool:
    """Return whether a file contains a device's name; false if the file was deleted in the meantime.

    Raises:
        StorageError: it is a damaged Parquet file, and `whole` is true.
    """
    path = storage.path(name)
    try:
        with storage.fs.open_input_stream(path) as stream:
            found = in_stream(stream, names)
        if name.endswith(series.NAME) and storage.local:
            with suppress(sqlite3.DatabaseError):
                return in_plots(path, names)
        if found and not (name.endswith(".parquet") and _is_whole(storage, name, names)):
            return True
        kind = next((kind for suffix, kind in COMPRESSED.items() if name.endswith(suffix)), None)
        if kind:
            with pa.CompressedInputStream(storage.fs.open_input_stream(path), kind) as stream:
                return in_stream(stream, names)
        if name.endswith((".parquet", ".parquet.tmp")) or ".parquet." in name:
            return in_parquet(storage, name, names, whole)
    except FileNotFoundError:
        return False
    return False


def _is_whole(storage: Storage, name: str, names: Names) -> bool:
    """Return whether a Parquet file can be searched by value, and has no name in its footer.

    A compressed page may have a part of a text that is kept (`pump` without the rest of `pump-speed`), or join such parts.
    """
    try:
        with storage.parquet(name) as source:
            length = pq.read_metadata(source).serialized_size
            source.seek(source.size() - length - 8)
            footer = source.read(length)
    except StorageError:
        return False
    return not names.occur(footer)


def in_stream(stream: Any, names: Names) -> bool:
    """Return whether a stream of bytes contains a device's name."""
    margin = names.longest  # the bytes around a name that tell whether it is inside a text that is kept
    data, first, more = b"", 0, b"."
    while more:
        more = stream.read(CHUNK)
        data += more
        last = len(data) - margin if more else len(data)
        if any(first <= begin < last for begin, _ in names.places(data)):
            return True
        data = data[-2 * margin :]
        first = max(0, len(data) - margin)
    return False


def in_plots(path: str, names: Names) -> bool:
    """Return whether a text of the plots' file is or contains a device's name. Its bytes have long texts in pieces.

    Raises:
        sqlite3.DatabaseError: it can't be read.
    """
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as connection:
        sql = "SELECT device, name, unit, text FROM series UNION SELECT device, NULL, NULL, NULL FROM left_out"
        return any(
            row[0] in names.devices or names.occur("\0".join(filter(None, row)).encode())
            for row in connection.execute(sql)
        )


def in_parquet(storage: Storage, name: str, names: Names, whole: bool = False) -> bool:
    """Return whether a value of a Parquet file contains a device's name; of a damaged one see `in_file`."""
    try:
        return any(_named(column, values, names) for column, values in _values(storage, name))
    except StorageError:
        if whole:
            raise
        return False


def _values(storage: Storage, name: str) -> Iterator[tuple[str, pa.Array]]:
    """Yield the texts of a Parquet file, with the names of their columns."""
    with storage.parquet(name) as source:
        schema = pq.ParquetFile(source).schema
        columns = map(schema.column, range(len(schema)))
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        file = pq.ParquetFile(source, read_dictionary=texts)
        for group in range(file.num_row_groups if texts else 0):
            table = file.read_row_group(group, columns=texts, use_threads=False)
            for field, column in zip(table.schema, table.columns, strict=True):
                for chunk in column.chunks:
                    yield from ((field.name, values) for values in _texts(chunk))


def _texts(array: pa.Array) -> Iterator[pa.Array]:
    """Yield all arrays of texts inside an array, at any depth."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield array.dictionary
    elif pa.types.is_struct(kind):
        for n in range(kind.num_fields):
            yield from _texts(array.field(n))
    elif pa.types.is_map(kind):
        yield from _texts(array.keys)
        yield from _texts(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts(array.values)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        yield array


def _named(column: str, values: pa.Array, names: Names) -> bool:
    texts = [one for one in values.cast(pa.binary()).to_pylist() if one]
    if names.occur(b"\0".join(texts)):
        return True
    if column in {"device", "topic"}:
        decoded = {one.decode(errors="replace") for one in texts}
        return bool(names.devices & decoded) if column == "device" else any(map(names.own, decoded))
    return False
