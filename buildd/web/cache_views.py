"""The tables behind the pages of the cache and of profiles.

Reads the store's figures and its index; knows nothing of HTTP.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from buildd.store.build_log import Build
from buildd.store.figures import Stats, stats
from buildd.store.library_times import library_times
from buildd.store.store import Store
from buildd.store.values import as_int
from buildd.web.archive import Archive
from buildd.web.views import READ_FIRST

_DAY_NS = 86_400 * 10**9
_MOST_DEAR = 50
_MOST_CANDIDATES = 1000


class Day(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One day, UTC. Builds that are no longer in the log are not counted."""

    day: str
    hits: int = 0
    misses: int = 0
    stored_bytes: int = 0
    """Size of the results made that day which are still there."""
    held_bytes: int = 0
    """Size of all results that were there at its end and still are."""


class Dear(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An action that ran: how much time its misses took in all."""

    name: str
    project: str
    wall_s: float = 0.0
    runs: int = 0
    peak_bytes: int = 0
    reason: str = ""
    """Why it missed last."""
    build: str = ""


class User(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A project: how it uses the cache."""

    project: str
    builds: int = 0
    hits: int = 0
    misses: int = 0
    wall_s: float = 0.0
    saved_s: float = 0.0
    last_ns: int = 0


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    stats: Stats | None
    days: tuple[Day, ...]
    dear: tuple[Dear, ...]
    users: tuple[User, ...]
    missed: dict[str, int]
    """Kind of reason -> misses of the builds in the log."""


class ProblemLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem on a GPU."""

    gpu: str
    problem: str
    candidates: int
    measured: int
    best_us: float = 0.0
    library_us: float = 0.0
    library: str = ""


class CandidateLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A candidate on a problem and a GPU."""

    candidate: str
    outcome: str
    time_us: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    workspace_bytes: int = 0
    note: str = ""


def cache(archive: Archive) -> CacheView:
    """The figures of the store and of the builds in its log."""
    builds = archive.builds()
    with archive.store() as store:
        figures = stats(store) if store is not None else None
        days = _days(store, builds)
    missed: dict[str, int] = {}
    for _, facts in archive.known_facts(builds, READ_FIRST):
        for kind, count in facts.missed.items():
            missed[kind] = missed.get(kind, 0) + count
    return CacheView(stats=figures, days=tuple(days), dear=_dear(archive, builds), users=_users(builds), missed=missed)


def _days(store: Store | None, builds: list[Build]) -> list[Day]:
    days: dict[int, Day] = {}

    def day(time_ns: int) -> Day:
        number = time_ns // _DAY_NS
        name = time.strftime("%Y-%m-%d", time.gmtime(number * 86_400))
        return days.setdefault(number, Day(day=name))

    for build in builds:
        one = day(build.started_ns)
        one.hits += build.summary.hits
        one.misses += build.summary.misses
    if store is not None:
        rows = store.database.rows(
            "SELECT r.created_ns / ?, total(b.stored) FROM results r JOIN refs USING (key) JOIN blobs b USING (digest)"
            " GROUP BY 1",
            (_DAY_NS,),
        )
        for number, size in rows:
            day(as_int(number) * _DAY_NS).stored_bytes = int(size)
    held = 0
    for number in sorted(days):
        held += days[number].stored_bytes
        days[number].held_bytes = held
    return [days[number] for number in sorted(days)]


def _dear(archive: Archive, builds: list[Build]) -> tuple[Dear, ...]:
    found: dict[tuple[str, str], Dear] = {}
    for build, facts in archive.known_facts(builds, READ_FIRST):
        for action in facts.actions:
            key = (build.project, action.name)
            one = found.get(key)
            if one is None:  # the latest build comes first
                reason = action.reasons[0] if action.reasons else ""
                one = found[key] = Dear(name=action.name, project=build.project, reason=reason, build=build.request_id)
            one.wall_s += action.wall_s
            one.runs += 1
            one.peak_bytes = max(one.peak_bytes, action.peak_bytes)
    return tuple(sorted(found.values(), key=lambda one: -one.wall_s)[:_MOST_DEAR])


def _users(builds: list[Build]) -> tuple[User, ...]:
    found: dict[str, User] = {}
    for build in builds:
        one = found.setdefault(build.project, User(project=build.project, last_ns=build.started_ns))
        one.builds += 1
        one.hits += build.summary.hits
        one.misses += build.summary.misses
        one.wall_s += build.summary.wall_s
        one.saved_s += build.summary.saved_s
    return tuple(sorted(found.values(), key=lambda one: -(one.hits + one.misses)))


def problems(archive: Archive, folder: Path) -> list[ProblemLine]:
    """The problems that were measured, on each GPU; with the library's time where it is known."""
    with archive.store() as store:
        if store is None:
            return []
        rows = store.database.rows(
            "SELECT gpu, problem, count(*), sum(outcome = 'measured'),"
            " min(CASE WHEN outcome = 'measured' AND checked = 1 THEN time_us END)"
            " FROM profiles GROUP BY gpu, problem ORDER BY problem, gpu"
        )
    library = {(one.gpu, one.problem): one for one in library_times(folder)}
    lines = []
    for gpu, problem, candidates, measured, best_us in rows:
        names = (_text(gpu), _text(problem))
        beside = library.get(names)
        lines.append(
            ProblemLine(
                gpu=names[0],
                problem=names[1],
                candidates=as_int(candidates),
                measured=as_int(measured),
                best_us=float(best_us or 0.0),
                library_us=beside.time_us if beside is not None else 0.0,
                library=beside.library if beside is not None else "",
            )
        )
    return lines


def candidates(archive: Archive, gpu: str, problem: str) -> list[CandidateLine]:
    """The candidates of a problem on a GPU, the fastest first."""
    with archive.store() as store:
        if store is None:
            return []
        rows = store.database.rows(
            "SELECT candidate, outcome, time_us, spread, error, workspace_bytes, note FROM profiles"
            " WHERE gpu = ? AND problem = ? ORDER BY outcome <> 'measured', time_us LIMIT ?",
            (gpu, problem, _MOST_CANDIDATES),
        )
    return [
        CandidateLine(
            candidate=_text(row[0]),
            outcome=_text(row[1]),
            time_us=float(row[2] or 0.0),
            spread=float(row[3] or 0.0),
            error=float(row[4] or 0.0),
            workspace_bytes=as_int(row[5]),
            note=_text(row[6]),
        )
        for row in rows
    ]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
