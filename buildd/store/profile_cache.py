"""The profiles of a request: those in its store, or in the folder that CACHE_DIR names; and emptying them on request.

Knows file systems and variables, no row. If CACHE_DIR cannot hold new profiles (it is read-only, it is on a network
file system, a newer buildd has written to it), a folder below the store takes them, so that no measurement is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from buildd.errors import BuilddError, StoreError, StoreTooNew
from buildd.store.database import Database
from buildd.store.location import file_system_of, network_file_system
from buildd.store.profiles import Profile, Profiles, trim_timings
from buildd.store.store import Store
from codegen.gemm.best_kernels import Setting, cache_dir, folders
from codegen.variables.settings import Settings


class ProfileCache:
    """The profiles of one request. Make it with `open_profiles`.

    Args:
        own: takes new profiles; None where nothing may be written at all.
        others: profiles that are only read.
        opened: databases that `close` closes.
    """

    def __init__(self, own: Profiles | None, others: Iterable[Profiles], opened: Iterable[Database]) -> None:
        self._own = own
        self._others = tuple(others)
        self._opened = tuple(opened)
        self.notices: list[str] = []

    def of(self, setting: Setting, problem: str) -> dict[str, Profile]:
        """Candidate -> its profile, for a problem in a setting."""
        found: dict[str, Profile] = {}
        for profiles in (*self._others, *((self._own,) if self._own is not None else ())):
            found |= profiles.of(setting, problem)
        return found

    def epoch(self) -> int:
        return self._own.epoch() if self._own is not None else 0

    def everything(self) -> list[Profile]:
        """All profiles; if a row is in two places, the one in the place that is written to."""
        found: dict[tuple[Setting, str, str], Profile] = {}
        for profiles in (*self._others, *((self._own,) if self._own is not None else ())):
            for row in profiles.everything():
                found[row.setting, row.problem, row.candidate] = row
        return list(found.values())

    def save(
        self, profiles: Iterable[Profile], *, epoch: int | None = None, older: bool = True, more: bool = False
    ) -> bool:
        """As `Profiles.save`; False also where nothing may be written."""
        return self._own is not None and self._own.save(profiles, epoch=epoch, older=older, more=more)

    def publish(self) -> None:
        """As `Profiles.publish`."""
        if self._own is not None:
            self._own.publish()

    def flush(self, build: str = "") -> bool:
        """As `Profiles.flush`. Profiles in a read-only place stay."""
        for _ in self._others:
            self.notices.append("profiles that may not be written cannot be emptied; they stay")
        return self._own is not None and self._own.flush(build)

    def close(self) -> None:
        for database in self._opened:
            database.close()

    def __enter__(self) -> ProfileCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_profiles(
    environment: Mapping[str, str],
    store: Store,
    project: str = "/",
    *,
    file_system: Callable[[str], str] = file_system_of,
) -> ProfileCache:
    """The profiles of a request.

    Args:
        environment: the request's variables; CACHE_DIR and HOME are read.
        store: the request's store.
        project: the folder that a relative CACHE_DIR is below.
        file_system: tells the type of the file system that a path is on.
    """
    shared = cache_dir(environment, project)
    places = [Path(place) for place in folders(environment, str(store.folder), project)]
    if not shared:
        rows = Profiles(store.database, places[0])
        return ProfileCache(None if store.read_only else rows, (rows,) if store.read_only else (), ())
    notices: list[str] = []
    opened: list[Database] = []
    others: list[Profiles] = []
    why = ""
    if kind := network_file_system(places[0], file_system):
        why = f"is on {kind}"
    else:
        try:
            os.makedirs(places[0], mode=0o700, exist_ok=True)
            opened.append(Database(places[0], read_only=False, notice=notices.append))
        except StoreTooNew:
            why = "was written by a newer buildd"
        except (StoreError, OSError) as error:
            why = f"may not be written ({getattr(error, 'strerror', None) or error})"
            with suppress(StoreError):
                opened.append(Database(places[0], read_only=True, notice=notices.append))
                others.append(Profiles(opened[-1], places[0]))
    if not why:
        cache = ProfileCache(Profiles(opened[0], places[0]), (), opened)
    else:
        notices.append(f"CACHE_DIR {shared} {why}; new profiles are kept in {places[1]}")
        own: Profiles | None = None
        if not store.read_only:
            places[1].mkdir(mode=0o700, parents=True, exist_ok=True)
            opened.append(Database(places[1], read_only=False, notice=notices.append))
            own = Profiles(opened[-1], places[1])
        cache = ProfileCache(own, others, opened)
    cache.notices += notices
    return cache


def flush_asked(settings: Settings, store: Store, project: str, build: str) -> tuple[str, ...]:
    """Empty the profiles if FLUSH_PROFILE_CACHE is 1, once for a build; returns lines for people."""
    if not settings.is_on("FLUSH_PROFILE_CACHE"):
        return ()
    try:
        with open_profiles(settings.merged(), store, project) as cache:
            flushed = cache.flush(build)
            if flushed:
                trim_timings(store.folder, 0)
            said = ("FLUSH_PROFILE_CACHE=1: the profiles are emptied",) if flushed else ()
            return (*cache.notices, *said)
    except BuilddError as error:
        return (f"the profiles could not be emptied: {error.message} ({error.next_step})",)
