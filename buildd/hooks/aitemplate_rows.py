"""Rows of AITemplate's profile databases that are waiting in the store until they are merged into the shared database.

AITemplate leaves a write transaction open for minutes: its second process sees "database is locked" and loses rows.
Under `buildd run` a process has a snapshot of its own in memory, and each new row goes here at once; `merge` brings the
rows into the shared database in one short transaction. Knows the form of the tables, not what profiles mean. The hook
and buildd use this file: standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
from typing import Any
from urllib.parse import quote

FOLDER = "aitemplate"
"""Folder in the store: one folder below it for each shared database."""
_WAITING = "rows.db"
_WAIT_S = 5.0
_OWN_WAIT_S = 30.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_TABLE = re.compile(r"[a-z]+_(gemm|conv|conv3d)_\d+|[a-z]+_normalization")
_NO_KEY = frozenset({"id", "exec_entry", "algo", "workspace", "duration", "template_ver", "created_at"})
"""Columns that AITemplate does not look rows up by. For GEMMs the split is a part of the choice, too."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, key TEXT NOT NULL,
    content TEXT NOT NULL, definition TEXT NOT NULL, replaces INTEGER NOT NULL, UNIQUE (name, key));
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, content TEXT NOT NULL);
"""


class WaitingRows:
    """The waiting rows of one shared database.

    Args:
        store: the folder of the store.
        shared: the path of AITemplate's database. It may not exist.

    Raises: OSError, sqlite3.Error.
    """

    def __init__(self, store: str, shared: str) -> None:
        self.shared = os.path.abspath(shared)
        place = hashlib.sha256(os.fsencode(self.shared)).hexdigest()[:16]
        self.folder = os.path.join(store, FOLDER, place)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with self._own() as own:
            own.executescript(_SCHEMA)
            own.execute("INSERT OR IGNORE INTO notes VALUES ('shared', ?)", (self.shared,))

    def load(self, snapshot: sqlite3.Connection) -> tuple[int, str]:
        """Fill an empty database with the shared rows and the waiting ones.

        Returns the epoch, for `add`, and why the shared database could not be read; empty if it could.
        """
        problem = ""
        with self._own() as own:
            epoch = _epoch(own)
            flushed = _flushed(own)
            waiting = _waiting(own)
        try:
            if flushed is None or "*" not in flushed:
                self._copy(snapshot)
        except sqlite3.Error as error:
            problem = str(error)
        for name, last in (flushed or {}).items():
            if name in _tables(snapshot):
                snapshot.execute(f"DELETE FROM {name} WHERE id <= ?", (last,))
        for _, name, key, row, definition, replaces in waiting:
            _put(snapshot, name, key, row, definition, replaces=replaces)
        snapshot.commit()
        return epoch, problem

    def epoch(self) -> int:
        """A number that changes when the rows are flushed, for `add`."""
        with self._own() as own:
            return _epoch(own)

    def add(self, name: str, row: dict[str, Any], definition: str, *, epoch: int, replaces: bool = False) -> bool:
        """Let a new row wait; False if the rows were flushed since `epoch`.

        Args:
            name: the row's table.
            row: column -> value.
            definition: the statement that makes the table.
            replaces: a row that is there already is replaced.
        """
        key = _key(name, row)
        values = (name, json.dumps(key, sort_keys=True), json.dumps(row), definition, int(replaces))
        with self._own() as own:
            own.execute("BEGIN IMMEDIATE")
            if _epoch(own) != epoch:
                own.execute("ROLLBACK")
                return False
            # The first measurement of a key counts, as in AITemplate.
            verb = "REPLACE" if replaces else "IGNORE"
            own.execute(
                f"INSERT OR {verb} INTO waiting (name, key, content, definition, replaces) VALUES (?, ?, ?, ?, ?)",
                values,
            )
            own.execute("COMMIT")
        return True

    def flush(self, build: str) -> bool:
        """Forget all rows, once for a build. The shared database is emptied of what it holds now by `merge`."""
        last: dict[str, int] = {}
        try:
            with contextlib.closing(_reading(self.shared)) as shared:
                last = {name: _last(shared, name) for name in _tables(shared)}
        except FileNotFoundError:
            pass
        except sqlite3.Error:
            last = {"*": 0}  # locked or damaged: all that it will hold
        with self._own() as own:
            own.execute("BEGIN IMMEDIATE")
            if build and own.execute("SELECT 1 FROM notes WHERE name = 'build' AND content = ?", (build,)).fetchone():
                own.execute("ROLLBACK")
                return False
            own.execute("DELETE FROM waiting")
            own.execute("INSERT OR REPLACE INTO notes VALUES ('flushed', ?)", (json.dumps(last),))
            own.execute("INSERT OR REPLACE INTO notes VALUES ('build', ?)", (build,))
            own.execute(f"PRAGMA user_version = {(_epoch(own) + 1) % (1 << 31)}")
            own.execute("COMMIT")
        return True

    def is_empty(self) -> bool:
        """Whether there is nothing to merge."""
        with self._own() as own:
            return _flushed(own) is None and not own.execute("SELECT 1 FROM waiting LIMIT 1").fetchone()

    def say(self, line: str) -> bool:
        """Remember what was last said of these rows; whether it is something new."""
        with self._own() as own:
            said = own.execute("SELECT content FROM notes WHERE name = 'said'").fetchone()
            own.execute("INSERT OR REPLACE INTO notes VALUES ('said', ?)", (line,))
        return bool(line) and (said is None or said[0] != line)

    def is_flushed(self) -> bool:
        """Whether the shared database has to be emptied."""
        with self._own() as own:
            return _flushed(own) is not None

    def merge(self) -> int:
        """Bring the waiting rows into the shared database; returns how many it did not have.

        Raises: OSError, sqlite3.Error: it cannot be written now. The rows go on waiting.
        """
        with self._own() as own:
            flushed, waiting = _flushed(own), _waiting(own)
        if flushed is None and not waiting:
            return 0
        os.makedirs(os.path.dirname(self.shared), exist_ok=True)
        added = 0
        with contextlib.closing(sqlite3.connect(self.shared, timeout=_WAIT_S, isolation_level=None)) as shared:
            shared.execute("BEGIN IMMEDIATE")
            for name in _tables(shared) if flushed else ():
                last = (flushed or {}).get(name, -1)
                if "*" in (flushed or {}):
                    shared.execute(f"DELETE FROM {name}")
                else:
                    shared.execute(f"DELETE FROM {name} WHERE id <= ?", (last,))
            for _, name, key, row, definition, replaces in waiting:
                added += _put(shared, name, key, row, definition, replaces=replaces)
            shared.execute("COMMIT")
        with self._own() as own:
            own.execute("BEGIN IMMEDIATE")
            own.executemany("DELETE FROM waiting WHERE id = ?", [(number,) for number, *_ in waiting])
            if _flushed(own) == flushed:
                own.execute("DELETE FROM notes WHERE name = 'flushed'")
            own.execute("COMMIT")
        return added

    def _copy(self, snapshot: sqlite3.Connection) -> None:
        try:
            shared = _reading(self.shared)
        except FileNotFoundError:
            return
        with contextlib.closing(shared), contextlib.closing(sqlite3.connect(":memory:")) as whole:
            # Holds the lock for readers: a backup waits for ever for one that it does not get.
            shared.execute("BEGIN")
            _tables(shared)
            shared.backup(whole)
            whole.backup(snapshot)

    @contextlib.contextmanager
    def _own(self) -> Any:
        path = os.path.join(self.folder, _WAITING)
        with contextlib.closing(sqlite3.connect(path, timeout=_OWN_WAIT_S, isolation_level=None)) as own:
            yield own


def all_of(store: str) -> list[WaitingRows]:
    """The rows of every shared database that has been used under `buildd run`. Raises OSError, sqlite3.Error."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.scandir(os.path.join(store, FOLDER)), key=lambda entry: entry.name):
            path = os.path.join(entry.path, _WAITING)
            if not os.path.isfile(path):
                continue
            with contextlib.closing(sqlite3.connect(path, timeout=_OWN_WAIT_S)) as own:
                shared = own.execute("SELECT content FROM notes WHERE name = 'shared'").fetchone()
            found += [WaitingRows(store, shared[0])] if shared else []
    return found


