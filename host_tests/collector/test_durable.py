"""A file that is replaced has its old content or its new one; its temporary file does not stay."""

import errno
import os
from unittest.mock import Mock

import pytest

from tools.command import Failure
from tools.landing import durable
from tools.landing.lock import take_lock
from tools.pipeline import series
from tools.pipeline.tables.commits import Output


def test_failed_block_keeps_the_old_content_and_leaves_no_temporary_file(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(KeyboardInterrupt), durable.replacing(tmp_path / "file", "w") as file:
        file.write("new")
        raise KeyboardInterrupt
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_error_names_the_file_and_not_its_temporary_name(tmp_path):
    with pytest.raises(OSError) as raised, durable.replacing(tmp_path / "none" / "file", "w"):
        pass
    assert raised.value.filename == str(tmp_path / "none" / "file")


def test_error_of_a_write_names_the_file(tmp_path):
    """The operating system's error of a write has no name: only that of opening a file has one."""
    with pytest.raises(OSError) as raised, durable.replacing(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(tmp_path / "file")


def test_error_of_syncing_the_folder_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "sync_directory", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError) as raised, durable.replacing(tmp_path / "file"):
        pass
    assert raised.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_replaced_file_keeps_its_mode_and_owner(tmp_path, mode):
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(mode)
    owner = os.getgid() if os.getuid() else 1234  # only root may give a file to another user
    os.chown(tmp_path / "file", -1, owner)
    with durable.replacing(tmp_path / "file", "w") as file:
        file.write("new")
    found = (tmp_path / "file").stat()
    assert (found.st_mode & 0o777, found.st_gid) == (mode, owner)


def test_new_file_belongs_to_the_owner_of_its_folder(tmp_path):
    """Else a user's compaction is refused, and the page not updated, after root has run a command on the same tables."""
    owner = os.getgid() if os.getuid() else 1234
    (tmp_path / "report").mkdir()
    for folder in (tmp_path, tmp_path / "report"):
        os.chown(folder, -1, owner)
    with durable.replacing(tmp_path / "file", "w") as file:
        file.write("new")
    os.close(take_lock(tmp_path / "lock", Failure()))
    with series.Store(Output(str(tmp_path))).opened():
        pass
    assert {path.stat().st_gid for path in tmp_path.rglob("*")} == {owner}


@pytest.mark.parametrize("sync", [True, False])
def test_content_and_name_are_synced_only_if_asked_for(tmp_path, monkeypatch, sync):
    order = []
    real = os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: order.append(os.readlink(f"/proc/self/fd/{handle}")))
    monkeypatch.setattr(os, "replace", lambda old, new: order.append("replace") or real(old, new))
    with durable.replacing(tmp_path / "file", "w", sync=sync) as file:
        file.write("new")
    temporary, folder = str(tmp_path / ".file.tmp"), str(tmp_path)
    assert order == ([temporary, "replace", folder] if sync else ["replace"])
    assert (tmp_path / "file").read_text() == "new"
