"""Garbage collection: keeps a store within its bound, and flushes it.

Knows no key and no build, and no area by name. The least recently used results go first. Results that a living process
has leased, and blobs that it has put and not yet published, never go. Rows and files are removed together, inside a
write transaction. Another process's put of the same blob comes wholly before that transaction (which then sees the blob
as pinned) or wholly after it (and writes the file again).
"""

from __future__ import annotations

import fnmatch
import os
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from buildd.store import sessions, values
from buildd.store.batch import ROW_BYTES
from buildd.store.database import Database
from buildd.store.parts import Parts
from buildd.store.results import delete_result, drop_list
from buildd.store.sessions import FolderLock, boottime_s
from buildd.store.tally import Counter
from buildd.store.values import as_int, decoded

PIN_S = 3600
"""How long an unpublished blob of a living process is kept."""
_TARGET = 0.9
"""A put that finds the store over its bound collects down to this share of it, so that the next puts need not."""
_BATCH = 64
_STEP_BATCHES = 4


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection did."""

    results: int = 0
    blobs: int = 0
    freed_bytes: int = 0
    orphans: int = 0
    """Removed files that had no row in the index."""
    held_bytes: int = 0
    """Size of the store after the collection."""
    in_use: int = 0
    """Results that living processes lease: they stay, whatever the bound."""


def step(store: Parts, total_bytes: int) -> bool:
    """Collect a bounded piece, for a put that finds the store over its bound; False where nothing could go.

    Args:
        total_bytes: size of the store according to the running total.
    """
    # The running total may be wrong after damage; evicting by it alone could empty the store.
    before = total = recount(store.database)
    goal = int(store.limit_bytes * _TARGET)
    if total > goal:
        _drop_dead(store)
        _drop_unreferenced(store)
        drop_lists(store.database)
        total = held_bytes(store.database)
    for _ in range(_STEP_BATCHES):
        if total <= goal or _evict(store, total - goal)[0] == 0:
            break
        total = held_bytes(store.database)
    return total < before or before < total_bytes


def gc(store: Parts, *, limit_bytes: int | None = None) -> Collected:
    """Trim the areas, remove blobs without a result, then the least recently used results down to the bound.

    Args:
        limit_bytes: the bound; the store's own when None.
    """
    for area in store.areas:
        area.settle()
    store.tally.flush(wait=True)
    limit = store.limit_bytes if limit_bytes is None else limit_bytes
    for area in store.areas:
        area.trim(limit)
    with FolderLock(store.folder):
        sessions.sweep(store.folder)
    _drop_dead(store)
    before = recount(store.database)
    orphans, _ = drop_orphans(store)
    blobs, results = _drop_unreferenced(store), 0
    drop_lists(store.database)
    while (excess := held_bytes(store.database) - limit) > 0:
        gone, went = _evict(store, excess)
        results, blobs = results + gone, blobs + went
        if gone == 0:
            break
    return _finish(store, before, results, blobs, orphans)


def flush(store: Parts, pattern: str | None = None) -> Collected:
    """Drop every result, or those whose action's name matches a glob; leased ones stay.

    Counters stay as well. What else goes is up to each area: shims' answers always go; explanations, probe answers,
    up-to-date records, file digests, Triton's kernels and Inductor's graphs go without a pattern; learned times,
    profiles and past builds stay.
    """
    for area in store.areas:
        area.flush(everything=pattern is None)
    _drop_dead(store)
    before = recount(store.database)
    rows = store.database.rows("SELECT key, action FROM results")
    doomed = [key for key, action in rows if pattern is None or fnmatch.fnmatchcase(decoded(action), pattern)]
    results, blobs = delete_results(store, doomed)
    blobs += _drop_unreferenced(store)
    drop_lists(store.database)
    return _finish(store, before, results, blobs, 0)


def held_bytes(database: Database) -> int:
    """Size of the store's results and blobs, as it is compared with the bound."""
    rows = database.rows("SELECT value FROM meta WHERE name = 'bytes'")
    return as_int(rows[0][0]) if rows else 0


# ---------------------------------------------------------------- pieces


def _drop_dead(store: Parts) -> None:
    """Delete the leases and pins of sessions whose process has ended."""
    rows = store.database.rows(
        "SELECT session FROM leases UNION SELECT session FROM pins UNION SELECT name FROM sessions"
    )
    dead = [name for row in rows if not sessions.is_alive(store.folder, name := decoded(row[0]))]
    if not dead:
        return

    def work(connection: sqlite3.Connection) -> None:
        for name in dead:
            connection.execute("DELETE FROM leases WHERE session = ?", (name,))
            connection.execute("DELETE FROM pins WHERE session = ?", (name,))
            connection.execute("DELETE FROM sessions WHERE name = ?", (name,))

    store.database.transact(work)


def _evict(store: Parts, excess_bytes: int) -> tuple[int, int]:
    """Remove a batch of the least recently used results, or as many as free `excess_bytes`.

    Returns how many results and how many blobs went.
    """

    def work(connection: sqlite3.Connection) -> tuple[int, int, int]:
        results = blobs = freed = 0
        oldest = connection.execute(
            "SELECT key FROM results WHERE key NOT IN (SELECT key FROM leases) ORDER BY used LIMIT ?", (_BATCH,)
        ).fetchall()
        for (key,) in oldest:
            if freed >= excess_bytes:
                break
            gone, went_bytes = _delete_blobs(store, connection, delete_result(connection, key))
            results, blobs, freed = results + 1, blobs + gone, freed + went_bytes + ROW_BYTES
        return results, blobs, freed

    results, blobs, freed = store.database.transact(work)
    store.count(Counter.EVICTED_RESULTS, results)
    store.count(Counter.EVICTED_BYTES, freed)
    return results, blobs


