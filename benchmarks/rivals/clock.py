"""Timing a step the same way for every rival: blocks of steps, each waited for once."""

import statistics
import time
from collections.abc import Callable
from typing import Any

BLOCKS = 6


def measure(run: Callable[[], Any], read: Callable[[Any], float], *, seconds: float, since: float) -> dict[str, Any]:
    """Milliseconds a step: the median of blocks, and the least and the most.

    `run` starts a step and `read` waits for what it gave; `since` is when the process was started. `first_s` is how
    long after that the first step was done, with all imports and compilation. With no `seconds` only that one is run.
    """
    loss = read(run())
    found: dict[str, Any] = {"first_s": time.time() - since, "loss": loss}
    if not seconds:
        return found
    for _ in range(3):
        last = run()
    read(last)
    start = time.perf_counter()
    read(run())
    count = max(min(int(seconds / BLOCKS / (time.perf_counter() - start)), 50), 1)
    blocks = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(count):
            last = run()
        loss = read(last)
        blocks.append((time.perf_counter() - start) / count * 1e3)
    times = {"ms": statistics.median(blocks), "least": min(blocks), "most": max(blocks)}
    return found | times | {"steps": BLOCKS * count, "last_loss": loss}
