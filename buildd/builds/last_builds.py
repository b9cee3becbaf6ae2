"""The last good builds of targets that nobody watches: a build after an edit looks up only what the edit reaches.

Stamps tell which files were touched since; `carry_over` decides what stands. Between builds all of this is in files
without a name, which only this process has open: it takes no memory. Knows no watch, whose hints tell the same without
a look at each file. In doubt nothing is carried over.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from buildd.builds import plan_cache, up_to_date
from buildd.builds.active_build import ActiveBuild
from buildd.builds.carry_over import Base, Carry, carry, taken
from buildd.errors import BuilddError
from buildd.files import sweep
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.files.stamp import trustworthy
from protocol.messages import Digest, Request

MOST_KEPT = 4
"""Builds of one store: each is an open file."""
_Name = tuple[Digest, str, str]
_STAMP_BYTES = 8 * sweep.FIELDS


@dataclass(frozen=True, slots=True)
class _Last:
    base: Base
    plan: plan_cache.KeptPlan
    """The base's plan."""
    paths: list[bytes]
    """Files of the project that its actions read or make, absolute."""
    stamps: bytes
    young: frozenset[str]
    """Those whose stamps were too young to tell every later write: their content is compared."""


class LastBuilds:
    """The last good builds of one store, by what was asked for. Used from worker threads.

    Args:
        sweeper: looks at the stamps of many files.
        folder: gives a folder for the files; may raise OSError or BuilddError.
    """

    def __init__(self, sweeper: sweep.Sweep, folder: Callable[[], Path]) -> None:
        self._sweeper = sweeper
        self._folder = folder
        self._kept: dict[_Name, IO[bytes]] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def keep(self, build: ActiveBuild) -> None:
        """Keep a build that was good, after everything else was written down."""
        request = build.request
        if not up_to_date.may_use(request):
            return
        name = plan_cache.name_of(request)
        self._forget(name)
        base = taken(build, lambda _: True)
        plan = plan_cache.kept_plan(request, build.plan, build.started_ns) if base is not None else None
        if base is None or plan is None or not base.able or not _has_seen_names(build, base):
            return
        with contextlib.suppress(OSError, BuilddError):  # the next build looks everything up
            file = tempfile.TemporaryFile(dir=self._folder())  # noqa: SIM115
            try:
                pickle.dump(_last(base, plan), file, pickle.HIGHEST_PROTOCOL)
                file.flush()
            except BaseException:
                file.close()
                raise
            with self._lock:
                if self._is_closed:  # the daemon ends while a build is written down
                    file.close()
                    return
                if (other := self._kept.pop(name, None)) is not None:  # of an equal request that ended just now
                    other.close()
                while len(self._kept) >= MOST_KEPT:
                    self._kept.pop(next(iter(self._kept))).close()
                self._kept[name] = file

    def recall(self, request: Request, files: Files) -> Carry | None:
        """The plan of a request, and its actions that stand as its last build left them; None where that is not
        sure."""
        if request.known is not None or not up_to_date.may_use(request):
            return None
        last = self._read(plan_cache.name_of(request))
        if last is None or not last.plan.holds(request, self._sweeper):
            return None
        now = self._sweeper.stamps_of(last.paths)
        touched = set(last.young)
        if now != last.stamps:
            for place, path in zip(range(0, len(now), _STAMP_BYTES), last.paths, strict=True):
                if now[place : place + _STAMP_BYTES] != last.stamps[place : place + _STAMP_BYTES]:
                    touched.add(os.fsdecode(path))
        base, snapshot = last.base, Snapshot(files, "/")
        folders = {
            os.path.normpath(os.path.join(base.project, folder)): stamp for folder, stamp in base.folders.items()
        }
        moved = [f for f in base.names if folders[f] == -1 or snapshot.folder_stamp(f) != folders[f]]
        return carry(base, touched, files, self._sweeper, moved)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for name in list(self._kept):
            self._forget(name)

    def _forget(self, name: _Name) -> None:
        with self._lock:
            file = self._kept.pop(name, None)
        if file is not None:
            file.close()

    def _read(self, name: _Name) -> _Last | None:
        with self._lock:
            file = self._kept.get(name)
            if file is None:
                return None
            file.seek(0)
            content = file.read()
        last: _Last = pickle.loads(content)
        return last


def _last(base: Base, plan: plan_cache.KeptPlan) -> _Last:
    paths: list[bytes] = []
    stamps = bytearray()
    young: set[str] = set()
    for path in base.users:
        fact, looked_ns = base.seen[base.spellings[path][0]]
        assert fact is not None  # `taken` leaves out the actions that read what is not there
        paths.append(os.fsencode(path))
        stamps += sweep.packed(fact.stamp)
        if not trustworthy(fact.stamp, looked_ns):
            young.add(path)
    return _Last(base, plan, paths, bytes(stamps), frozenset(young))


def _has_seen_names(build: ActiveBuild, base: Base) -> bool:
    """Whether the names in the project's folders, which the base has just read, are those that the build has seen,
    and its outputs."""
    snapshot = Snapshot(build.files, "/")
    changed = []
    for index, (spelled, stamp) in enumerate(base.folders.items()):
        folder = os.path.normpath(os.path.join(base.project, spelled))
        if folder in base.names and (stamp == -1 or snapshot.folder_stamp(folder) != stamp):
            changed.append(index)
    return not changed or up_to_date.around_outputs(build, base.folders).keys() >= set(changed)
