"""The store's index as a file: opened, read and written by many threads and processes, and replaced when it is damaged.

Knows no table except the version that `schema` reads. One connection reads and one writes, each behind its lock, so
that a reader never waits for a writer of this process; WAL does the same between processes. On a network file system
the log cannot be WAL: its memory is a mapped file, and the kernel ends a process whose mapping the server disturbs. A
damaged index is moved aside and a new one started: every reader then sees misses.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from buildd.errors import StoreError, StoreTooNew
from buildd.store import schema
from buildd.store.database_errors import full, is_damage, is_full, translated
from buildd.store.location import network_file_system
from buildd.store.schema import Condition
from buildd.store.sessions import FolderLock

BUSY_S = 30.0
T = TypeVar("T")

_INDEX_BYTES = 1 << 20
"""An index needs less. On a disk with less room it is empty because there was none to make it."""


class Damaged(StoreError):
    """The index was damaged and is set aside; the same call may be repeated on the new one."""


class Database:
    """<store>/index.db. Every method may be called from any thread.

    Args:
        folder: the store's folder; it exists.
        read_only: take no lock and write nothing.
        notice: called with one line for people when the index was set aside.
    """

    def __init__(self, folder: Path, *, read_only: bool, notice: Callable[[str], None]) -> None:
        self.folder = folder
        self.path = folder / "index.db"
        self.read_only = read_only
        self._name = os.fspath(self.path)
        self._notice = notice
        self._read_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._is_remote = bool(network_file_system(folder))
        self._closed = False
        self._gone = ""
        """Why this process can no longer use the index (a newer version migrated it); reads miss from then on."""
        with self._write_lock, self._read_lock:
            self._open()

    def rows(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query; none where the index is damaged or cannot be read at present."""
        try:
            with self._read_lock:
                if self._reader is not None and self._is_ours():
                    return self._reader.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            if is_damage(error, self.path):
                self._replace()
            return []
        if self._closed:
            raise StoreError("the store is closed", file=self._name)
        if self._gone:
            return []
        # The file was replaced while it was open: another process set it aside, or the folder was removed.
        self._replace()
        try:
            with self._read_lock:
                return [] if self._reader is None else self._reader.execute(statement, parameters).fetchall()
        except sqlite3.Error:
            return []

    def count(self, table: str) -> int:
        """How many rows a table has; 0 where it cannot be read just now."""
        found = self.rows(f"SELECT count(*) FROM {table}")
        return int(found[0][0]) if found else 0

    def transact(self, work: Callable[[sqlite3.Connection], T], *, wait: bool = True) -> T:
        """Run `work` in one write transaction, and commit.

        Args:
            work: may run twice, the second time on a new, empty index.
            wait: False raises `StoreError` at once where another process is writing.

        Raises `StoreFull`, `StoreError`, `StoreTooNew`, and the exceptions of `work` (rolled back).
        """
        try:
            return self._transact(work, wait)
        except Damaged:
            return self._transact(work, wait)

    def shrink(self) -> None:
        """Give free pages back to the disk, as far as other processes do not prevent it."""
        with contextlib.suppress(sqlite3.Error), self._write_lock:
            if self._writer is not None:
                self._writer.execute("PRAGMA incremental_vacuum").fetchall()
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._closed = True
            self._drop()

    def _transact(self, work: Callable[[sqlite3.Connection], T], wait: bool) -> T:
        moved = False
        try:
            with self._write_lock:
                connection = self._writer
                if connection is None:
                    raise self._unwritable()
                if not wait:
                    connection.execute("PRAGMA busy_timeout = 0")
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    # Checked under the write lock: no process migrates or replaces the file after this.
                    moved = not self._is_ours()
                    if not moved:
                        self._refuse_newer(connection)
                        outcome = work(connection)
                        connection.execute("COMMIT")
                        return outcome
                finally:
                    if connection.in_transaction:
                        with contextlib.suppress(sqlite3.Error):
                            connection.execute("ROLLBACK")
                    if not wait:
                        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000):d}")
        except sqlite3.Error as error:
            if not is_damage(error, self.path):
                raise translated(error, self.path) from error
            self._replace()
            raise Damaged(f"the store's index was damaged: {error}", file=self._name) from error
        self._replace()
        raise Damaged("the store's index was replaced", file=self._name)

    def _refuse_newer(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA user_version").fetchone()[0] != schema.VERSION:
            condition, version = schema.condition(connection)
            if condition is Condition.NEWER:
                self._gone = f"the store was migrated to version {version} by a newer buildd"
                raise self._too_new(version)
            raise sqlite3.DatabaseError("version changed")

    # ------------------------------------------------------------ opening

    def _open(self) -> None:
        """Both locks are held."""
        self._check_kind()
        if self.read_only:
            self._open_read_only()
            return
        try:
            with FolderLock(self.folder):
                self._connect()
        except sqlite3.Error as error:
            self._drop()
            raise translated(error, self.path) from error

    def _check_kind(self) -> None:
        """SQLite would wait for ever for somebody to write to a FIFO."""
        try:
            is_file = stat.S_ISREG(os.stat(self._name).st_mode)
        except OSError:
            return  # opening it says more
        if not is_file:
            raise StoreError(
                "the store's index is no regular file", file=self._name, next_step="remove it; a new one is then made"
            )

    def _connect(self) -> None:
        """Open, make or migrate the index. The folder lock is held: switching to WAL can fail with BUSY before any
        busy timeout applies, and two processes must not migrate at once."""
        for attempt in (1, 2):
            try:
                if not self.path.exists():
                    for suffix in ("-wal", "-shm", "-journal"):
                        Path(self._name + suffix).unlink(missing_ok=True)
                writer = self._connection()
                self._writer = writer
                condition, version = schema.condition(writer)
                if condition is Condition.NEWER:
                    self._drop()
                    raise self._too_new(version)
                if condition is Condition.FOREIGN:
                    raise sqlite3.DatabaseError("not an index of this program")
                if condition in (Condition.EMPTY, Condition.OLDER):
                    schema.upgrade(writer, version)
                writer.execute(f"PRAGMA journal_mode = {'TRUNCATE' if self._is_remote else 'WAL'}")
                # A flipped format number in the header shows only here: SQLite then reports a read-only file.
                writer.execute("UPDATE meta SET value = value WHERE 0")
                self._reader = self._connection()
                status = os.stat(self._name)
                self._identity = (status.st_dev, status.st_ino)
                for connection in (writer, self._reader):
                    connection.text_factory = bytes
                    connection.execute("SELECT value FROM meta").fetchall()
                return
            except sqlite3.DatabaseError as error:
                self._drop()
                if attempt == 2 or not is_damage(error, self.path):
                    raise
                self._set_aside(error)

    def _connection(self, uri: str = "") -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri or self._name,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            uri=bool(uri),
        )
        try:
            connection.execute("PRAGMA cell_size_check = ON")
            if not uri:
                # Without WAL, the other one may damage the index where power fails. Source: sqlite.org/pragma.html.
                connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_remote else 'NORMAL'}")
                connection.execute("PRAGMA journal_size_limit = 16777216")
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_read_only(self) -> None:
        # A WAL database on a read-only disk opens only as "immutable", unless its -shm file happens to be there.
        for option in ("mode=ro", "mode=ro&immutable=1"):
            reader = None
            try:
                reader = self._connection(f"file:{quote(os.fsencode(self._name))}?{option}")
                condition, version = schema.condition(reader)
            except sqlite3.Error as error:
                failure = error
                if reader is not None:
                    reader.close()
                continue
            if condition is Condition.CURRENT:
                reader.text_factory = bytes
                status = os.stat(self._name)
                self._identity = (status.st_dev, status.st_ino)
                self._reader = reader
                return
            reader.close()
            if condition is Condition.NEWER:
                raise self._too_new(version)
            if condition is Condition.EMPTY and is_full(self.folder, _INDEX_BYTES):
                raise full(self.path)
            raise StoreError(
                f"the store's index is {condition.value} and may not be written",
                file=self._name,
                next_step="open it once where it may be written, or set BUILDD_DIR",
            )
        raise StoreError(
            f"the store's index cannot be read: {failure}",
            file=self._name,
            next_step="set BUILDD_DIR to a folder of your own",
        ) from failure

    def _unwritable(self) -> StoreError:
        if not self.read_only or self._gone:
            return StoreError(self._gone or "the store is closed", file=self._name)
        return StoreError(
            "the store may not be written",
            file=self._name,
            next_step="check the folder's disk, owner and permissions, or set BUILDD_DIR to a folder of your own",
        )

    def _too_new(self, version: int) -> StoreTooNew:
        return StoreTooNew(
            f"the store has version {version}, this buildd knows {schema.VERSION}",
            file=self._name,
            next_step="upgrade this buildd, or set BUILDD_DIR to another folder",
        )

    # ------------------------------------------------------------ damage

    def _is_ours(self) -> bool:
        """Whether the path still names the file that is open."""
        try:
            status = os.stat(self._name)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def _replace(self) -> None:
        """Get a sound index: set the file aside if it is still the damaged one that is open, then open again."""
        if self.read_only:
            with self._read_lock:
                self._gone = "the index is damaged"
                self._drop()
            return
        with self._write_lock, self._read_lock:
            if self._closed:
                return
            damaged = self._is_ours()
            self._close_connections()
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with FolderLock(self.folder):
                    # Another process may have replaced it during the wait for the lock.
                    if damaged and self._is_ours() and not self._is_newer():
                        self._set_aside(sqlite3.DatabaseError("damaged"))
                    self._connect()
            except StoreTooNew as error:
                self._gone = error.message
            except (sqlite3.Error, OSError, StoreError) as error:
                self._gone = f"the index cannot be opened again: {error}"
                self._notice(self._gone)
                self._drop()

    def _is_newer(self) -> bool:
        """Whether a newer buildd has migrated the index while it was open here, which is no damage."""
        try:
            with contextlib.closing(self._connection()) as connection:
                return schema.condition(connection)[0] is Condition.NEWER
        except sqlite3.Error:
            return False

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Move the index away, and keep only the latest such copy. The folder lock is held, connections are closed."""
        for old in self.folder.glob("index.db.corrupt-*"):
            old.unlink(missing_ok=True)
        aside = f"{self._name}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        # The log goes first: a log that is left beside a new index would be replayed into it.
        for suffix in ("-wal", "-journal", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._name + suffix, aside + suffix)
        Path(self._name + "-shm").unlink(missing_ok=True)
        self._notice(f"the store's index was damaged ({error}); it is kept as {aside} and a new one was started")

    def _drop(self) -> None:
        self._close_connections()
        self._identity = (0, 0)

    def _close_connections(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._reader = self._writer = None
