"""The WATCH requests of a daemon: hints gathered into changes, and every change told once.

On one event loop; what touches files runs in the threads that it is given. Builds nothing: whoever watches asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from buildd import sweep, uptodate
from buildd.building import Building
from buildd.carried import Base, Carry, carry, is_whole, taken, watched_by
from buildd.files import Files, Snapshot
from buildd.hints import Hints
from buildd.lessons import lesson_of
from buildd.stamps import Mark
from buildd.store import Store
from buildd.watching import Watch
from codegen.plan import Plan
from protocol import messages as m

BURST_S = 0.003
"""An editor's several system calls for one save take less."""
QUIET_S = 0.012
"""So long without a further hint, and a burst of writes is over."""
PATIENCE_S = 0.25
"""The longest wait for that."""
SWEEP_S = 2.0
"""Between looks at all files, for what gives no event: writes through a mapping, other hosts."""
SWEEP_SHARE = 0.01
"""The most of the time that those looks take."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Verified:
    """A record that was true, and how to tell that it still is without a look at every file."""

    record: uptodate.Record
    hints: int
    """`Hints.count` before it was found true."""
    project: str
    paths: list[bytes]
    stamps: bytes
    """Of the files in folders that are not watched: the system's, the toolchain's."""
    folders: tuple[tuple[str, int], ...]


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
        self._verified: dict[m.Digest, _Verified] = {}
        self._bases: dict[m.Digest, Base] = {}
        """The last good build of what is watched."""
        self._ending: dict[m.RequestId, asyncio.Event] = {}
        """Builds whose end is being told."""
        self._arming = 0
        """Moves before and after the set of watched folders is changed: what is verified meanwhile does not count."""
        self._looking = asyncio.Lock()
        self._gathering: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._watches)

    async def begin(self, watch: Watch, prepare: Callable[[], Awaitable[None]]) -> None:
        """Watch from now on.

        Args:
            prepare: makes `watch` know what counts.
        """
        async with self._looking:
            await prepare()
            self._watches[watch.request.request_id] = watch
            self._names[watch.request.request_id] = uptodate.name_of(watch.request)
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
        """Watch no longer for a request, and say nothing of it."""
        watch = self._watches.pop(request_id, None)
        if watch is not None:
            name = self._names.pop(request_id)
            self._verified.pop(name, None)
            if name not in self._names.values():
                self._bases.pop(name, None)
            if not self._watches and self._sweeping is not None:
                self._sweeping.cancel()
        return watch

    def end_all(self) -> None:
        for request_id in list(self._watches):
            self.end(request_id, code="draining", message="this daemon ends")

    async def learn(self, building: Building, outcome: m.Outcome) -> None:
        """A request was built: those that watch the same targets know more now."""
        if not self._watches or building.request.mode not in (m.Mode.BUILD, m.Mode.WARM):
            return
        name = uptodate.name_of(building.request)
        if name not in self._names.values():
            return
        lesson = await self._in_pool(lesson_of, building)
        for request_id, watch in list(self._watches.items()):
            if self._names.get(request_id) == name:
                async with self._looking:
                    before = watch.contents.keys(), watch.folders
                    came = await self._in_pool(watch.learn, lesson, outcome)
                    await self._rearm()
                    self._tell(watch, came | await self._in_pool(watch.came_unseen))
                    if before != (watch.contents.keys(), watch.folders):
                        # What counts only now may have changed before somebody looked for that.
                        self._tell(watch, await self._in_pool(watch.changed_anywhere))
                        watch.tell_watching()
        if name in self._names.values() and outcome is m.Outcome.BUILT and building.request.mode is m.Mode.BUILD:
            base = await self._in_pool(self._base_of, building, self._bases.get(name))
            if base is not None:
                self._bases[name] = base

    async def refused(self, request: m.Request) -> None:
        """A request could not be planned: those that watch the same targets wait for whatever may mend that."""
        for watch in self._of(request):
            async with self._looking:
                await self._in_pool(watch.refused)
                await self._rearm()

    def _of(self, request: m.Request) -> list[Watch]:
        name = uptodate.name_of(request) if self._names else None
        return [watch for request_id, watch in self._watches.items() if self._names.get(request_id) == name]

    def has(self, request: m.Request) -> bool:
        """Whether somebody watches just these targets."""
        return bool(self._names) and uptodate.name_of(request) in self._names.values()

    def settled_s(self, request: m.Request, now_s: float) -> float:
        """Since when no file of a request's targets was touched, as far as is known."""
        return min(now_s, self._hints.last_s) if self.has(request) else now_s

    def fresh(self, request: m.Request) -> set[str]:
        """The files of a request's targets that were saved since their last build: absolute paths."""
        return set[str]().union(*(watch.fresh for watch in self._of(request)))

    async def still_true(self, store: Store, files: Files, request: m.Request) -> uptodate.Record | None:
        """The record of a request if it still holds. Where its folders are watched and nothing was touched in them, no
        file of theirs is looked at."""
        name = uptodate.name_of(request)
        if name not in self._names.values():
            record: uptodate.Record | None = await self._in_pool(uptodate.still_true, store, files, request)
            return record
        if self.fresh(request):
            return None  # what was told to be changed is in no record
        verified = self._verified.get(name)
        if verified is not None and await self._in_pool(self._untouched, verified, store, files):
            return verified.record
        self._verified.pop(name, None)
        hints, arming = self._hints.count, self._arming
        record = await self._in_pool(uptodate.still_true, store, files, request)
        if record is not None and not record.young:
            found = await self._in_pool(self._split, record, hints, os.path.realpath(request.project))
            if arming == self._arming:
                self._verified[name] = found
        return record

    # ---------------------------------------------------------------- from one build to the next

    def mark(self, request: m.Request) -> Mark | None:
        """Now, where somebody watches a request's targets."""
        return self._hints.mark() if self.has(request) else None

    @contextmanager
    def ending(self, request_id: m.RequestId) -> Iterator[None]:
        """The last event of a build is told, and then it is learned from."""
        over = self._ending[request_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._ending[request_id]
            over.set()

    async def learned(self, request: m.Request) -> None:
        """Wait until it has been learned from the build that the client knows: it may come at once."""
        over = self._ending.get(request.known) if request.known else None
        if over is not None:
            await over.wait()

    def may_be_brief(self, request: m.Request) -> bool:
        """Whether a request that has nothing to do may be answered with just that."""
        if not all(watch.is_planned for watch in self._of(request)):
            return False  # it would go on knowing nothing
        return request.known is None or self._base(request) is not None

    def stood(self, request: m.Request) -> None:
        """A request had nothing to do: whoever knew all before it does so still."""
        for watch in self._of(request):
            watch.stood()
        base = self._base(request)
        if base is not None:
            self._bases[uptodate.name_of(request)] = replace(base, request_id=request.request_id)

    def _base(self, request: m.Request) -> Base | None:
        """The last good build, if the client knows all of it."""
        base = self._bases.get(uptodate.name_of(request)) if request.known else None
        return base if base is not None and base.request_id == request.known else None

    def last_plan(self, request: m.Request) -> Plan | None:
        """Of the last good build, for whoever watches."""
        base = self._bases.get(uptodate.name_of(request)) if request.known is not None else None
        return None if base is None else base.plan

    async def carry(self, store: Store, files: Files, request: m.Request, plan: Plan) -> Carry | None:
        """Which actions stand as the client has seen them last."""
        base = self._base(request)
        if base is None or base.plan is not plan or not uptodate.may_use(request):
            return None

        def work() -> Carry | None:
            if not self._hints.barrier(store.scratch_folder()) or not self._hints.stands(base.project):
                return None
            touched = self._hints.touched_since(base.mark)
            return None if touched is None else carry(base, touched, files, sweep.sweep_of(store.folder))

        found: Carry | None = await self._in_pool(work)
        return found

    def _base_of(self, building: Building, before: Base | None) -> Base | None:
        touched = None if before is None else self._hints.touched_since(before.mark)
        still = before.users.keys() - touched if before is not None and touched is not None else set()
        base = taken(building, self._hints.covers, still)
        if base is None or not self._hints.barrier(building.store.scratch_folder()):
            return None
        touched = self._hints.touched_since(base.mark)
        return base if touched is not None and is_whole(base, touched) else None

    def _untouched(self, verified: _Verified, store: Store, files: Files) -> bool:
        if not self._hints.barrier(store.scratch_folder()) or self._hints.count != verified.hints:
            return False
        if not self._hints.stands(verified.project):
            return False
        snapshot = Snapshot(files, "/")
        return sweep.sweep_of(store.folder).all_equal(verified.paths, verified.stamps) and all(
            snapshot.folder_stamp(folder) == stamp for folder, stamp in verified.folders
        )

    def _split(self, record: uptodate.Record, hints: int, project: str) -> _Verified:
        is_watched = watched_by(project, self._hints.covers)
        left = [index for index, path in enumerate(record.paths) if not is_watched(os.fsdecode(path))]
        size = len(record.stamps) // max(1, len(record.paths))
        folders = [(os.fsdecode(folder), stamp) for folder, stamp in record.folders]
        return _Verified(
            record,
            hints,
            project,
            [record.paths[index] for index in left],
            b"".join(record.stamps[size * index : size * (index + 1)] for index in left),
            tuple((folder, stamp) for folder, stamp in folders if not is_watched(f"{folder}/.")),
        )

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
        """Hints until none came for a moment: an editor writes several times, a checkout thousands of files."""
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
        self._hints.note(found)  # some of it gave no event
        watch.tell(found)

    async def _rearm(self) -> None:
        """Have the folders watched that count now."""
        wanted = set().union(*(watch.folders for watch in self._watches.values()))
        self._arming += 1
        try:
            polled = await self._in_pool(self._hints.watch, wanted)
        finally:
            self._arming += 1
            self._verified.clear()
        for watch in self._watches.values():
            watch.polled = polled
            watch.unreadable = frozenset(self._hints.unreadable)

    async def _sweep(self) -> None:
        pause_s = SWEEP_S
        while self._watches:
            await asyncio.sleep(pause_s)
            took_s = 0.0
            for watch in list(self._watches.values()):
                async with self._looking:
                    found, is_unmoved, cpu_s = await self._in_pool(_swept, watch)
                    if is_unmoved:
                        self._tell(watch, found)
                    else:
                        await self._look_everywhere(watch, found)
                took_s += cpu_s
            pause_s = max(SWEEP_S, took_s / SWEEP_SHARE)


def _swept(watch: Watch) -> tuple[dict[str, None], bool, float]:
    """What came unseen, whether all else is as it was, and the CPU seconds of this thread: what others on the machine
    make it wait is no reason to look less often."""
    began_s = time.thread_time()
    found, is_unmoved = watch.came_unseen(), watch.unmoved()
    return found, is_unmoved, time.thread_time() - began_s
