"""Brings the profiles that AITemplate measured under `buildd run` into its shared databases.

Knows file systems and what to tell people, no row (`aitemplate_rows`). If a shared database cannot be written, its rows
go on waiting in the store, where later runs find them, and the next run tries again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from buildd.hooks import aitemplate_rows
from buildd.store.location import file_system_of, network_file_system

_ASIDE = ".damaged"


def publish(store: Path, *, file_system: Callable[[str], str] = file_system_of) -> Iterator[str]:
    """Merge all rows that wait; yields lines for people, each once.

    Args:
        store: the store's folder.
        file_system: tells the type of the file system that a path is on.
    """
    if not (store / aitemplate_rows.FOLDER).is_dir():
        return
    try:
        waiting = [rows for rows in aitemplate_rows.all_of(str(store)) if not rows.is_empty()]
    except (OSError, sqlite3.Error) as error:
        yield f"the profiles of AITemplate in {store / aitemplate_rows.FOLDER} cannot be read: {error}"
        return
    for rows in waiting:
        why = _merge(rows, file_system)
        line = f"AITemplate's {rows.shared} {why}; its new profiles wait in the store, and later runs use them"
        try:
            if rows.say(line if why else ""):
                yield line
        except sqlite3.Error:
            yield line


def _merge(rows: aitemplate_rows.WaitingRows, file_system: Callable[[str], str]) -> str:
    """Why the rows go on waiting; empty if they are merged."""
    if kind := network_file_system(rows.shared, file_system):
        return f"is on {kind}, where databases cannot be locked safely"
    try:
        try:
            rows.merge()
        except sqlite3.DatabaseError as error:
            if not (_is_damage(error) and rows.is_flushed()):
                raise
            # It was to be emptied anyway.
            os.replace(rows.shared, rows.shared + _ASIDE)
            rows.merge()
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return f"is damaged ({error}): remove it, or set FLUSH_PROFILE_CACHE=1 for one run"
        return f"cannot be written now ({error})"
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    return ""


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
