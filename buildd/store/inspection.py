"""Reads the store's index for people: SQL on a connection that can change nothing, and views that need no decoding.

Knows the index's tables, not what their packed columns hold. `sqlite_utils` reads the tables: it is imported here and
by migrations only.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from buildd.errors import StoreError
from buildd.store import schema

if TYPE_CHECKING:
    from sqlite_utils import Database

Value = str | int | float | bytes | None
INDEX = "index.db"
# A temporary view hides the table of the same name, which stays reachable as main.NAME.
_VIEWS = {
    "artifacts": """
        SELECT r.action, b.size AS bytes, b.stored AS stored_bytes, datetime(r.created_ns / 1000000000, 'unixepoch')
            AS created, lower(hex(b.digest)) AS digest, lower(hex(r.key)) AS result
        FROM main.results r JOIN main.refs USING (key) JOIN main.blobs b USING (digest) ORDER BY r.used DESC""",
    "builds": """
        SELECT build_id, request_id, datetime(started_ns / 1000000000, 'unixepoch') AS started,
            (finished_ns - started_ns) / 1e9 AS wall_s, outcome, project, targets
        FROM main.builds ORDER BY id DESC""",
    "history": """
        SELECT kind, identity, wall_s, user_s, system_s, memory_bytes FROM main.history ORDER BY wall_s DESC""",
    "profiles": """
        SELECT gpu, problem, candidate, outcome, time_us, spread, error, capability, toolkit, driver, library, flags,
            workspace_bytes, datetime(measured_ns / 1000000000, 'unixepoch') AS measured, note
        FROM main.profiles ORDER BY gpu, problem, time_us""",
}
_READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    | {sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_TRANSACTION}  # sqlite_utils puts statements into savepoints
)


class Inspection:
    """The index of a store, to be read.

    Args:
        folder: the store's.

    Raises:
        StoreError: there is no index, or one of another version.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / INDEX
        if not path.is_file():
            raise StoreError(
                "there is no index", file=str(path), next_step="build something first, or name a store with --store DIR"
            )
        try:
            # A store on a read-only disk opens only as "immutable".
            option = "mode=ro" if os.access(folder, os.W_OK) else "mode=ro&immutable=1"
            self._connection = sqlite3.connect(f"file:{quote(os.fsencode(path))}?{option}", uri=True)
            condition, version = schema.condition(self._connection)
        except sqlite3.Error as error:
            raise StoreError(f"the index cannot be read: {error}", file=str(path)) from error
        if condition is not schema.Condition.CURRENT:
            self._connection.close()
            raise StoreError(
                f"the index is of version {version}, and this buildd reads version {schema.VERSION}",
                file=str(path),
                next_step="run a build with the newer of both versions first",
            )
        for name, statement in _VIEWS.items():
            self._connection.execute(f"CREATE TEMP VIEW {name} AS {statement}")
        self._connection.execute("PRAGMA query_only = ON")
        self._database = _opened(self._connection)
        self._connection.set_authorizer(_may_read)

    def tables(self) -> dict[str, int]:
        """The number of rows of each table, and of the views first."""
        return {name: self._database[name].count for name in (*_VIEWS, *self._own_tables())}

    def rows(self, query: str) -> Iterator[dict[str, Value]]:
        """The rows of a table, or of an SQL statement that reads.

        Raises:
            StoreError: the statement is wrong, or would change something.
        """
        name = query.strip()
        known = name in _VIEWS or name in self._own_tables()
        try:
            yield from self._database.query(f"SELECT * FROM [{name}]" if known else query)
        except (sqlite3.Error, ValueError) as error:  # ValueError: the statement has no rows
            tables = ", ".join((*_VIEWS, *(table for table in self._own_tables() if table not in _VIEWS)))
            raise StoreError(
                f"the index does not answer: {error}", next_step=f"it can be read only; its tables are {tables}"
            ) from error

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Inspection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _own_tables(self) -> list[str]:
        found = self._connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY name")
        return [name for (name,) in found if name not in _VIEWS and not name.startswith("sqlite_")]


def _opened(connection: sqlite3.Connection) -> Database:
    import sqlite_utils

    return sqlite_utils.Database(connection, recursive_triggers=False, execute_plugins=False)


def _may_read(action: int, first: str | None, second: str | None, database: str | None, inner: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
