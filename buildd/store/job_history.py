"""History of jobs: the time and memory that each action used lately, and estimates for unknown actions of its kind.

Knows no plan and no schedule. The memory of an action that has run is estimated high (the largest recent value and a
tenth more). That of others is estimated low, by the lower quartile of their kind: a job that turns out to need more
waits in its middle (`host.admission`), which costs less than processors without work. Time is a median, because it only
orders jobs and informs people.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from enum import Enum
from statistics import median
from typing import NamedTuple

import msgspec

from buildd.errors import StoreError
from buildd.store.areas import Area, Held
from buildd.store.database import Database
from buildd.store.parts import Parts
from buildd.store.tally import next_tick
from buildd.store.values import TRIM_EVERY_TICKS, as_int
from codegen.plan import Resources
from protocol.messages import Timing

MOST_SAMPLES = 20
MOST_ACTIONS = 100_000
_HEADROOM = 1.10
_LATELY = 4000
"""Runs of any kind among which those of one kind are looked for."""
_MOST_OF_KIND = 40
"""Few, so that a project with larger sources than the last one is known soon."""
_AFTER_KILL = 1.5
"""A job killed for memory needed more than it was seen to use."""


class JobEnd(Enum):
    """How a job ended, as far as it matters for learning from it."""

    BUILT = "built"
    FAILED = "failed"
    """The job ended early, with a compile error or a signal: its memory counts, its time does not."""
    OUT_OF_MEMORY = "out_of_memory"


class Source(Enum):
    """What an estimate is based on."""

    HISTORY = "history"
    KIND = "kind"
    DEFAULT = "default"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a job will probably use."""

    resources: Resources
    source: Source
    user_s: float = 0.0
    system_s: float = 0.0


class _Sample(msgspec.Struct, frozen=True, array_like=True):
    wall_s: float
    user_s: float
    system_s: float
    peak_rss_bytes: int
    ended: JobEnd


_decoder = msgspec.msgpack.Decoder(list[_Sample])


class FinishedJob(NamedTuple):
    """A job that ran, with what it used."""

    identity: str
    """The action's identity, which survives edits (a digest, or any string)."""
    kind: str
    """`Action.kind`."""
    timing: Timing
    ended: JobEnd = JobEnd.BUILT


def record(store: Parts, identity: str, kind: str, timing: Timing, ended: JobEnd = JobEnd.BUILT) -> None:
    """Learn from a job that ran; see `FinishedJob`."""
    record_all(store, [FinishedJob(identity, kind, timing, ended)])


def record_all(store: Parts, jobs: Sequence[FinishedJob]) -> None:
    """Learn from jobs, in one transaction. A store that is read-only or full learns nothing."""
    if store.read_only or not jobs:
        return

    def work(connection: sqlite3.Connection) -> None:
        for job in jobs:
            _learn(connection, job)

    try:
        store.database.transact(work)
    except StoreError:
        pass  # the next run of these jobs gives the same figures


def _learn(connection: sqlite3.Connection, job: FinishedJob) -> None:
    identity, timing = _text(job.identity), job.timing
    sample = _Sample(timing.wall_s, timing.user_s, timing.system_s, timing.peak_rss_bytes, job.ended)
    row = connection.execute("SELECT samples FROM history WHERE identity = ?", (identity,)).fetchone()
    samples = [*(_samples(row[0]) if row else []), sample][-MOST_SAMPLES:]
    tick = next_tick(connection)
    if tick % TRIM_EVERY_TICKS == 0:
        trim(connection)
    whole = [one for one in samples if one.ended is JobEnd.BUILT] or samples
    connection.execute(
        "INSERT OR REPLACE INTO history"
        " (identity, kind, used, wall_s, user_s, system_s, memory_bytes, samples) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            identity,
            _text(job.kind),
            tick,
            median(one.wall_s for one in whole),
            median(one.user_s for one in whole),
            median(one.system_s for one in whole),
            max(_needed_bytes(one) for one in samples),
            msgspec.msgpack.encode(samples),
        ),
    )


