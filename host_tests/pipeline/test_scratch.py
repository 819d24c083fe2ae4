"""The folders of the JVMs in the temporary directory. `test_session.py` tests them with a pipeline."""

import tempfile

import pytest

from tools.pipeline import scratch
from tools.pipeline.scratch import PREFIX, Scratch


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_scratch_folder_in_use_stays_and_abandoned_one_is_removed(temporary):
    used = Scratch()
    behind = temporary / f"{PREFIX}behind"
    (behind / "spark-1").mkdir(parents=True)
    (temporary / "another's").mkdir()
    other = Scratch()
    assert sorted(temporary.iterdir()) == sorted([used.path, other.path, temporary / "another's"])
    used.remove()
    other.remove()
    assert list(temporary.iterdir()) == [temporary / "another's"]


def test_scratch_folder_removed_before_its_lock_is_created_again(temporary, monkeypatch):
    made = []

    def mkdtemp(**named):
        made.append(real(**named))
        if len(made) == 1:
            scratch.remove_left_behind()  # between the folder and its lock
        return made[-1]

    real = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    assert str(Scratch().path) == made[1]
    assert len(made) == 2