def new_rows(snapshot: sqlite3.Connection, before: dict[str, int]) -> list[tuple[str, dict[str, Any], str]]:
    """The rows behind the last ids of `before`: table, row, the statement that makes the table. Moves the ids on."""
    found = []
    for name, definition in _tables(snapshot).items():
        cursor = snapshot.execute(f"SELECT * FROM {name} WHERE id > ? ORDER BY id", (before.get(name, 0),))
        columns = [each[0] for each in cursor.description]
        for values in cursor.fetchall():
            row = {column: value for column, value in zip(columns, values)}  # noqa: B905 (Python 3.9 has no `strict`)
            before[name] = row.pop("id")
            found.append((name, row, definition))
    return found


def last_ids(snapshot: sqlite3.Connection) -> dict[str, int]:
    """Table -> its last id."""
    return {name: _last(snapshot, name) for name in _tables(snapshot)}


def _reading(path: str) -> sqlite3.Connection:
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    opened = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_WAIT_S)
    try:
        opened.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.Error as error:
        opened.close()
        if "readonly" not in str(error):
            raise
        # A process was killed while it wrote: only a connection that may write can take back the half of it.
        return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=_WAIT_S)
    return opened


def _tables(connection: sqlite3.Connection) -> dict[str, str]:
    """AITemplate's tables, each with the statement that makes it."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name: definition for name, definition in found if _TABLE.fullmatch(name)}


def _last(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"SELECT coalesce(max(id), 0) FROM {name}").fetchone()[0])


def _key(name: str, row: dict[str, Any]) -> dict[str, Any]:
    without = _NO_KEY | ({"split_k"} if "_gemm_" in name else frozenset())
    return {column: value for column, value in row.items() if column not in without}


def _put(
    connection: sqlite3.Connection,
    name: str,
    key: dict[str, Any],
    row: dict[str, Any],
    definition: str,
    *,
    replaces: bool,
) -> bool:
    """Add a row unless there is one of its key; whether it was added."""
    if name not in _tables(connection):
        connection.execute(definition)
    columns = {each[1] for each in connection.execute(f"PRAGMA table_info({name})")}
    known = [column for column in key if column in columns]
    where = " AND ".join(f"{column} IS ?" for column in known) or "1"
    values = [key[column] for column in known]
    if replaces:
        connection.execute(f"DELETE FROM {name} WHERE {where}", values)
    elif connection.execute(f"SELECT 1 FROM {name} WHERE {where}", values).fetchone():
        return False
    given = [column for column in row if column in columns]
    places = ",".join("?" * len(given))
    connection.execute(f"INSERT INTO {name} ({','.join(given)}) VALUES ({places})", [row[column] for column in given])
    return True


def _waiting(own: sqlite3.Connection) -> list[tuple[int, str, dict[str, Any], dict[str, Any], str, bool]]:
    """The waiting rows, oldest first: number, table, key, row, the table's statement, whether it replaces."""
    rows = own.execute("SELECT id, name, key, content, definition, replaces FROM waiting ORDER BY id").fetchall()
    found = []
    for number, name, key, content, definition, replaces in rows:
        row = json.loads(content)
        if _TABLE.fullmatch(name) and all(_NAME.fullmatch(column) for column in row):
            found.append((number, name, json.loads(key), row, definition, bool(replaces)))
    return found


def _epoch(own: sqlite3.Connection) -> int:
    return int(own.execute("PRAGMA user_version").fetchone()[0])


def _flushed(own: sqlite3.Connection) -> dict[str, int] | None:
    """Table -> the last id that is flushed; None if nothing is."""
    found = own.execute("SELECT content FROM notes WHERE name = 'flushed'").fetchone()
    return json.loads(found[0]) if found else None
