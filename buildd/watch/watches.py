"""The WATCH requests of a daemon: hints are gathered into changes, and each change is one event.

Runs on one event loop; the threads that it is given touch files. Builds nothing: a client that watches asks for each
build. `watched` keeps the watches' knowledge for those builds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from buildd.builds import up_to_date
from buildd.builds.active_build import ActiveBuild
from buildd.watch.build_facts import BuildFacts, facts_of
from buildd.watch.folder_events import Hints
from buildd.watch.watch import Watch
from buildd.watch.watched import WatchedRequest, WatchedTargets
from protocol import messages as m

BURST_S = 0.003
"""The several system calls of an editor for one save take less time."""
QUIET_S = 0.012
"""A burst of writes is over when no further hint came for so long."""
PATIENCE_S = 0.25
"""The longest wait for the end of a burst."""
SWEEP_S = 2.0
"""Time between looks at all files, for changes that give no event: writes through a mapping, other hosts."""
SWEEP_SHARE = 0.01
"""The largest share of the time that those looks take."""
_log = logging.getLogger(__name__)


class Watches:
    """All watches.

    Args:
        in_pool: runs a function in a worker thread.
    """

    def __init__(self, in_pool: Callable[..., Awaitable[Any]]) -> None:
        self._in_pool = in_pool
        self._loop = asyncio.get_running_loop()
        self._hints = Hints(self._wake)
        self._watches: dict[m.RequestId, Watch] = {}
        self._names: dict[m.RequestId, m.Digest] = {}
        self._targets: dict[m.Digest, WatchedTargets] = {}
        """By `up_to_date.name_of` their requests; each has a watch."""
        self._unwatched = WatchedTargets(self._hints, in_pool)
        """Targets without a watch."""
        self._ending: dict[m.RequestId, asyncio.Event] = {}
        """Builds that say their last event, and from which the watches have not learned yet."""
        self._looking = asyncio.Lock()
        self._gathering: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._watches)

    async def add(self, watch: Watch, prepare: Callable[[], Awaitable[None]]) -> None:
        """Watch from now on.

        Args:
            prepare: makes `watch` know what counts.
        """
        async with self._looking:
            await prepare()
            request_id, name = watch.request.request_id, up_to_date.name_of(watch.request)
            self._watches[request_id] = watch
            self._names[request_id] = name
            if name not in self._targets:
                self._targets[name] = WatchedTargets(self._hints, self._in_pool)
            self._targets[name].watches[request_id] = watch
            await self._rearm()
        await self._look(set(), everything=True)
        watch.tell_watching()
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._loop.create_task(self._sweep())

    def end(self, request_id: m.RequestId, *, code: str = "", message: str = "") -> bool:
        """End a watch; False when there is none of that name."""
        watch = self.forget(request_id)
        if watch is not None:
            watch.log.append(m.Done(outcome=m.Outcome.CANCELLED, code=code, message=message))
        return watch is not None

    def forget(self, request_id: m.RequestId) -> Watch | None:
        """Stop a watch and tell its client nothing; None when there is none of that name."""
        watch = self._watches.pop(request_id, None)
        if watch is not None:
            name = self._names.pop(request_id)
            self._targets[name].remove(request_id)
            if not self._targets[name].watches:
                del self._targets[name]
            if not self._watches and self._sweeping is not None:
                self._sweeping.cancel()
        return watch

    def end_all(self) -> None:
        for request_id in list(self._watches):
            self.end(request_id, code="draining", message="this daemon ends")

    # ---------------------------------------------------------------- from one build to the next

    async def of(self, request: m.Request) -> WatchedRequest:
        """What the watches of a request's targets know; first they learn from the build that the client knows."""
        over = self._ending.get(request.known) if request.known else None
        if over is not None:
            await over.wait()
        name = up_to_date.name_of(request) if self._names else None
        targets = self._targets.get(name, self._unwatched) if name is not None else self._unwatched
        return WatchedRequest(request, targets, self._looking, self._rearm)

    @contextmanager
    def ending(self, request_id: m.RequestId) -> Iterator[None]:
        """Say the last event of a build within this, and let the watches learn from it: the next request of a client
        that knows the build waits for that (`of`)."""
        over = self._ending[request_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ending[request_id]
            over.set()

    async def learn(self, build: ActiveBuild, outcome: m.Outcome) -> None:
        """Learn the facts of a build: the watches of the same targets know more now."""
        if not self._watches or build.request.mode not in (m.Mode.BUILD, m.Mode.WARM):
            return
        targets = self._targets.get(up_to_date.name_of(build.request))
        if targets is None:
            return
        facts = await self._in_pool(facts_of, build)
        for request_id, watch in list(targets.watches.items()):
            async with self._looking:
                if request_id in targets.watches:
                    await self._learn(watch, facts, outcome)
        if targets.watches and outcome is m.Outcome.BUILT and build.request.mode is m.Mode.BUILD:
            await targets.keep_base(build)

    async def _learn(self, watch: Watch, facts: BuildFacts, outcome: m.Outcome) -> None:
        before = watch.contents.keys(), watch.folders
        came = await self._in_pool(watch.learn, facts, outcome)
        await self._rearm()
        self._tell(watch, came | await self._in_pool(watch.came_unseen))
        if before != (watch.contents.keys(), watch.folders):
            # What counts only now may have changed before it was watched.
            self._tell(watch, await self._in_pool(watch.changed_anywhere))
            watch.tell_watching()

    async def close(self) -> None:
        self.end_all()
        for task in (self._gathering, self._sweeping):
            if task is not None:
                task.cancel()
        await self._in_pool(self._hints.close)

    # ---------------------------------------------------------------- hints

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._hinted)

    def _hinted(self) -> None:
        if self._gathering is None or self._gathering.done():
            self._gathering = self._loop.create_task(self._gather())

    async def _gather(self) -> None:
        while True:
            paths, missed = await self._burst()
            if not paths and not missed:
                return
            try:
                await self._look(paths, everything=missed)
            except Exception:  # the edge: the sweep finds what is lost here
                _log.exception("a change could not be looked at")

    async def _burst(self) -> tuple[set[str], bool]:
        """Gather hints until none came for a moment: an editor writes several times, a checkout thousands of files."""
        began_s = time.monotonic()
        await asyncio.sleep(BURST_S)
        paths, missed = self._hints.take()
        while (paths or missed) and time.monotonic() - began_s < PATIENCE_S:
            await asyncio.sleep(QUIET_S)
            more, missed_more = self._hints.take()
            if not more and not missed_more:
                break
            paths |= more
            missed = missed or missed_more
        return paths, missed

    async def _look(self, paths: set[str], *, everything: bool) -> None:
        async with self._looking:
            for watch in list(self._watches.values()):
                found, moved = await self._in_pool(watch.changed, paths)
                if moved or everything:
                    await self._look_everywhere(watch, found)
                else:
                    self._tell(watch, found)

    async def _look_everywhere(self, watch: Watch, found: dict[str, None]) -> None:
        # A folder that came is watched before its files are looked at: it may have been filled at once.
        await self._in_pool(watch.settle)
        await self._rearm()
        found |= await self._in_pool(watch.came_unseen)
        found |= await self._in_pool(watch.changed_anywhere)
        while watch.expects:
            await self._in_pool(watch.settle)
            await self._rearm()
            found |= await self._in_pool(watch.changed_anywhere)
        self._tell(watch, found)

    def _tell(self, watch: Watch, found: Iterable[str]) -> None:
        self._hints.note(found)  # some of the changes gave no event
        watch.tell(found)

    async def _rearm(self) -> None:
        """Watch the folders that count now."""
        wanted = set().union(*(watch.folders for watch in self._watches.values()))
        for targets in self._targets.values():
            targets.before_arming()
        try:
            polled = await self._in_pool(self._hints.watch, wanted)
        finally:
            for targets in self._targets.values():
                targets.after_arming()
        for watch in self._watches.values():
            watch.polled = polled
            watch.unreadable = frozenset(self._hints.unreadable)

    async def _sweep(self) -> None:
        pause_s = SWEEP_S
        while self._watches:
            await asyncio.sleep(pause_s)
            took_s = 0.0
            for watch in list(self._watches.values()):
                try:
                    took_s += await self._swept(watch)
                except Exception:  # the edge: the next look may go well, and the other watches need theirs
                    _log.exception("the files of %s could not be looked at", watch.request.request_id)
            pause_s = max(SWEEP_S, took_s / SWEEP_SHARE)

    async def _swept(self, watch: Watch) -> float:
        """Look at all files of a watch; the CPU seconds that it took."""
        async with self._looking:
            found, is_unmoved, cpu_s = await self._in_pool(_swept, watch)
            if is_unmoved:
                self._tell(watch, found)
            else:
                await self._look_everywhere(watch, found)
        return float(cpu_s)


def _swept(watch: Watch) -> tuple[dict[str, None], bool, float]:
    """Files that came unseen, whether all others are as they were, and the CPU seconds of this thread: a busy machine
    is no reason to look less often."""
    began_s = time.thread_time()
    found, is_unmoved = watch.came_unseen(), watch.unmoved()
    return found, is_unmoved, time.thread_time() - began_s
