"""Answers a request from the record of the last one: nothing to do, or outputs to restore.

Knows when a record is being written; `up_to_date` and `watched` know its content, and whether it is still true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from buildd.builds import output_restore, up_to_date
from buildd.builds.active_build import ActiveBuild
from buildd.watch.watched import WatchedRequest
from codegen.gemm.capability import to_measure
from protocol import messages as m

_HEARD_S = 0.002
"""Nothing is written down for so long after the last event of a build: a thread would keep the loop from sending it."""


class RecordAnswers:
    """Answers from records, and the records that are being written.

    Args:
        in_pool: runs a function in a worker thread.
    """

    def __init__(self, in_pool: Callable[..., Awaitable[Any]]) -> None:
        self._in_pool = in_pool
        self._writing: dict[m.Digest, asyncio.Event] = {}
        """Builds that were answered, and whose records are not written yet."""
        self.unlogged = 0
        """Builds whose last event was said, and which the log does not hold yet."""

    async def answer(self, build: ActiveBuild, watched: WatchedRequest) -> bool:
        """Whether a request was answered from the record of the last one."""
        request = build.request
        if not up_to_date.may_use(request) or not watched.may_be_brief:
            return False
        await self._wait_for_record(request)
        found = await watched.standing(build.store, build.files)
        if found is None or to_measure(found.record.unmeasured, request.measures):
            return False
        if found.complete:
            with self.logging():
                up_to_date.tell(found.record, build)
                watched.stood()
                await self._in_pool(build.report.keep_log)
            return True
        results = await output_restore.put_back(build, found.record, self._in_pool)
        if results is None:
            return False
        with self.logging():
            with self.writing(request):
                output_restore.tell(found.record, results, build)
                await self.heard(request)
                await self._in_pool(output_restore.keep_again, build, found.record)
            await self._in_pool(build.report.keep_log)
        return True

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Say the last event of a build within this, and write the build to the log."""
        self.unlogged += 1
        try:
            yield
        finally:
            self.unlogged -= 1

    @contextmanager
    def writing(self, request: m.Request) -> Iterator[None]:
        """Say the last event of a build within this, and write its record: an equal request waits for that."""
        if not up_to_date.may_use(request):
            yield
            return
        name = up_to_date.name_of(request)
        over = self._writing[name] = asyncio.Event()
        try:
            yield
        finally:
            if self._writing.get(name) is over:
                del self._writing[name]
            over.set()

    async def heard(self, request: m.Request) -> None:
        """Wait until the last event of a build is on its way."""
        if up_to_date.may_use(request):
            await asyncio.sleep(_HEARD_S)

    async def _wait_for_record(self, request: m.Request) -> None:
        over = self._writing.get(up_to_date.name_of(request)) if self._writing else None
        if over is not None:
            await over.wait()
