"""The proof that nothing names a device any more: every byte of every file, and every value behind what is compressed.

A file is searched as it lies there. Parquet is searched by value, too, with the dictionaries as they are stored, whether a row
uses an entry or not; gzip and zstd are searched decompressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tools.landing.names import Names

from .storage import Storage

CHUNK = 1 << 20
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}


def search(storage: Storage, names: Names) -> Iterator[str]:
    """Yield the files below a directory that name one of the devices, in their bytes, values or own names."""
    for name in storage.list("", recursive=True):
        if names.occur(name.encode()) or in_file(storage, name, names):
            yield name


def in_file(storage: Storage, name: str, names: Names) -> bool:
    """Return whether a file names a device; one that is gone meanwhile does not."""
    path = storage.path(name)
    try:
        with storage.fs.open_input_stream(path) as stream:
            if in_stream(stream, names):
                return True
        kind = next((kind for suffix, kind in COMPRESSED.items() if name.endswith(suffix)), None)
        if kind:
            with pa.CompressedInputStream(storage.fs.open_input_stream(path), kind) as stream:
                return in_stream(stream, names)
        if name.endswith((".parquet", ".parquet.tmp")) or ".parquet." in name:
            return in_parquet(storage, name, names)
    except FileNotFoundError:
        return False
    return False


def in_stream(stream: Any, names: Names) -> bool:
    """Return whether a stream of bytes names a device."""
    before = b""
    overlap = 2 * names.longest
    while data := stream.read(CHUNK):
        if names.occur(before + data):
            return True
        before = (before + data)[-overlap:]
    return False


def in_parquet(storage: Storage, name: str, names: Names) -> bool:
    """Return whether a value of a Parquet file names a device. What is no Parquet, a cut-off file, has been searched as bytes."""
    with storage.fs.open_input_file(storage.path(name)) as source:
        try:
            schema = pq.ParquetFile(source).schema
            texts = [
                schema.column(n).path for n in range(len(schema)) if schema.column(n).physical_type == "BYTE_ARRAY"
            ]
            file = pq.ParquetFile(source, read_dictionary=texts)
        except pa.ArrowInvalid:
            return False
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=texts, use_threads=False) if texts else pa.table({})
            for field, column in zip(table.schema, table.columns, strict=True):
                if any(_named(field.name, values, names) for chunk in column.chunks for values in _texts(chunk)):
                    return True
    return False


def _texts(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of texts in an array, however deep."""
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
    if names.weak and column in {"device", "topic"}:
        told = {one.decode(errors="replace") for one in texts}
        return bool(names.devices & told) if column == "device" else any(map(names.own, told))
    return False