def delete_results(store: Parts, keys: Sequence[bytes], *, leased_too: bool = False) -> tuple[int, int]:
    """Remove these results, in batches; how many results and how many blobs went."""
    results = blobs = 0

    def work(connection: sqlite3.Connection) -> tuple[int, int]:
        leased = {row[0] for row in connection.execute("SELECT key FROM leases").fetchall()}
        doomed = [key for key in batch if leased_too or key not in leased]
        gone = sum(_delete_blobs(store, connection, delete_result(connection, key))[0] for key in doomed)
        return len(doomed), gone

    for start in range(0, len(keys), _BATCH):
        batch = keys[start : start + _BATCH]
        done = store.database.transact(work)
        results, blobs = results + done[0], blobs + done[1]
    return results, blobs


def _delete_blobs(store: Parts, connection: sqlite3.Connection, candidates: Iterable[bytes]) -> tuple[int, int]:
    """Delete those of `candidates` that nothing needs, inside a transaction; how many went, and their bytes."""
    now, gone, freed = boottime_s(), 0, 0
    for raw in candidates:
        row = connection.execute(
            "SELECT stored FROM blobs WHERE digest = ?"
            " AND NOT EXISTS (SELECT 1 FROM refs WHERE digest = ?)"
            " AND NOT EXISTS (SELECT 1 FROM pins WHERE digest = ? AND boottime_s BETWEEN ? AND ?)",
            (raw, raw, raw, now - PIN_S, now + PIN_S),
        ).fetchone()
        if row is not None:
            store.blobs.delete(connection, raw, as_int(row[0]))
            gone, freed = gone + 1, freed + as_int(row[0]) + ROW_BYTES
    return gone, freed


def _drop_unreferenced(store: Parts) -> int:
    """Remove the blobs that no result refers to and no process has just put; how many went."""
    candidates = [
        row[0]
        for row in store.database.rows(
            "SELECT digest FROM blobs WHERE NOT EXISTS (SELECT 1 FROM refs WHERE refs.digest = blobs.digest)"
        )
    ]
    gone = 0
    for start in range(0, len(candidates), _BATCH):
        batch = candidates[start : start + _BATCH]

        def work(connection: sqlite3.Connection, batch: list[bytes] = batch) -> tuple[int, int]:
            return _delete_blobs(store, connection, batch)

        gone += store.database.transact(work)[0]
    return gone


def drop_lists(database: Database) -> None:
    """Remove the lists of files and folders that no input set refers to."""
    rows = database.rows(
        "SELECT digest FROM lists WHERE NOT EXISTS (SELECT 1 FROM input_sets WHERE files = lists.digest)"
        " AND NOT EXISTS (SELECT 1 FROM input_sets WHERE folders = lists.digest)"
    )
    if rows:
        database.transact(lambda connection: [drop_list(connection, row[0]) for row in rows])


def drop_orphans(store: Parts) -> tuple[int, tuple[str, ...]]:
    """Remove blob files without a row (after a crash between rename and commit, or a lost index).

    Returns how many went, and the files that are no blobs, which stay.
    """
    known = {
        row[0].hex() for row in store.database.rows("SELECT digest FROM blobs WHERE data IS NULL") if row[0] is not None
    }
    suspects, foreign = [], []
    for folder, _, files in os.walk(store.folder / "blobs"):
        for name in files:
            if values.raw_digest(name) is None or os.path.basename(folder) != name[:2]:
                foreign.append(os.path.join(folder, name))
            elif name not in known:
                suspects.append(name)

    def work(connection: sqlite3.Connection) -> int:
        gone = 0
        for name in suspects:
            # Read again under the write lock: the file may be a blob that a process is putting right now.
            row = connection.execute(
                "SELECT 1 FROM blobs WHERE digest = ? AND data IS NULL", (bytes.fromhex(name),)
            ).fetchone()
            if row is None:
                store.blobs.path_of(name).unlink(missing_ok=True)
                gone += 1
        return gone

    return (store.database.transact(work) if suspects else 0), tuple(sorted(foreign))


def recount(database: Database) -> int:
    """Correct the running total of the store's size; the total."""

    def work(connection: sqlite3.Connection) -> int:
        total = 0
        for statement in (
            f"SELECT total(stored) + {ROW_BYTES:d} * count(*) FROM blobs",
            f"SELECT total(length(data)) + {ROW_BYTES:d} * count(*) FROM lists",
            f"SELECT {ROW_BYTES:d} * count(*) FROM results",
        ):
            total += int(connection.execute(statement).fetchone()[0])
        connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('bytes', ?)", (total,))
        return total

    return database.transact(work)


def _finish(store: Parts, before_bytes: int, results: int, blobs: int, orphans: int) -> Collected:
    store.database.shrink()
    total = recount(store.database)
    leased = store.database.rows("SELECT count(*) FROM results WHERE key IN (SELECT key FROM leases)")
    return Collected(
        results=results,
        blobs=blobs,
        freed_bytes=max(0, before_bytes - total),
        orphans=orphans,
        held_bytes=total,
        in_use=as_int(leased[0][0]) if leased else 0,
    )
