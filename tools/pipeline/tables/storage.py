"""Files on a local disk or on shared storage; the path determines which.

`/data/out`, `file:///data/out`, `s3a://bucket/out` and `hdfs://name/out` work in the driver and in the tasks, through
pyarrow's file systems. (S3 keys and regions are from the usual AWS variables, HDFS settings from the Hadoop client's.) On a
local disk, a written file and its name are synced before `create` ends. In an object store a put is atomic and durable.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tools.command import Failure
from tools.landing.durable import replacing

T = TypeVar("T")
ROWS = 131_072
"""The rows of a batch: the most that a task has in memory of a file."""
PARQUET_END = b"PAR1"
NAME = b"flashmqtt.name"
"""The key in a Parquet file's footer of the name that the file was written with. Without it, a file that was replaced by
another one of the same columns would be read as if it were the right one. Files of earlier versions lack it."""
IN_MEMORY_BYTES, PART_BYTES = 32 << 20, 1 << 20
"""For a file that is uploaded to an object store: a longer file is on this machine's disk until it is complete."""


class StorageError(Failure):
    """A path can't be used. The text has the reason and what to do."""


def retried(work: Callable[[], T]) -> T:
    """Call a function again if a compaction or a newer batch has deleted a file that it reads: it gets the new names then.

    Raises:
        FileNotFoundError: also the last attempt found no file.
    """
    for _ in range(4):
        with suppress(FileNotFoundError):
            return work()
    return work()


