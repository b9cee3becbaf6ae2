"""Keeping the store within its bound and sound: collection, verification, flushing, figures.

Knows no key and no build. The least recently used results go first; what a living process has leased, or has put and
not yet published, never goes. Rows and files go together, inside a write transaction: a put of the same blob by another
process comes wholly before it (and is then seen as pinned) or wholly after it (and writes the file again).
"""

from __future__ import annotations

import fnmatch
import os
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from buildd import answers, digests, history, kept_kernels, notes, profiles, sessions, values
from buildd.batch import ROW_BYTES
from buildd.database import Database
from buildd.results import decode_result, delete_result, drop_list
from buildd.sessions import FolderLock, boottime_s
from buildd.shelf import Shelf
from buildd.tally import Counter, Reasoned
from buildd.values import Table, as_int

PIN_S = 3600
"""How long an unpublished blob of a living process is kept."""
_TARGET = 0.9
"""Puts collect down to this part of the bound, so that not every put collects."""
_BATCH = 64
_STEP_BATCHES = 4


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a collection did."""

    results: int = 0
    blobs: int = 0
    freed_bytes: int = 0
    orphans: int = 0
    """Files without a row."""
    held_bytes: int = 0
    """What the store holds now."""
    in_use: int = 0
    """Results that a living process leases: they stay, whatever the bound."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found; all of it has been repaired by removing it."""

    blobs: int = 0
    bad_blobs: int = 0
    results: int = 0
    bad_results: int = 0
    """Damaged, or without one of their blobs."""
    bad_values: int = 0
    orphans: int = 0
    answers: int = 0
    """Those that stand-ins know by themselves."""
    bad_answers: int = 0
    kernels: int = 0
    """Triton's."""
    bad_kernels: int = 0
    foreign: tuple[str, ...] = ()
    """Files in the blobs' folder that are not ours; left alone."""
    index_problems: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        bad = self.bad_blobs + self.bad_results + self.bad_values + self.bad_answers + self.bad_kernels
        return not (bad or self.index_problems)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a store, for people and for `--json`."""

    folder: str
    limit_bytes: int
    held_bytes: int
    index_bytes: int
    """Size of index.db and its log on disk."""
    results: int
    actions: int
    blobs: int
    blob_bytes: int
    """Of the blobs' contents."""
    stored_bytes: int
    """Of the blobs as stored."""
    file_blobs: int
    answers: int
    """Results that stand-ins deliver by themselves."""
    answer_bytes: int
    """Theirs, beside `held_bytes`."""
    kernels: int
    """Triton's."""
    kernel_bytes: int
    """Theirs, beside `held_bytes`."""
    builds: int
    profiles: int
    """Measured kernels."""
    profiled_problems: int
    sessions: int
    """Processes that write to the store right now."""
    leased: int
    counters: dict[str, int]
    handed_through: dict[str, int]
    """Reason -> how many commands of foreign builds the stand-ins ran themselves for it."""
    whole: dict[str, int]
    """Reason -> how many compiles ran as one process for it, though others of their kind run in steps."""


def step(store: Shelf, total_bytes: int) -> bool:
    """A bounded piece of collection, made by puts that find the store over its bound; False where nothing went."""
    # The running total may be wrong after damage; evicting on its word alone could empty the store.
    before = total = _recount(store.database)
    goal = int(store.limit_bytes * _TARGET)
    if total > goal:
        _drop_dead(store)
        _drop_unreferenced(store)
        _drop_lists(store.database)
        total = held_bytes(store.database)
    for _ in range(_STEP_BATCHES):
        if total <= goal or _evict(store, total - goal)[0] == 0:
            break
        total = held_bytes(store.database)
    return total < before or before < total_bytes


