"""Figures of a store: its sizes, its counters and what its areas hold, for people and for `--json`.

Changes nothing but counters: hits that were only noted so far are counted first, and `zero` sets all to 0.
"""

from __future__ import annotations

import os

import msgspec

from buildd.store import sessions
from buildd.store.areas import Held
from buildd.store.garbage_collection import held_bytes
from buildd.store.parts import Parts
from buildd.store.tally import Reasoned
from buildd.store.values import as_int, decoded


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a store."""

    folder: str
    limit_bytes: int
    held_bytes: int
    """Size of the results and blobs, as it is compared with the bound."""
    index_bytes: int
    """Size of index.db and its log on disk."""
    results: int
    blobs: int
    blob_bytes: int
    """Size of the blobs' contents."""
    stored_bytes: int
    """Size of the blobs as stored: compressed, where that makes them smaller."""
    file_blobs: int
    """Blobs that are files of their own, not rows of the index."""
    areas: dict[str, Held]
    """Name -> figures of what the store keeps beside its results."""
    sessions: int
    """Processes that write to the store right now."""
    leased: int
    counters: dict[str, int]
    passed_through: dict[str, int]
    """Reason -> commands of foreign builds that shims passed through for it."""
    missed: dict[str, int]
    """Kind of reason -> look-ups that missed for it."""
    hit: dict[str, int]
    """How a result was found -> hits."""
    tier: dict[str, int]
    """How the shared tier answered -> look-ups; and how many results were written to it."""
    whole: dict[str, int]
    """Reason -> compiles that ran whole for it, though others of their kind run in steps."""


def zero(store: Parts) -> None:
    """Count from 0 again, what has only been noted so far included. Raises StoreError."""
    for area in store.areas:
        area.settle()
    store.tally.flush(wait=True)
    store.database.transact(lambda connection: connection.execute("DELETE FROM counters"))


def stats(store: Parts) -> Stats:
    """The store's figures now."""
    for area in store.areas:
        area.settle()
    database = store.database
    rows = database.rows("SELECT count(*), total(size), total(stored), count(*) - count(data) FROM blobs")
    blobs, content_bytes, stored_bytes, files = rows[0] if rows else (0, 0, 0, 0)
    leases = database.rows("SELECT session, count(*) FROM leases GROUP BY session")
    writers = [row[0] for row in database.rows("SELECT name FROM sessions")]
    return Stats(
        folder=str(store.folder),
        limit_bytes=store.limit_bytes,
        held_bytes=held_bytes(database),
        index_bytes=sum(_size_bytes(f"{database.path}{suffix}") for suffix in ("", "-wal")),
        results=database.count("results"),
        blobs=as_int(blobs),
        blob_bytes=int(content_bytes),
        stored_bytes=int(stored_bytes),
        file_blobs=as_int(files),
        areas={area.name: found for area in store.areas if (found := area.held()) is not None},
        sessions=sum(sessions.is_alive(store.folder, decoded(name)) for name in writers),
        leased=sum(as_int(n) for name, n in leases if sessions.is_alive(store.folder, decoded(name))),
        counters={counter.value: count for counter, count in store.counters().items()},
        passed_through=store.tally.reasons(Reasoned.PASSED_THROUGH),
        missed=store.tally.reasons(Reasoned.MISSED),
        hit=store.tally.reasons(Reasoned.HIT),
        tier=store.tally.reasons(Reasoned.TIER),
        whole=store.tally.reasons(Reasoned.WHOLE),
    )


def _size_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
