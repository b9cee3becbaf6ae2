"""The tables of the store's index and the migrations that bring an older index up to date.

Knows no blob, no lock and no path, only a connection. `sqlite_utils` is imported here only to change the tables of an
older index: it imports numpy and pandas where they are installed, which takes longer than the first compile may wait. A
new index is made from `schema.sql`, which holds the result of all migrations.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite_utils

APPLICATION_ID = 0x62756C64


class Condition(Enum):
    """The state of an index, as this version of the code sees it."""

    EMPTY = "empty"
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "foreign"
    """No index of buildd, or damaged: its two version numbers disagree."""


def _first(database: sqlite_utils.Database) -> None:
    """Version 1: blobs, results and what leads to them, learned times, builds."""
    make: Any = database.create_table
    # `value` of: version, tick (the logical clock of "used"), bytes (what the bound is compared with).
    make("meta", {"name": str, "value": int}, pk="name")
    # `data` is last: reading the other columns then never touches the overflow pages.
    make("blobs", {"digest": bytes, "size": int, "stored": int, "encoding": int, "data": bytes}, pk="digest")
    make("results", {"key": bytes, "action": str, "used": int, "created_ns": int, "body": bytes}, pk="key")
    make("refs", {"key": bytes, "digest": bytes}, pk=("key", "digest"))
    make("lists", {"digest": bytes, "data": bytes}, pk="digest")
    make(
        "input_sets",
        {"id": int, "first": bytes, "key": bytes, "files": bytes, "folders": bytes, "body": bytes},
        pk="id",
    )
    make("sessions", {"name": str, "pid": int, "start_ticks": int, "boot_id": str}, pk="name")
    make("pins", {"digest": bytes, "session": str, "boottime_s": int}, pk=("digest", "session"))
    make("leases", {"key": bytes, "session": str}, pk=("key", "session"))
    make("counters", {"name": str, "value": int}, pk="name")
    make("digests", {"device": int, "inode": int, "used": int, "value": bytes}, pk=("device", "inode"))
    make("actions", {"name": bytes, "used": int, "value": bytes}, pk="name")
    make("probes", {"name": bytes, "used": int, "value": bytes}, pk="name")
    make(
        "history",
        {
            "identity": str,
            "kind": str,
            "used": int,
            "wall_s": float,
            "user_s": float,
            "system_s": float,
            "memory_bytes": int,
            "samples": bytes,
        },
        pk="identity",
    )
    make(
        "builds",
        {
            "id": int,
            "build_id": str,
            "request_id": str,
            "project": str,
            "targets": str,
            "started_ns": int,
            "finished_ns": int,
            "outcome": str,
            "summary": str,
            "events": bytes,
        },
        pk="id",
    )
    for table, columns in (
        ("blobs", ["stored"]),
        ("results", ["used"]),
        ("refs", ["digest"]),
        ("input_sets", ["first"]),
        ("input_sets", ["key"]),
        ("input_sets", ["files"]),
        ("input_sets", ["folders"]),
        ("pins", ["session"]),
        ("leases", ["session"]),
        ("digests", ["used"]),
        ("history", ["kind", "memory_bytes"]),
        ("history", ["kind", "wall_s"]),
        ("builds", ["build_id"]),
    ):
        _table(database, table).create_index(columns)
    for name in ("tick", "bytes"):
        database.execute("INSERT INTO meta (name, value) VALUES (?, 0)", [name])


def _second(database: sqlite_utils.Database) -> None:
    """Version 2: up-to-date records; the size of a build's events beside them, so that the bound needs no scan."""
    make: Any = database.create_table
    make("records", {"name": bytes, "used": int, "value": bytes}, pk="name")
    for table in ("actions", "probes", "records"):
        _table(database, table).create_index(["used"])
    _table(database, "builds").add_column("stored_bytes", int, not_null_default=0)
    database.execute("UPDATE builds SET stored_bytes = length(events)")


def _third(database: sqlite_utils.Database) -> None:
    """Version 3: measured kernels, and the builds that have emptied them."""
    make: Any = database.create_table
    key = ("gpu", "driver", "toolkit", "library", "flags", "problem", "candidate")
    make(
        "profiles",
        {
            **dict.fromkeys((*key, "capability", "outcome"), str),
            "time_us": float,
            "spread": float,
            "error": float,
            "checked": int,
            "workspace_bytes": int,
            "samples": int,
            "measured_ns": int,
            "note": str,
        },
        pk=key,
    )
    make("flushes", {"build": str, "epoch": int}, pk="build")
    _table(database, "profiles").create_index(["measured_ns"])


MIGRATIONS: tuple[Callable[[sqlite_utils.Database], None], ...] = (_first, _second, _third)
VERSION = len(MIGRATIONS)


def condition(connection: sqlite3.Connection) -> tuple[Condition, int]:
    """The condition of the open index, and its version.

    The version is kept twice, in the file's header and in `meta`: one flipped byte must not make an index look newer
    or older than it is. Raises `sqlite3.DatabaseError` where the file is not a database at all.
    """
    header = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        return (Condition.EMPTY if header == application == 0 else Condition.FOREIGN), header
    if application != APPLICATION_ID:
        return Condition.FOREIGN, header
    row = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
    if row is None or row[0] != header or header < 1:
        return Condition.FOREIGN, header
    if header == VERSION:
        return Condition.CURRENT, header
    return (Condition.OLDER if header < VERSION else Condition.NEWER), header


def upgrade(connection: sqlite3.Connection, version: int, *, to: int = VERSION) -> None:
    """Bring an index from `version` (0: empty) to version `to`, in one transaction.

    The connection must be in autocommit mode (`isolation_level=None`) and decode text as str.
    """
    if version == 0:
        # Takes effect only before the first table is made.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        if version == 0 and to == VERSION:
            for statement in Path(__file__).with_name("schema.sql").read_text().split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO meta (name, value) VALUES ('tick', 0), ('bytes', 0)")
        else:
            migrate_from(connection, version, to)
        connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('version', ?)", (to,))
        connection.execute(f"PRAGMA user_version = {to:d}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def migrate_from(connection: sqlite3.Connection, version: int, to: int) -> None:
    """Change the tables from `version` to version `to`; the version itself is the caller's to write."""
    import sqlite_utils

    database = sqlite_utils.Database(connection, execute_plugins=False)
    for migrate in MIGRATIONS[version:to]:
        migrate(database)


def _table(database: sqlite_utils.Database, name: str) -> Any:
    return database[name]
