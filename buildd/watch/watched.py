"""The knowledge of the watches of one set of targets, for the next build: saved files, and unchanged actions.

Knows records and the last good build, in memory. Trusts the hints about touched names (`folder_events`). `watches`
knows the watches and their messages to clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from buildd.builds import up_to_date
from buildd.builds.active_build import ActiveBuild
from buildd.builds.carry_over import Base, Carry, carry, is_whole, taken, watched_by
from buildd.files import sweep
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.files.stamp_set import Mark
from buildd.store.store import Store
from buildd.watch.folder_events import Hints
from buildd.watch.watch import Watch
from codegen.plan import Plan
from protocol import messages as m

InPool = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Verified:
    """A record that was true, and how to tell that it still is without a look at every file."""

    record: up_to_date.Record
    hints: int
    """`Hints.count` before the record was found true."""
    project: str
    paths: list[bytes]
    stamps: bytes
    """Stamps of the files in folders that are not watched: the system's, the toolchain's."""
    folders: tuple[tuple[str, int], ...]


class WatchedTargets:
    """The watches of one set of targets, and what they know together.

    Args:
        hints: tells which paths were touched.
        in_pool: runs a function in a worker thread.
    """

    def __init__(self, hints: Hints, in_pool: InPool) -> None:
        self.hints = hints
        self.in_pool = in_pool
        self.watches: dict[m.RequestId, Watch] = {}
        self.base: Base | None = None
        """The last good build."""
        self._mark = Mark(0, 0)
        """A moment before the last good build looked at anything."""
        self.verified: _Verified | None = None
        self._armings = 0
        """Moves before and after the set of watched folders is changed: what is verified meanwhile does not count."""

    def remove(self, request_id: m.RequestId) -> Watch:
        """End a watch; with the last one the targets' last good build is forgotten."""
        self.verified = None
        watch = self.watches.pop(request_id)
        if not self.watches:
            self.base = None
        return watch

    def before_arming(self) -> None:
        """Note that the set of watched folders is about to change."""
        self._armings += 1

    def after_arming(self) -> None:
        """Note that the set of watched folders has changed."""
        self._armings += 1
        self.verified = None

    @property
    def fresh(self) -> set[str]:
        """The files that were saved since the last build: absolute paths."""
        return set[str]().union(*(watch.fresh for watch in self.watches.values()))

    async def standing(self, store: Store, files: Files, request: m.Request) -> up_to_date.Standing | None:
        """The record of a request if it still holds. While its folders are watched and nothing was touched in them,
        none of their files is looked at."""
        if not self.watches:
            found: up_to_date.Standing | None = await self.in_pool(up_to_date.standing, store, files, request)
            return found
        if self.fresh:
            return None  # no record has the change that was just told
        verified = self.verified
        if verified is not None and await self.in_pool(self._is_untouched, verified, store, files):
            return up_to_date.Standing(verified.record, complete=True)
        self.verified = None
        hints, armings = self.hints.count, self._armings
        record: up_to_date.Record | None = await self.in_pool(up_to_date.still_true, store, files, request)
        if record is None:
            return None
        if not record.young:
            split = await self.in_pool(self._split, record, hints, os.path.realpath(request.project))
            if armings == self._armings:
                self.verified = split
        return up_to_date.Standing(record, complete=True)

    def carry_from(self, base: Base, store: Store, files: Files) -> Carry | None:
        """What stands as the base left it; None where that is not sure. In a worker thread."""
        if not self.hints.barrier(store.scratch_folder()) or not self.hints.stands(base.project):
            return None
        touched = self.hints.touched_since(self._mark)
        return None if touched is None else carry(base, touched, files, sweep.sweep_of(store.folder))

    async def keep_base(self, build: ActiveBuild) -> None:
        """Keep a good build as the base of the next one."""
        mark = build.mark
        base = None if mark is None else await self.in_pool(self._base_of, build, mark, self.base, self._mark)
        if base is not None and mark is not None and self.watches:
            self.base, self._mark = base, mark

    def _base_of(self, build: ActiveBuild, mark: Mark, before: Base | None, before_mark: Mark) -> Base | None:
        touched = None if before is None else self.hints.touched_since(before_mark)
        still = before.users.keys() - touched if before is not None and touched is not None else set()
        base = taken(build, self.hints.covers, still)
        if base is None or not self.hints.barrier(build.store.scratch_folder()):
            return None
        touched = self.hints.touched_since(mark)
        return base if touched is not None and is_whole(base, touched) else None

    def _is_untouched(self, verified: _Verified, store: Store, files: Files) -> bool:
        if not self.hints.barrier(store.scratch_folder()) or self.hints.count != verified.hints:
            return False
        if not self.hints.stands(verified.project):
            return False
        snapshot = Snapshot(files, "/")
        return sweep.sweep_of(store.folder).all_equal(verified.paths, verified.stamps) and all(
            snapshot.folder_stamp(folder) == stamp for folder, stamp in verified.folders
        )

    def _split(self, record: up_to_date.Record, hints: int, project: str) -> _Verified:
        is_watched = watched_by(project, self.hints.covers)
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


