"""In a program that uses AITemplate: gives it a profile database of its own, and lets AIT_RECOMPILE=1 recompile.

AITemplate's database is then a snapshot in memory, so that no process waits for another one's lock. Each new row goes
to the rows that wait in the store; `buildd run` merges them when its command has ended. FLUSH_PROFILE_CACHE empties
once for a build and FORCE_PROFILE replaces rows. Knows AITemplate's classes by the names that they have had since 2023;
where one is missing, AITemplate works as without buildd. Standard library only.
"""

import os
import sqlite3
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OFF = ("", "0", "false", "no", "off")


def begin(target: "Any", rows: "Any", store: str) -> None:
    """Give every target a snapshot from now on.

    Args:
        target: the module aitemplate.backend.target, just imported.
        rows: the module `aitemplate_rows`.
        store: the folder of the store.
    """
    kind, database = target.Target, target.ProfileCacheDB
    prepare, start = kind._prepare_profile_cache_path, database.__init__
    start_tables, insert = database._init_db, database._insert

    def _prepare_profile_cache_path(self: "Any") -> "Any":
        if _is_disabled():
            return prepare(self)
        if self.use_dummy_profiling_results():
            return None
        folder = os.environ.get("CACHE_DIR") or os.path.join(os.path.expanduser("~"), ".aitemplate")
        # Neither made nor emptied here: the shared database may be another process's.
        return os.path.join(folder, self._get_cache_file_name())

    def __init__(self: "Any", target: str, path: "Any" = None, uri: "Any" = None, port: "Any" = None) -> None:
        self._buildd = None
        if path is not None and uri is None and not _is_disabled():
            try:
                waiting = rows.WaitingRows(store, path)
                if os.environ.get("FLUSH_PROFILE_CACHE", "0") == "1":
                    waiting.flush(os.environ.get("BUILDD_BUILD_ID", ""))
                self._buildd = _Snapshot(rows, waiting)
                path = ":memory:"
            except (OSError, sqlite3.Error) as error:
                print(f"buildd: the profiles of AITemplate are used in place: {error}", file=sys.stderr)
        start(self, target, path, uri, port)

    def _init_db(self: "Any") -> None:
        if self._buildd is not None:
            self._buildd.fill(self._con)
        start_tables(self)

    def _insert(self: "Any", query: str, statement: str) -> None:
        insert(self, query, statement)
        if self._buildd is not None:
            self._con.commit()
            self._buildd.pass_on(self._con)

    kind._prepare_profile_cache_path = _prepare_profile_cache_path
    database.__init__, database._init_db, database._insert = __init__, _init_db, _insert


class _Snapshot:
    """What one connection has seen of the shared rows."""

    def __init__(self, rows: "Any", waiting: "Any") -> None:
        self._rows = rows
        self._waiting = waiting
        # AITemplate inserts no row of a key that is there: a forced one begins with none.
        self._forced = os.environ.get("FORCE_PROFILE") == "1"
        self._epoch = 0
        self._last: dict[str, int] = {}

    def fill(self, connection: "Any") -> None:
        if self._forced:
            self._epoch = self._waiting.epoch()
            return
        # The epoch belongs to the rows that were read: a flush that follows makes new ones stale.
        self._epoch, problem = self._waiting.load(connection)
        self._last = self._rows.last_ids(connection)
        if problem:
            print(
                f"buildd: {self._waiting.shared} cannot be read ({problem}); its profiles are not used now,"
                " and new ones wait in the store",
                file=sys.stderr,
            )

    def pass_on(self, connection: "Any") -> None:
        try:
            for name, row, definition in self._rows.new_rows(connection, self._last):
                self._waiting.add(name, row, definition, epoch=self._epoch, replaces=self._forced)
        except (OSError, sqlite3.Error) as error:
            print(f"buildd: a profile of AITemplate could not be kept: {error}", file=sys.stderr)


def recompile(builder: "Any") -> None:
    """Let the compiles of a model's library run again where AIT_RECOMPILE=1 is set; profilers keep their cache.

    Args:
        builder: the module of a class that makes libraries, just imported.
    """
    for kind in (getattr(builder, name, None) for name in ("Builder", "BuilderCMake")):
        if kind is not None and "make" in vars(kind):
            kind.make = _again(kind.make)


def _again(make: "Any") -> "Any":
    def run(*arguments: "Any", **named: "Any") -> "Any":
        if os.environ.get("AIT_RECOMPILE", "").strip() != "1" or _is_disabled():
            return make(*arguments, **named)
        before = os.environ.get("BUILDD_RECACHE")
        os.environ["BUILDD_RECACHE"] = "1"
        try:
            return make(*arguments, **named)
        finally:
            if before is None:
                del os.environ["BUILDD_RECACHE"]
            else:
                os.environ["BUILDD_RECACHE"] = before

    return run


def _is_disabled() -> bool:
    return os.environ.get("BUILDD_DISABLE", "").lower() not in _OFF
