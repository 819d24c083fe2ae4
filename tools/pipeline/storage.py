"""Where files lie: one machine's disk or shared storage, by the path alone.

`/data/out`, `file:///data/out`, `s3a://bucket/out` and `hdfs://name/out` all work, in the driver and in the tasks,
through pyarrow's file systems (S3 keys and regions come from the usual AWS variables, HDFS from the Hadoop
client's). On a local disk a written file and its name are synced before `write` returns; object stores make a put
durable and atomic by themselves.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tools.landing.log import sync_directory

IN_MEMORY_BYTES, PART_BYTES = 32 << 20, 1 << 20
"""Of a file on its way to an object store: a longer one waits on this machine's disk until it is whole."""


class StorageError(Exception):
    """A path can't be used; the text says why and what to do."""


class Storage:
    """A directory on some file system. Names below it are relative, with `/`."""

    def __init__(self, uri: str):
        self.uri = uri.rstrip("/")
        self._open()

    def _open(self) -> None:
        uri = self.uri
        if "://" not in uri:
            uri = Path(uri).absolute().as_uri()
        elif uri.startswith(("s3a://", "s3n://")):
            uri = "s3://" + uri.split("://", 1)[1]
        try:
            self.fs, self.root = pafs.FileSystem.from_uri(uri)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise StorageError(f"{self.uri}: {error}. Use a path, file://, s3a:// or hdfs://") from error
        self.local = isinstance(self.fs, pafs.LocalFileSystem)

    def __getstate__(self) -> str:
        return self.uri

    def __setstate__(self, uri: str) -> None:
        self.uri = uri
        self._open()

    def path(self, name: str = "") -> str:
        """Return a name's path in `fs`."""
        return f"{self.root}/{name}" if name else self.root

    def address(self, name: str = "") -> str:
        """Return a name's path as Spark takes it: of a URL's form, but nothing in it is escaped."""
        where = f"file://{Path(self.uri).absolute()}" if "://" not in self.uri else self.uri
        return f"{where}/{name}" if name else where

    def exists(self, name: str = "") -> bool:
        """Return whether there is a file or directory of that name."""
        return self.fs.get_file_info(self.path(name)).type != pafs.FileType.NotFound

    def list(self, name: str = "", recursive: bool = False) -> list[str]:
        """Return the files below a directory, as names below that directory, sorted; none where it does not exist."""
        base = self.path(name)
        found = self.fs.get_file_info(pafs.FileSelector(base, allow_not_found=True, recursive=recursive))
        return sorted(info.path[len(base) + 1 :] for info in found if info.type == pafs.FileType.File)

    def modified_s(self, name: str) -> float:
        """Return when a file was last written (Unix time)."""
        info = self.fs.get_file_info(self.path(name))
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{self.uri}/{name} is not there")
        return float(info.mtime.timestamp())

    def delete(self, name: str) -> None:
        """Delete a file."""
        self.fs.delete_file(self.path(name))

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Open a new file for writing. It has its name, durably, when the block ends, and none where the block raises."""
        target = self.path(name)
        if not self.local:
            # Not straight to the store: what is closed there appears, after a failure, too.
            with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as spooled:
                yield spooled
                spooled.seek(0)
                with self.fs.open_output_stream(target) as stream:
                    shutil.copyfileobj(spooled, stream, PART_BYTES)
            return
        parent = Path(target).parent
        parent.mkdir(parents=True, exist_ok=True)
        temporary = parent / f".{Path(target).name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(parent)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file, whole or not at all."""
        with self.create(name) as file:
            file.write(json.dumps(value, indent=1, sort_keys=True).encode())

    def read(self, name: str) -> bytes:
        """Read a file."""
        with self.fs.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def read_json(self, name: str) -> Any:
        """Read a JSON file."""
        return json.loads(self.read(name))
