"""Work on tables in a separate process, killed with -9 after each call that changes a file: each run makes one step.

The process is forked from a server that has imported what is needed and started no threads: deltalake refuses to work in the
fork of a process that has used it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

DAY_US = 86_400_000_000
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["host_tests.pipeline.conftest", "deltalake", "tools.pipeline.forget", __name__])
MOST = 1000
ALIKE = (
    *(f"{table}/" for table in ("events", "ties", "duplicates", "prints", "quarantine", "undelivered")),
    *(f"state/{kind}/" for kind in ("lives", "held", "identities", "intervals")),
)
"""Their files are deleted as those of `readings` and `state/audit` are, by the same loops: no kills between them."""


def rerun_after_kills(work: Callable, home: Path) -> Iterator[int]:
    """Run the work again after each kill, and yield in between, until it finishes."""
    for moment in range(MOST):
        process = CONTEXT.Process(target=_child, args=(work, home))
        process.start()
        process.join()
        if process.exitcode == 0:
            return
        assert process.exitcode == -signal.SIGKILL
        yield moment
    raise AssertionError(f"not at its end after {MOST} kills")


def _child(work: Callable, home: Path) -> None:
    def step(function, chosen=lambda *_: True):
        def call(*args, **more):
            result = function(*args, **more)
            if chosen(*args):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    work(home, step)


def publishing(home, step):
    """Two batches on one day, two on another, a compaction after each, and the first day deleted for its age."""
    from deltalake import DeltaTable

    from host_tests.pipeline.conftest import Landing, Local
    from tools.pipeline import compact, stream
    from tools.pipeline.tables.commits import COMMITS, Output
    from tools.pipeline.tables.delta import Delta
    from tools.pipeline.tables.storage import Storage

    landing = Landing(home / "landing")
    local, output = Local(), Output(str(home / "out"))
    output.prepare(2)
    landing.directory.mkdir(exist_ok=True)
    Storage.write_json = step(Storage.write_json, lambda _, name, *__: name.startswith(COMMITS))
    Storage.delete = step(
        Storage.delete, lambda _, name: name.endswith((".json", ".parquet")) and not name.startswith(("state", *ALIKE))
    )
    DeltaTable.create = step(DeltaTable.create)
    DeltaTable.create_write_transaction = step(DeltaTable.create_write_transaction)
    delta = Delta(output)
    delta.follow()  # what the stream does first
    directory = Storage(str(landing.directory))
    for seq in range(1, 5):
        landing.arrival_us = 1_790_000_000_000_000 + (seq > 2) * 3 * DAY_US
        for device in "ad":
            landing.message(device, 1, seq, value=seq)
        landing.seal()
        latest = output.latest()
        if latest is None or latest.read["c"] < seq:
            delta.committed(stream.run_batch(local, {"c": seq}, directory, output, 2, "one", seq))
        if seq in {2, 4}:
            compact.compact(local, str(home / "out"))
    compact.compact(None, str(home / "out"), keep_from=max(map(compact.day_of, output.files("readings"))))
    for file in compact.orphans(output):
        output.storage.delete(file)


def forgetting(home, step):
    """Run the forget command for a device on the existing landing and output."""
    from deltalake import DeltaTable

    from tools.landing.log import LandingLog
    from tools.pipeline import forget
    from tools.pipeline.tables.commits import COMMITS
    from tools.pipeline.tables.storage import Storage

    create = Storage.create

    @contextlib.contextmanager
    def created(self, name):
        with create(self, name) as stream:
            yield stream
        # No kill after files that each run writes anew before its commit, or at its end: it would never make progress.
        step(lambda: None, lambda: name.startswith((COMMITS, "c-")))()

    Storage.create = created
    Storage.delete = step(Storage.delete, lambda _, name: "/forget-" not in name and not name.startswith(ALIKE))
    LandingLog.write = step(LandingLog.write)
    DeltaTable.create_write_transaction = step(DeltaTable.create_write_transaction)
    DeltaTable.create_checkpoint = step(DeltaTable.create_checkpoint)
    if forget.forget(str(home / "landing"), str(home / "out"), ["greenhouse-1"]).left:
        raise SystemExit(1)
