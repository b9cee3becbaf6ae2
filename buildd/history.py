"""Learned time and memory of jobs: what each action used lately, and what an unknown one of its kind may use.

Knows no plan and no schedule. Memory is estimated high (the most that was seen lately, and a tenth more): too little
kills a job, too much only makes it wait. Time is a median, because it only orders jobs and tells people.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from enum import Enum
from statistics import median
from typing import NamedTuple

import msgspec

from buildd.errors import StoreError
from buildd.shelf import Shelf
from buildd.tally import next_tick
from buildd.values import TRIM_EVERY_TICKS, as_int
from codegen.plan import Resources
from protocol.messages import Timing

MOST_SAMPLES = 20
MOST_ACTIONS = 100_000
_HEADROOM = 1.10
_AFTER_KILL = 1.5
"""A job killed for memory needed more than it was seen to use."""
_QUANTILE = 0.9


class Ended(Enum):
    """How a measured job ended, as far as it matters to what can be learned from it."""

    BUILT = "built"
    FAILED = "failed"
    """With a compile error or a signal, somewhere in the middle: its memory counts, its time does not."""
    OUT_OF_MEMORY = "out_of_memory"


class Source(Enum):
    """What an estimate stands on."""

    HISTORY = "history"
    KIND = "kind"
    DEFAULT = "default"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a job will probably use."""

    resources: Resources
    source: Source
    user_s: float = 0.0
    system_s: float = 0.0


class _Sample(msgspec.Struct, frozen=True, array_like=True):
    wall_s: float
    user_s: float
    system_s: float
    peak_rss_bytes: int
    ended: Ended


_decoder = msgspec.msgpack.Decoder(list[_Sample])


class Measured(NamedTuple):
    """A job that ran."""

    identity: str
    """The action's identity over edits (a digest, or any string)."""
    kind: str
    """`Action.kind`."""
    timing: Timing
    ended: Ended = Ended.BUILT


def record(store: Shelf, identity: str, kind: str, timing: Timing, ended: Ended = Ended.BUILT) -> None:
    """Learn from a job that ran; see `Measured`."""
    record_all(store, [Measured(identity, kind, timing, ended)])


def record_all(store: Shelf, jobs: Sequence[Measured]) -> None:
    """Learn from jobs, in one transaction. A store that may not be written, or is full, learns nothing."""
    if store.read_only or not jobs:
        return

    def work(connection: sqlite3.Connection) -> None:
        for job in jobs:
            _learn(connection, job)

    try:
        store.database.transact(work)
    except StoreError:
        pass  # the next run teaches the same


def _learn(connection: sqlite3.Connection, job: Measured) -> None:
    identity, timing = _text(job.identity), job.timing
    sample = _Sample(timing.wall_s, timing.user_s, timing.system_s, timing.peak_rss_bytes, job.ended)
    row = connection.execute("SELECT samples FROM history WHERE identity = ?", (identity,)).fetchone()
    samples = [*(_samples(row[0]) if row else []), sample][-MOST_SAMPLES:]
    tick = next_tick(connection)
    if tick % TRIM_EVERY_TICKS == 0:
        trim(connection)
    whole = [one for one in samples if one.ended is Ended.BUILT] or samples
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


def estimates(store: Shelf, wanted: Sequence[tuple[str, str, Resources]]) -> list[Estimate]:
    """What jobs will probably use, in the order asked; a few queries for any number.

    Args:
        wanted: identity, kind and first guess of each. An unknown identity gets its kind's upper quantile (p90), an
            unknown kind the first guess. `cpus` is always that of the guess.
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
        upper = kinds[kind]
        if upper is None:
            found.append(Estimate(resources=guess, source=Source.DEFAULT))
        else:
            resources = Resources(cpus=guess.cpus, memory_bytes=upper[1] or guess.memory_bytes, wall_s=upper[0])
            found.append(Estimate(resources=resources, source=Source.KIND))
    return found


def estimate(store: Shelf, identity: str, kind: str, guess: Resources) -> Estimate:
    """What one job will probably use."""
    return estimates(store, [(identity, kind, guess)])[0]


def trim(connection: sqlite3.Connection) -> None:
    """Forget the actions that have not run for longest, down to the bound."""
    connection.execute(
        "DELETE FROM history WHERE rowid IN (SELECT rowid FROM history ORDER BY used DESC LIMIT -1 OFFSET ?)",
        (MOST_ACTIONS,),
    )


def _rows_of(store: Shelf, identities: list[str]) -> dict[str, tuple[float, float, float, int]]:
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


def _of_kind(store: Shelf, kind: str) -> tuple[float, int] | None:
    """Upper quantile of wall time and of memory over the actions of a kind."""
    rows = store.database.rows("SELECT count(*) FROM history WHERE kind = ?", (kind,))
    count = as_int(rows[0][0]) if rows else 0
    if count == 0:
        return None
    upper = []
    for column in ("wall_s", "memory_bytes"):
        values = store.database.rows(
            f"SELECT {column} FROM history WHERE kind = ? ORDER BY {column} LIMIT 1 OFFSET ?",
            (kind, min(count - 1, int(count * _QUANTILE))),
        )
        upper.append(values[0][0] if values else 0)
    return _seconds(upper[0]), int(max(0, as_int(upper[1])) * _HEADROOM)


def _needed_bytes(sample: _Sample) -> int:
    return int(sample.peak_rss_bytes * (_AFTER_KILL if sample.ended is Ended.OUT_OF_MEMORY else 1))


def _samples(packed: object) -> list[_Sample]:
    try:
        return _decoder.decode(packed) if isinstance(packed, bytes) else []
    except msgspec.MsgspecError:
        return []


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()
