"""Runs cases side by side in workers; the verdict of a case may add further cases.

It knows no kind of case: a case is a value whose `str` is its id; its method `run` gets a worker and returns a verdict.
"""

import asyncio
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from typing import Any


def find(cases: Iterable[Any], text: str) -> Any:
    """Return the case with this id.

    Raises:
        ArgumentTypeError: there is none.
    """
    for case in cases:
        if str(case) == text:
            return case
    raise ArgumentTypeError(f"not the id of a case: {text}")


async def run_cases(
    cases: Iterable[Any], workers: Iterable[Any], report: Callable[[Any], Iterable[Any] | None]
) -> None:
    """Run cases.

    Args:
        cases: in the order in which they begin.
        workers: each is for one case at a time.
        report: receives each verdict, and returns further cases to run.
    """
    waiting: asyncio.LifoQueue[Any] = asyncio.LifoQueue()

    def add(some: Iterable[Any]) -> None:
        for case in some:
            waiting.put_nowait(case)

    async def work(worker: Any) -> None:
        while True:
            add(report(await (await waiting.get()).run(worker)) or ())
            waiting.task_done()

    add(list(cases)[::-1])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(worker)) for worker in workers]
        await waiting.join()
        for task in tasks:
            task.cancel()