def estimates(store: Parts, wanted: Sequence[tuple[str, str, Resources]]) -> list[Estimate]:
    """The resources that jobs will probably use, in their order; a few queries for any number of jobs.

    Args:
        wanted: identity, kind and first guess of each. An unknown identity gets its kind's figures, an
            unknown kind the first guess. `cpus` always comes from the guess.
    """
    known = _rows_of(store, [_text(identity) for identity, _, _ in wanted])
    kinds: dict[str, tuple[float, int] | None] = {}
    found = []
    for identity, kind, guess in wanted:
        row = known.get(_text(identity))
        if row is not None:
            wall_s, user_s, system_s, memory_bytes = row
            resources = Resources(cpus=guess.cpus, memory_bytes=memory_bytes or guess.memory_bytes, wall_s=wall_s)
            found.append(Estimate(resources=resources, source=Source.HISTORY, user_s=user_s, system_s=system_s))
            continue
        if kind not in kinds:
            kinds[kind] = _of_kind(store, _text(kind))
        usual = kinds[kind]
        if usual is None:
            found.append(Estimate(resources=guess, source=Source.DEFAULT))
        else:
            resources = Resources(cpus=guess.cpus, memory_bytes=usual[1] or guess.memory_bytes, wall_s=usual[0])
            found.append(Estimate(resources=resources, source=Source.KIND))
    return found


def estimate(store: Parts, identity: str, kind: str, guess: Resources) -> Estimate:
    """The resources that one job will probably use."""
    return estimates(store, [(identity, kind, guess)])[0]


class HistoryArea(Area):
    """The rows of learned times; they survive `buildd cache flush`."""

    name = "history"

    def __init__(self, database: Database) -> None:
        self._database = database

    def held(self) -> Held:
        return Held(entries=self._database.count("history"), note="actions whose time and memory are known")

    def trim(self, limit_bytes: int) -> None:
        self._database.transact(trim)


def trim(connection: sqlite3.Connection) -> None:
    """Forget the actions whose last run is longest ago, down to the bound."""
    connection.execute(
        "DELETE FROM history WHERE rowid IN (SELECT rowid FROM history ORDER BY used DESC LIMIT -1 OFFSET ?)",
        (MOST_ACTIONS,),
    )


def _rows_of(store: Parts, identities: list[str]) -> dict[str, tuple[float, float, float, int]]:
    rows = store.database.rows(
        "SELECT h.identity, h.wall_s, h.user_s, h.system_s, h.memory_bytes"
        " FROM json_each(?) AS j CROSS JOIN history AS h ON h.identity = j.value",
        (msgspec.json.encode(identities).decode(),),
    )
    return {
        row[0].decode(errors="replace"): (
            _seconds(row[1]),
            _seconds(row[2]),
            _seconds(row[3]),
            int(max(0, as_int(row[4])) * _HEADROOM),
        )
        for row in rows
        if isinstance(row[0], bytes)
    }


def _of_kind(store: Parts, kind: str) -> tuple[float, int] | None:
    """Median of wall time and lower quartile of memory over the actions of a kind that ran lately."""
    # What is replaced gets a new rowid, so the last rows are those of the last runs.
    rows = store.database.rows(
        "SELECT wall_s, memory_bytes FROM (SELECT kind, wall_s, memory_bytes FROM history ORDER BY rowid DESC LIMIT ?)"
        " WHERE kind = ? LIMIT ?",
        (_LATELY, kind, _MOST_OF_KIND),
    )
    if not rows:
        return None
    walls_s, sizes = sorted(_seconds(row[0]) for row in rows), sorted(max(0, as_int(row[1])) for row in rows)
    return walls_s[len(rows) // 2], int(sizes[len(rows) // 4] * _HEADROOM)


def needed_bytes(peak_bytes: int) -> int:
    """The memory that a job probably needs which used so much when it was ended because memory was short."""
    return int(peak_bytes * _AFTER_KILL)


def _needed_bytes(sample: _Sample) -> int:
    is_more = sample.ended is JobEnd.OUT_OF_MEMORY
    return needed_bytes(sample.peak_rss_bytes) if is_more else sample.peak_rss_bytes


def _samples(packed: object) -> list[_Sample]:
    try:
        return _decoder.decode(packed) if isinstance(packed, bytes) else []
    except msgspec.MsgspecError:
        return []


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()
