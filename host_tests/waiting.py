"""Wait until a condition holds, in threads or in asyncio; fail with what was there if it does not in time.

`poll_until` of both/loopback.py does the same for a blocking client, which has to be polled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 120  # for what has to happen, on a busy machine
POLL_S = 0.02


def until(
    condition: Callable[[], object], shown: Callable[[], object] = lambda: "", patience_s: float = PATIENCE_S
) -> None:
    """Wait until a condition holds; `shown` is part of the failure's text."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true in time: {shown()}"
        time.sleep(POLL_S)


async def until_async(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds, and let other tasks run."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(POLL_S)