class Storage:
    """A directory on a file system. Names in it are relative, with `/`."""

    def __init__(self, uri: str):
        self.uri = uri.rstrip("/")
        if len(self.uri) == uri.find("://") + 1:  # without "/" it would be another, relative path
            raise StorageError(f"{uri} is the root of a file system: give a folder in it")
        there = self.uri.replace("s3a://", "s3://", 1) if "://" in self.uri else Path(self.uri).absolute().as_uri()
        try:
            self.fs, self.root = pafs.FileSystem.from_uri(there)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise StorageError(f"{self.uri}: {error}. Use a path, file://, s3a:// or hdfs://") from error
        self.local = isinstance(self.fs, pafs.LocalFileSystem)

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self.uri,)

    @property
    def place(self) -> tuple[str, str]:
        """The directory, the same for every spelling of its path."""
        return self.fs.type_name, os.path.realpath(self.root) if self.local else self.root

    def path(self, name: str = "") -> str:
        """Return a file's path in `fs`."""
        return f"{self.root}/{name}" if name else self.root

    def address(self, name: str = "") -> str:
        """Return a file's path in the form that Spark needs: a URL, but without escapes."""
        where = f"file://{self.root}" if self.local else self.uri
        return f"{where}/{name}" if name else where

    def pattern(self, name: str = "") -> str:
        """Return a file's path in the form that Spark's readers need: they take it for a pattern."""
        return re.sub(r"[][{}*?\\]", r"\\\g<0>", self.address(name))

    def exists(self, name: str = "") -> bool:
        """Return whether a file or directory of this name exists."""
        return self.fs.get_file_info(self.path(name)).type != pafs.FileType.NotFound

    def list(self, name: str = "", recursive: bool = False) -> list[str]:
        """Return the names of the files in a directory, relative to it and sorted; empty if it does not exist."""
        base = self.path(name)
        try:
            found = self.fs.get_file_info(pafs.FileSelector(base, allow_not_found=True, recursive=recursive))
            return sorted(info.path[len(base) + 1 :] for info in found if info.type == pafs.FileType.File)
        except UnicodeDecodeError as error:
            raise StorageError(f"{base}: the name of a file in it is not UTF-8: rename it, or move it away") from error

    def is_cut(self, name: str) -> bool:
        """Return whether a Parquet file lacks its end. An object store has no such file: a put is complete or was never done."""
        if not self.local:
            return False
        handle = os.open(self.path(name), os.O_RDONLY)  # half the time of `open`
        try:
            size = os.fstat(handle).st_size
            return os.pread(handle, len(PARQUET_END), max(0, size - len(PARQUET_END))) != PARQUET_END
        finally:
            os.close(handle)

    def modified_s(self, name: str) -> float:
        """Return the time when a file was last written (Unix time)."""
        info = self.fs.get_file_info(self.path(name))
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{self.uri}/{name} is not there")
        return float(info.mtime.timestamp())

    def delete(self, name: str, target: bool = False) -> None:
        """Delete a file; with `target` also the file that it is a link to. Only for our own files: not all links are ours."""
        if target and self.local and os.path.islink(self.path(name)):
            Path(self.path(name)).resolve().unlink(missing_ok=True)
        self.fs.delete_file(self.path(name))

    @contextmanager
    def create(self, name: str, sync: bool = True) -> Iterator[Any]:
        """Open a new file for writing. It gets its name, durably, at the end of the block, or no name if the block raises.

        Without `sync`, a file on a local disk is not durable: only for files that can be made again.
        """
        target = self.path(name)
        if not self.local:
            # Not written directly to the store: there a file would appear also after an error.
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as spooled:
                yield spooled
                spooled.seek(0)
                with self.fs.open_output_stream(target) as stream:
                    shutil.copyfileobj(spooled, stream, PART_BYTES)
            return
        path = Path(target).resolve()  # a link stays, and the file that it names is replaced
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=sync, temporary=path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")) as file:
            yield file

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file atomically."""
        with self.create(name) as file:
            file.write(json.dumps(value, indent=1, sort_keys=True).encode())

    def read(self, name: str) -> bytes:
        """Read a file."""
        with self.fs.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    @contextmanager
    def parquet(self, name: str) -> Iterator[Any]:
        """Open a Parquet file for reading.

        Raises:
            FileNotFoundError: it is not there. The text has what to do.
            StorageError: the file is damaged: it is no Parquet file, or a page does not have its checksum.
        """
        remedy = "restore it from a copy. Tables without a copy can be made again from the landing, in another --out"
        try:
            with self.fs.open_input_file(self.path(name)) as file:
                yield file
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.path(name)} is missing: {remedy}") from error
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            if self.of_system(error):
                raise
            raise StorageError(f"{self.path(name)} is damaged: {remedy}. ({str(error).strip()})") from error

    def of_system(self, error: Exception) -> bool:
        """Return whether an error is of the system, the network or the memory, not of a file's content."""
        of_os = isinstance(error, OSError) and (error.errno is not None or not self.local)
        return of_os or isinstance(error, MemoryError)  # (Arrow's is also an ArrowException)

    def table(self, name: str, columns: Sequence[str] | None = None, **how: Any) -> pa.Table:
        """Read a Parquet file."""
        with self.parquet(name) as file:
            found = pq.read_table(file, columns=columns, use_threads=False, page_checksum_verification=True, **how)
            _check_name(name, found.schema.metadata)
            return found

    def batches(self, name: str, columns: Sequence[str] | None, **how: Any) -> Iterator[pa.RecordBatch]:
        """Yield a Parquet file's rows in batches; without `columns` with all of them."""
        with self.parquet(name) as file:
            whole = pq.ParquetFile(file, page_checksum_verification=True, **how)
            _check_name(name, whole.metadata.metadata)
            if absent := set(columns or ()) - set(whole.schema_arrow.names):  # `iter_batches` would ignore them
                raise ValueError(f"it has no column {min(absent)}")
            yield from whole.iter_batches(ROWS, columns=columns, use_threads=False)

    def footer(self, name: str) -> pq.FileMetaData:
        """Return the footer of a Parquet file: number of rows, statistics."""
        with self.parquet(name) as file:
            found = pq.read_metadata(file)
            _check_name(name, found.metadata)
            return found

    def rows(self, name: str) -> int:
        """Return the number of rows of a Parquet file."""
        return int(self.footer(name).num_rows)

    def read_json(self, name: str) -> Any:
        """Read a JSON file."""
        return json.loads(self.read(name))


def _check_name(name: str, metadata: dict[bytes, bytes] | None) -> None:
    own = (metadata or {}).get(NAME, name.encode()).decode()
    if own != name:
        raise ValueError(f"it has the content of {own}")


def limits(footer: pq.FileMetaData, column: str) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column by a Parquet file's footer, None if the footer has none."""
    if column not in footer.schema.names:
        return None
    at = footer.schema.names.index(column)
    groups = [footer.row_group(n).column(at).statistics for n in range(footer.num_row_groups)]
    if not groups or not all(one and one.has_min_max for one in groups):
        return None
    return min(one.min for one in groups), max(one.max for one in groups)
