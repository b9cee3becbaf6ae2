"""What SQLite's errors mean for an index: it is damaged, its disk is full, another process writes to it.

Opens nothing and mends nothing.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from buildd.errors import StoreError, StoreFull

# All statements are fixed and every insert resolves conflicts: "no such table" and "constraint failed" can only mean
# that the file is damaged.
_DAMAGED = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT,
)
_NEXT_FULL = "free some space there, lower the size limit with `buildd cache gc --limit SIZE`, or set BUILDD_DIR"


def full(path: Path | str) -> StoreFull:
    """The error for a full disk."""
    return StoreFull(f"no space left on the disk of {path}", file=str(path), next_step=_NEXT_FULL)


def is_full(folder: Path, need_bytes: int = 1) -> bool:
    """Whether the disk has no room for one more file of this size."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < need_bytes or (disk.f_files > 0 and disk.f_favail == 0)


def is_damage(error: sqlite3.Error, index: Path) -> bool:
    """Whether an error means that the index is damaged."""
    # Errors of the sqlite3 module itself have no code: undecodable text, and errors that the index's code raised.
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return type(error) in (sqlite3.DatabaseError, sqlite3.OperationalError)
    if code == sqlite3.SQLITE_READONLY:
        return os.access(index, os.W_OK) and os.access(index.parent, os.W_OK)
    return (code & 0xFF) in _DAMAGED


def translated(error: sqlite3.Error, index: Path) -> StoreError:
    """The error for people, where the index is not damaged."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_FULL or code in (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
        return full(index)
    if code & 0xFF == sqlite3.SQLITE_CANTOPEN and is_full(index.parent):
        return full(index)
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return StoreError("another process is writing to the store", file=str(index), next_step="try again")
    return StoreError(
        f"the store's index cannot be used: {error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})",
        file=str(index),
        next_step="check the folder's permissions, or set BUILDD_DIR to another one",
    )
