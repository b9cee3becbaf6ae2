"""A WATCH request of a scheduler without sockets, read event by event, and builds beside it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from buildd.builds.event_log import RequestLog
from protocol import messages as m
from tests.support.scheduler_harness import DEADLINE_S, Harness, Story, Workspace
from tests.support.waiting import until, until_async


def _wake(loop: asyncio.AbstractEventLoop, came: asyncio.Event, event: m.Event) -> None:
    loop.call_soon_threadsafe(came.set)


class Watcher:
    """A WATCH request to a scheduler, read event by event."""

    def __init__(self, harness: Harness, **fields: object) -> None:
        self.harness = harness
        self.request = harness.workspace.request(mode=m.Mode.WATCH, **fields)
        self.log: RequestLog = harness.submit(self.request)
        self._read = 0

    async def next(self, kind: type[m.Body]) -> m.EventBody:
        """The next event of a kind; those before it are passed over."""
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            for event in self.log.after(self._read, 1 << 30):
                self._read = event.sequence
                if isinstance(event.body, kind):
                    return event.body
            seen = self._read
            left = deadline - asyncio.get_running_loop().time()
            came, loop = asyncio.Event(), asyncio.get_running_loop()
            stop = self.log.listen(partial(_wake, loop, came))
            try:
                if not self.log.after(seen, 1):
                    await asyncio.wait_for(came.wait(), left)
            except TimeoutError:
                raise AssertionError(f"no {kind.__name__} came; told: {self.told()}") from None
            finally:
                stop()

    async def change(self) -> set[str]:
        body = await self.next(m.Changed)
        assert isinstance(body, m.Changed)
        return set(body.paths)

    async def changes(self, wanted: Iterable[str]) -> None:
        """Until all of these were told."""
        missing = set(wanted)
        while missing:
            missing -= await self.change()

    def told(self) -> list[m.EventBody]:
        return [event.body for event in self.log.after(0, 1 << 30)]


@asynccontextmanager
async def watching(workspace: Workspace) -> AsyncIterator[tuple[Harness, Watcher]]:
    """A scheduler, and a watch of its targets that has begun."""
    async with Harness(workspace) as harness:
        watcher = Watcher(harness)
        await watcher.next(m.Watching)
        yield harness, watcher


def wait_for(path: Path) -> None:
    until(path.exists, f"{path} is there")


async def settled(harness: Harness, workspace: Workspace) -> m.Request:
    """The first build after which the next one can begin with what stands."""
    (targets,) = harness.scheduler.intake.watches._targets.values()
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    for number in itertools.count():
        workspace.write("src/b.cu", f"{number}\n")
        request = workspace.request()
        await built(harness, request)
        base = targets.base
        if base is not None and base.request_id == request.request_id and len(base.able) == 3:
            return request
        assert asyncio.get_running_loop().time() < deadline
    raise AssertionError


async def built(harness: Harness, request: m.Request) -> Story:
    """A build, and what the watch has learned of it."""
    story = await harness.build(request)
    await until_async(lambda: harness.scheduler.idle, "the watch learns")
    return story


async def clean(workspace: Workspace) -> bytes:
    """What a build from nothing makes."""
    folder = workspace.folder / "clean"
    shutil.rmtree(folder, ignore_errors=True)
    other = Workspace(folder)
    shutil.copytree(workspace.project, other.project, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build"))
    async with Harness(other) as harness:
        assert (await harness.build(other.request())).done.outcome is m.Outcome.BUILT
    return other.library