class WatchedRequest:
    """What the watches of a request's targets know, asked for one request. With no such watch it knows nothing.

    Args:
        targets: the targets of the request, with their watches; with none where nothing watches them.
        looking: held while the watches look at their files.
        rearm: watches the folders that count now; called with `looking` held.
    """

    def __init__(
        self, request: m.Request, targets: WatchedTargets, looking: asyncio.Lock, rearm: Callable[[], Awaitable[None]]
    ) -> None:
        self._request = request
        self._targets = targets
        self._looking = looking
        self._rearm = rearm

    def __bool__(self) -> bool:
        """Whether a watch has just these targets."""
        return bool(self._targets.watches)

    def settled_s(self, now_s: float) -> float:
        """Since when no file of the targets was touched, as far as is known."""
        return min(now_s, self._targets.hints.last_s) if self else now_s

    def mark(self) -> Mark | None:
        """The present moment, by the hints; None without a watch."""
        return self._targets.hints.mark() if self else None

    @property
    def fresh(self) -> set[str]:
        """The files that were saved since the last build of the targets: absolute paths."""
        return self._targets.fresh

    @property
    def may_be_brief(self) -> bool:
        """Whether "nothing to do" is answer enough."""
        if not all(watch.is_planned for watch in self._targets.watches.values()):
            return False  # such a watch would learn nothing from that
        return self._request.known is None or self._base is not None

    @property
    def _base(self) -> Base | None:
        """The last good build, if the client knows all of it."""
        base = self._targets.base if self._request.known else None
        return base if base is not None and base.request_id == self._request.known else None

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last good build, for a client that watches."""
        base = self._targets.base if self._request.known is not None else None
        return None if base is None else base.plan

    async def standing(self, store: Store, files: Files) -> up_to_date.Standing | None:
        """The record of the request if it still holds."""
        return await self._targets.standing(store, files, self._request)

    async def carry(self, store: Store, files: Files, plan: Plan) -> Carry | None:
        """Which actions stand as the client has seen them last; None where all are to be looked up."""
        base = self._base
        if base is None or base.plan is not plan or not up_to_date.may_use(self._request):
            return None
        found: Carry | None = await self._targets.in_pool(self._targets.carry_from, base, store, files)
        return found

    async def expect(self, plan: Plan) -> None:
        """Note what the build will make, before it makes anything."""
        for watch in list(self._targets.watches.values()):
            async with self._looking:
                await self._targets.in_pool(watch.expect, plan)

    def stood(self) -> None:
        """Note that the request had nothing to do: a client that knew all before it still does."""
        for watch in self._targets.watches.values():
            watch.stood()
        base = self._base
        if base is not None:
            self._targets.base = replace(base, request_id=self._request.request_id)

    async def refused(self) -> None:
        """Note that the request could not be planned: its watches wait for any file that may mend that."""
        for watch in list(self._targets.watches.values()):
            async with self._looking:
                await self._targets.in_pool(watch.refused)
                await self._rearm()
