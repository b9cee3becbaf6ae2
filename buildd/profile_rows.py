"""What was measured, on its way to the profiles: whoever measures does not wait for an index that others write to.

Knows rows and the cache that takes them, no candidate and no GPU. Rows are written in their order, as many at once as
came while the last ones were written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from buildd.errors import BuilddError
from buildd.profile_cache import ProfileCache
from buildd.profiles import Profile


class Rows:
    """The rows of one call.

    Args:
        cache: where they are written down. What is known there is asked from `written` on.
        say: hears what could not be written.
    """

    def __init__(self, cache: ProfileCache, say: Callable[[str], None]) -> None:
        self._cache, self._say = cache, say
        self._epoch = cache.epoch()
        self._waiting: list[Profile] = []
        self._writing: asyncio.Task[None] | None = None
        self.dropped = False
        """The profiles were emptied meanwhile, or a row could not be written."""

    def add(self, row: Profile) -> None:
        """Have it written soon."""
        self._waiting.append(row)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def written(self) -> None:
        """Wait until all are."""
        while self._writing is not None:
            writing = self._writing
            await asyncio.shield(writing)
            if self._writing is writing:
                self._writing = None

    async def published(self) -> None:
        """Wait until all are, and until plans know of them."""
        await self.written()
        try:
            self._cache.publish()
        except BuilddError as error:
            self._say(f"plans do not know yet what was measured: {error.message}")

    async def _write(self) -> None:
        while self._waiting:
            rows, self._waiting = self._waiting, []
            try:
                # A thread: where a daemon writes to the same index, this takes its turn behind it.
                kept = await asyncio.to_thread(self._cache.save, rows, epoch=self._epoch, more=True)
            except BuilddError as error:
                kept = False
                names = ", ".join(dict.fromkeys(row.candidate for row in rows))
                self._say(f"not written down: {names}: {error.message}")
            self.dropped = self.dropped or not kept
