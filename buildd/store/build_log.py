"""Past builds: a line and the events of each, for `buildd log`. The oldest builds are dropped first.

Knows no event: they are bytes, kept compressed.
"""

from __future__ import annotations

import json
import sqlite3

import msgspec

from buildd.store.areas import Area, Held
from buildd.store.database import Database
from buildd.store.values import MAX_VALUE_BYTES, as_int, compress, decompress, seal, unseal
from protocol.described import described
from protocol.messages import BuildId, Done, Outcome, RequestId

MOST_BUILDS = 2000
MOST_BYTES = 200 << 20
_KEPT = "builds_bytes"
"""Row of `meta`: the size of all events. Reading it from the builds would read their events as well."""
_COLUMNS = "build_id, request_id, project, targets, started_ns, finished_ns, outcome, summary"


class BuildSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a finished build."""

    hits: int = 0
    misses: int = 0
    failures: int = 0
    wall_s: float = 0.0
    saved_s: float = 0.0
    message: str = ""
    command: str = ""
    """The command of a `buildd run`, as in a shell; empty for requests."""

    @classmethod
    def of(cls, done: Done, *, command: str = "") -> BuildSummary:
        """The figures of a build's last event."""
        return cls(
            hits=done.hits,
            misses=done.misses,
            failures=done.failures,
            wall_s=done.wall_s,
            saved_s=done.saved_s,
            message=done.message,
            command=command,
        )


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """One past request. Times are nanoseconds since the epoch."""

    build_id: BuildId
    request_id: RequestId
    project: str
    targets: tuple[str, ...]
    started_ns: int
    finished_ns: int
    outcome: Outcome
    summary: BuildSummary = BuildSummary()


class BuildLog:
    """The past builds of one store. Every method may be called from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, build: Build, events: bytes) -> None:
        """Keep a build and its events (any bytes, at most 256 MiB); drops the oldest beyond the bounds."""
        name = build.request_id.encode(errors="replace")
        sealed = seal(name, compress(events))

        def work(connection: sqlite3.Connection) -> None:
            build_id, request_id = _text(build.build_id), _text(build.request_id)
            kept_bytes = _kept_bytes(connection)
            same = "build_id = ? AND request_id = ?"  # only the first of them has an index
            kept_bytes -= _drop(connection, same, build_id, request_id)
            connection.execute(
                f"INSERT INTO builds ({_COLUMNS}, events, stored_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    build_id,
                    request_id,
                    _text(build.project),
                    json.dumps(build.targets),
                    build.started_ns,
                    build.finished_ns,
                    build.outcome.value,
                    json.dumps(msgspec.to_builtins(build.summary)),
                    sealed,
                    len(sealed),
                ),
            )
            kept_bytes += len(sealed)
            kept = as_int(connection.execute("SELECT count(*) FROM builds").fetchone()[0])
            while kept > 1 and (kept > MOST_BUILDS or kept_bytes > MOST_BYTES):
                kept_bytes -= _drop(connection, "id = (SELECT min(id) FROM builds)")
                kept -= 1
            connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_KEPT, kept_bytes))

        if not self._database.read_only:
            self._database.transact(work)

    def latest(self, limit: int = 20) -> list[Build]:
        """Past builds, the latest first."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM builds ORDER BY id DESC LIMIT ?", (limit,))
        return [build for build in map(_build, rows) if build is not None]

    def events(self, request_id: RequestId | BuildId) -> bytes | None:
        """The events of a request, or of the last request of a build; None where they are not kept."""
        rows = self._database.rows(
            "SELECT request_id, events FROM builds WHERE request_id = ? OR build_id = ? ORDER BY id DESC LIMIT 1",
            (_text(request_id),) * 2,
        )
        if not rows or not isinstance(rows[0][0], bytes):
            return None
        packed = unseal(rows[0][0], rows[0][1])
        return None if packed is None else decompress(packed, MAX_VALUE_BYTES)


class BuildArea(Area):
    """The rows of past builds; they survive `buildd cache flush`, and each save trims them."""

    name = "builds"

    def __init__(self, database: Database) -> None:
        self._database = database

    def held(self) -> Held:
        return Held(entries=self._database.count("builds"), note="in `buildd log`")


def _kept_bytes(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (_KEPT,)).fetchone()
    if row is None:  # an older buildd wrote the builds
        row = connection.execute("SELECT total(stored_bytes) FROM builds").fetchone()
    return int(row[0])


def _drop(connection: sqlite3.Connection, which: str, *values: str) -> int:
    """Remove builds; the size of their events."""
    row = connection.execute(f"SELECT total(stored_bytes) FROM builds WHERE {which}", values).fetchone()
    connection.execute(f"DELETE FROM builds WHERE {which}", values)
    return int(row[0])


def _text(value: str) -> str:
    """For a TEXT column: names that are not UTF-8 arrive with surrogates, which SQLite refuses."""
    return value.encode(errors="replace").decode()


def _build(row: tuple[object, ...]) -> Build | None:
    try:
        build_id, request_id, project, targets, started_ns, finished_ns, outcome, summary = (
            value.decode(errors="replace") if isinstance(value, bytes) else value for value in row
        )
        return msgspec.convert(
            {
                "build_id": build_id,
                "request_id": request_id,
                "project": project,
                "targets": json.loads(str(targets)),
                "started_ns": started_ns,
                "finished_ns": finished_ns,
                "outcome": outcome,
                "summary": json.loads(str(summary)),
            },
            described(Build),
        )
    except (ValueError, msgspec.ValidationError):
        return None
