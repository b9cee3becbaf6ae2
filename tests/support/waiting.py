"""Waiting in tests: until something is true, with a deadline; until files are old enough to be trusted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

DEADLINE_S = 60.0
_POLL_S = 0.005
T = TypeVar("T")


def until(probe: Callable[[], T | None], problem: str = "", timeout_s: float = DEADLINE_S) -> T:
    """Return the first true answer of `probe`. Raises TimeoutError after `timeout_s`, with `problem`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {problem}")
        time.sleep(_POLL_S)
    return answer


async def until_async(probe: Callable[[], T | None], problem: str = "", timeout_s: float = DEADLINE_S) -> T:
    """Do the same on a running loop, whose other tasks go on."""
    deadline = time.monotonic() + timeout_s
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {problem}")
        await asyncio.sleep(_POLL_S)
    return answer


def until_settled(folder: Path, age_ns: int) -> None:
    """Wait until every file and folder in `folder` is `age_ns` old: a stamp that is younger is not trusted."""
    youngest_ns = max(os.lstat(path).st_ctime_ns for path in (folder, *folder.rglob("*")))
    while (left_ns := youngest_ns + age_ns - time.time_ns()) >= 0:
        time.sleep((left_ns + 1) / 1e9)  # a clock has no event to wait for