def gc(store: Shelf, *, limit_bytes: int | None = None) -> Collected:
    """Remove what nothing refers to, then the least recently used results until the store is within the bound.

    Args:
        limit_bytes: the bound; the store's own when None.
    """
    notes.count(store)
    store.tally.flush(wait=True)
    limit = store.limit_bytes if limit_bytes is None else limit_bytes
    answers.trim(store.folder, limit // answers.SHARE)
    kept_kernels.trim(store.folder, limit // kept_kernels.SHARE)
    with FolderLock(store.folder):
        sessions.sweep(store.folder)
    _drop_dead(store)
    before = _recount(store.database)
    orphans, _ = drop_orphans(store)
    blobs, results = _drop_unreferenced(store), 0
    _drop_lists(store.database)
    while (excess := held_bytes(store.database) - limit) > 0:
        gone, went = _evict(store, excess)
        results, blobs = results + gone, blobs + went
        if gone == 0:
            break
    return _finish(store, before, results, blobs, orphans)


def flush(store: Shelf, pattern: str | None = None) -> Collected:
    """Drop every result, or those whose action's name matches a glob; leased ones stay.

    Learned times, past builds and counters stay as well; answers that stand-ins know go in any case. Without a pattern
    explanations, probe answers, up-to-date records, file digests, Triton's kernels and Inductor's graphs go too.
    """
    answers.clear(store.folder)
    _drop_dead(store)
    before = _recount(store.database)
    rows = store.database.rows("SELECT key, action FROM results")
    doomed = [key for key, action in rows if pattern is None or fnmatch.fnmatchcase(_decoded(action), pattern)]
    results, blobs = _delete_results(store, doomed)
    if pattern is None:
        kept_kernels.clear(store.folder)

        def work(connection: sqlite3.Connection) -> None:
            for table in ("actions", "probes", "records", "digests"):
                connection.execute(f"DELETE FROM {table}")

        store.database.transact(work)
    blobs += _drop_unreferenced(store)
    _drop_lists(store.database)
    return _finish(store, before, results, blobs, 0)


def verify(store: Shelf) -> Verified:
    """Read everything, check it against its digests and checksums, and remove what is bad."""
    database = store.database
    store.tally.flush(wait=True)
    problems = tuple(text for row in database.rows("PRAGMA integrity_check(20)") if (text := _decoded(row[0])) != "ok")
    names = [row[0] for row in database.rows("SELECT digest FROM blobs ORDER BY digest")]
    bad_blobs = sum(not store.blobs.is_sound(raw) and store.blobs.drop_bad(raw) for raw in names)
    rows = database.rows(
        "SELECT key, body, (SELECT count(*) FROM refs WHERE refs.key = results.key AND NOT EXISTS"
        " (SELECT 1 FROM blobs WHERE blobs.digest = refs.digest)) FROM results"
    )
    doomed = [key for key, body, gone in rows if gone or not _is_whole(database, key, body)]
    _delete_results(store, doomed, leased_too=True)
    bad_values = _drop_bad_values(database)
    orphans, foreign = drop_orphans(store)
    known, bad_answers = answers.verify(store.folder)
    kernels, bad_kernels = kept_kernels.verify(store.folder)
    _drop_lists(database)
    _recount(database)
    return Verified(
        blobs=len(names),
        bad_blobs=bad_blobs,
        results=len(rows),
        bad_results=len(doomed),
        bad_values=bad_values,
        orphans=orphans,
        answers=known,
        bad_answers=bad_answers,
        kernels=kernels,
        bad_kernels=bad_kernels,
        foreign=foreign,
        index_problems=problems,
    )


def stats(store: Shelf) -> Stats:
    """The store's figures now."""
    notes.count(store)
    database = store.database
    known, known_bytes = answers.held(store.folder)
    kernels, kernel_bytes = kept_kernels.held(store.folder)
    counts = {}
    for table in ("results", "actions", "builds"):
        rows = database.rows(f"SELECT count(*) FROM {table}")
        counts[table] = as_int(rows[0][0]) if rows else 0
    figures = database.rows("SELECT count(*), total(size), total(stored), count(*) - count(data) FROM blobs")
    blobs, content, stored, files = figures[0] if figures else (0, 0, 0, 0)
    leases = database.rows("SELECT session, count(*) FROM leases GROUP BY session")
    live = [row[0] for row in database.rows("SELECT name FROM sessions")]
    profiled, problems = profiles.count(database)
    return Stats(
        folder=str(store.folder),
        limit_bytes=store.limit_bytes,
        held_bytes=held_bytes(database),
        index_bytes=sum(_size(f"{database.path}{suffix}") for suffix in ("", "-wal")),
        results=counts["results"],
        actions=counts["actions"],
        blobs=as_int(blobs),
        blob_bytes=int(content),
        stored_bytes=int(stored),
        file_blobs=as_int(files),
        answers=known,
        answer_bytes=known_bytes,
        kernels=kernels,
        kernel_bytes=kernel_bytes,
        builds=counts["builds"],
        profiles=profiled,
        profiled_problems=problems,
        sessions=sum(sessions.is_alive(store.folder, _decoded(name)) for name in live),
        leased=sum(as_int(n) for name, n in leases if sessions.is_alive(store.folder, _decoded(name))),
        counters={counter.value: count for counter, count in store.counters().items()},
        handed_through=store.tally.reasons(Reasoned.HANDED_THROUGH),
        whole=store.tally.reasons(Reasoned.WHOLE),
    )


def held_bytes(database: Database) -> int:
    """What the store holds, as compared with its bound."""
    rows = database.rows("SELECT value FROM meta WHERE name = 'bytes'")
    return as_int(rows[0][0]) if rows else 0


# ---------------------------------------------------------------- pieces


def _drop_dead(store: Shelf) -> None:
    """Void the leases and pins of sessions whose owner is gone."""
    rows = store.database.rows(
        "SELECT session FROM leases UNION SELECT session FROM pins UNION SELECT name FROM sessions"
    )
    dead = [name for row in rows if not sessions.is_alive(store.folder, name := _decoded(row[0]))]
    if not dead:
        return

    def work(connection: sqlite3.Connection) -> None:
        for name in dead:
            connection.execute("DELETE FROM leases WHERE session = ?", (name,))
            connection.execute("DELETE FROM pins WHERE session = ?", (name,))
            connection.execute("DELETE FROM sessions WHERE name = ?", (name,))

    store.database.transact(work)


def _evict(store: Shelf, excess_bytes: int) -> tuple[int, int]:
    """Remove the least recently used results until `excess_bytes` are gone, or a batch is; results and blobs gone."""

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


def _delete_results(store: Shelf, keys: Sequence[bytes], *, leased_too: bool = False) -> tuple[int, int]:
    """Remove these results, in batches; results and blobs gone."""
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


def _delete_blobs(store: Shelf, connection: sqlite3.Connection, candidates: Iterable[bytes]) -> tuple[int, int]:
    """Delete those of `candidates` that nothing needs, inside a transaction; how many, and their bytes."""
    now, gone, freed = boottime_s(), 0, 0
    for raw in candidates:
        row = connection.execute(
            "SELECT stored FROM blobs WHERE digest = ?1"
            " AND NOT EXISTS (SELECT 1 FROM refs WHERE digest = ?1)"
            " AND NOT EXISTS (SELECT 1 FROM pins WHERE digest = ?1 AND boottime_s BETWEEN ?2 AND ?3)",
            (raw, now - PIN_S, now + PIN_S),
        ).fetchone()
        if row is not None:
            store.blobs.delete(connection, raw, as_int(row[0]))
            gone, freed = gone + 1, freed + as_int(row[0]) + ROW_BYTES
    return gone, freed


def _drop_unreferenced(store: Shelf) -> int:
    """Blobs that no result refers to and nobody has just put; how many went."""
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


def _drop_lists(database: Database) -> None:
    """Lists of input sets that are no more."""
    rows = database.rows(
        "SELECT digest FROM lists WHERE NOT EXISTS (SELECT 1 FROM input_sets WHERE files = lists.digest)"
        " AND NOT EXISTS (SELECT 1 FROM input_sets WHERE folders = lists.digest)"
    )
    if rows:
        database.transact(lambda connection: [drop_list(connection, row[0]) for row in rows])


def drop_orphans(store: Shelf) -> tuple[int, tuple[str, ...]]:
    """Blob files without a row (a crash between rename and commit, a lost index); how many went, and foreign files."""
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
            # Looked at again under the write lock: it may be a blob that is being put right now.
            row = connection.execute(
                "SELECT 1 FROM blobs WHERE digest = ? AND data IS NULL", (bytes.fromhex(name),)
            ).fetchone()
            if row is None:
                store.blobs.path_of(name).unlink(missing_ok=True)
                gone += 1
        return gone

    return (store.database.transact(work) if suspects else 0), tuple(sorted(foreign))


def _is_whole(database: Database, key: object, body: object) -> bool:
    """Whether a result's row is sound and its references are those of its body."""
    result = decode_result(key, body) if isinstance(key, bytes) else None
    if result is None:
        return False
    rows = database.rows("SELECT digest FROM refs WHERE key = ?", (key,))
    return {row[0] for row in rows} == {bytes.fromhex(digest) for digest in result.digests()}


def _drop_bad_values(database: Database) -> int:
    bad = 0
    for table in Table:
        rows = database.rows(f"SELECT rowid, name, value FROM {table.value}")
        doomed = [row for row, name, value in rows if not isinstance(name, bytes) or values.unseal(name, value) is None]
        bad += len(doomed)

        def work(connection: sqlite3.Connection, table: Table = table, doomed: list[int] = doomed) -> None:
            connection.executemany(f"DELETE FROM {table.value} WHERE rowid = ?", [(row,) for row in doomed])

        if doomed:
            database.transact(work)
    return bad


def _recount(database: Database) -> int:
    """Set the running total right; the total."""

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


def _finish(store: Shelf, before_bytes: int, results: int, blobs: int, orphans: int) -> Collected:
    def work(connection: sqlite3.Connection) -> None:
        values.trim(connection)
        digests.trim(connection)
        history.trim(connection)

    store.database.transact(work)
    store.database.shrink()
    total = _recount(store.database)
    leased = store.database.rows("SELECT count(*) FROM results WHERE key IN (SELECT key FROM leases)")
    return Collected(
        results=results,
        blobs=blobs,
        freed_bytes=max(0, before_bytes - total),
        orphans=orphans,
        held_bytes=total,
        in_use=as_int(leased[0][0]) if leased else 0,
    )


def _decoded(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
