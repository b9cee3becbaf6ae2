"""Writes measurements into the profiles in the background: a lane does not wait for an index that other processes use.

Knows rows and the cache that takes them; no candidate and no GPU. Writes rows in order: the rows that arrive during
one write go into the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from buildd.errors import BuilddError
from buildd.profiling.bench import Measurement
from buildd.store.profile_cache import ProfileCache
from buildd.store.profiles import Outcome, Profile
from codegen.gemm.best_kernels import Setting


def row_of(setting: Setting, problem: str, candidate: str, found: Measurement) -> Profile:
    """The row for a measurement that was made just now."""
    return Profile(
        setting=setting,
        problem=problem,
        candidate=candidate,
        outcome=found.outcome,
        time_us=found.time_us,
        spread=found.spread,
        error=found.error,
        checked=found.outcome is Outcome.MEASURED,
        workspace_bytes=found.workspace_bytes,
        samples=found.samples,
        measured_ns=time.time_ns(),
        note=found.note,
    )


class Rows:
    """The rows of one call.

    Args:
        cache: takes the rows. It has a row for certain after `written`.
        say: gets a line about each row that could not be written.
    """

    def __init__(self, cache: ProfileCache, say: Callable[[str], None]) -> None:
        self._cache, self._say = cache, say
        self._epoch = cache.epoch()
        self._waiting: list[Profile] = []
        self._writing: asyncio.Task[None] | None = None
        self.dropped = False
        """The profiles were emptied meanwhile, or a row could not be written."""

    def add(self, row: Profile) -> None:
        """Write a row soon."""
        self._waiting.append(row)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def written(self) -> None:
        """Wait until all rows are written."""
        while self._writing is not None:
            writing = self._writing
            await asyncio.shield(writing)
            if self._writing is writing:
                self._writing = None

    async def published(self) -> None:
        """Wait until all rows are written, and show them to plans."""
        await self.written()
        try:
            self._cache.publish()
        except BuilddError as error:
            self._say(f"the measurements are stored, but plans cannot use them yet: {error.message}")

    async def _write(self) -> None:
        while self._waiting:
            rows, self._waiting = self._waiting, []
            try:
                # In a thread: if a daemon writes to the same index, this write waits for it.
                kept = await asyncio.to_thread(self._cache.save, rows, epoch=self._epoch, more=True)
            except BuilddError as error:
                kept = False
                names = ", ".join(dict.fromkeys(row.candidate for row in rows))
                self._say(f"measurements lost: {names}: {error.message}")
            self.dropped = self.dropped or not kept
