"""Measured kernels: one row for each GPU model, driver, toolkit, library, flags, problem and candidate.

Knows rows and the file that plans read (`codegen.gemm.best_kernels`); nothing of compilers, GPUs or where its index
is (`profile_cache`). Any number of processes write: a row is replaced, never doubled. A measurement that began before
the profiles were emptied is not written afterwards.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from buildd.errors import StoreError
from buildd.hooks import jax_timings
from buildd.store.areas import Area, Held
from buildd.store.database import Database
from buildd.store.sessions import FolderLock
from buildd.store.values import as_int
from codegen.gemm.best_kernels import FILE, Best, Published, Setting
from protocol.problem import NO_SPACE

MOST_ROWS = 200_000
MOST_FLUSHES = 200
_MOST_TIMINGS = 20_000
_MOST_FIGURE = 1 << 62
_EPOCH = "profiles_epoch"
_COLUMNS = (
    *("gpu", "driver", "toolkit", "library", "flags", "problem", "candidate", "capability", "outcome"),
    *("time_us", "spread", "error", "checked", "workspace_bytes", "samples", "measured_ns", "note"),
)
_INSERT = (
    f"INSERT INTO profiles ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
    " ON CONFLICT (gpu, driver, toolkit, library, flags, problem, candidate) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[7:])
    # A short run never replaces a whole measurement.
    + " WHERE (excluded.outcome = 'measured' OR profiles.outcome <> 'measured')"
)
_PAUSE = 20.0
"""Publishing reads all rows, which takes 70 ms with 5,000. For each second that it took, none follows for this many."""
_LEAST_PAUSE_S = 1.0
_LATER = "AND excluded.measured_ns > profiles.measured_ns"


class Outcome(Enum):
    """How the measurement of a candidate ended."""

    MEASURED = "measured"
    HOPELESS = "hopeless"
    """A short run was so much slower than the best that it was not measured in full."""
    IMPORTED = "imported"
    """Another program chose it; its time is not known."""
    KEPT = "kept"
    """Another program's own record, whose bytes are in `note`; no plan reads it."""
    REFUSED = "refused"
    """The candidate itself says that it cannot do this problem."""
    WRONG = "wrong"
    """Its results are wrong."""
    CRASHED = "crashed"
    HUNG = "hung"
    UNBUILT = "unbuilt"
    """It does not compile."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    setting: Setting
    problem: str
    candidate: str
    outcome: Outcome
    time_us: float = 0.0
    """Median of one run on the GPU."""
    spread: float = 0.0
    """Distance of the quartiles, as a share of the median."""
    error: float = 0.0
    """Largest relative error against a reference of higher precision."""
    checked: bool = False
    workspace_bytes: int = 0
    samples: int = 0
    measured_ns: int = 0
    """Since the epoch."""
    note: str = ""
    """Why the candidate was not measured."""

    @property
    def works(self) -> bool:
        """Whether the candidate works, be it slow."""
        return self.outcome in (Outcome.MEASURED, Outcome.HOPELESS, Outcome.IMPORTED)

    @property
    def is_possible(self) -> bool:
        """Whether a row can have these numbers."""
        figures = (self.time_us, self.spread, self.error, self.workspace_bytes, self.samples, self.measured_ns)
        timed = self.time_us > 0 or self.outcome is not Outcome.MEASURED
        return timed and all(0 <= figure < _MOST_FIGURE for figure in figures)


class Profiles:
    """The rows of one index.

    Args:
        database: the index with their tables.
        folder: where the file for plans is written; made where it is missing.
        clock_s: the clock for pauses between publications, as time.monotonic.
    """

    def __init__(self, database: Database, folder: Path, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.database = database
        self.folder = folder
        self._clock_s = clock_s
        self._next_s = 0.0
        """Rows that are written one after another are published no earlier than this."""

    def epoch(self) -> int:
        """How often the profiles have been emptied; for `save`."""
        rows = self.database.rows("SELECT value FROM meta WHERE name = ?", (_EPOCH,))
        return as_int(rows[0][0]) if rows else 0

    def save(
        self, profiles: Iterable[Profile], *, epoch: int | None = None, older: bool = True, more: bool = False
    ) -> bool:
        """Write rows, each in place of an older measurement of the same; False where they were dropped.

        Args:
            epoch: the value of `epoch` when measuring began: rows from before a flush are not written.
            older: also replace rows that were measured later.
            more: the caller will save more rows soon and then call `publish`: plans may see these a little later.

        Raises: StoreFull, StoreError.
        """
        rows = [_row(profile) for profile in profiles]

        def work(connection: sqlite3.Connection) -> bool:
            if epoch is not None and epoch != _epoch(connection):
                return False
            connection.executemany(_INSERT if older else f"{_INSERT} {_LATER}", rows)
            connection.execute(
                "DELETE FROM profiles WHERE rowid IN"
                " (SELECT rowid FROM profiles ORDER BY measured_ns DESC LIMIT -1 OFFSET ?)",
                (MOST_ROWS,),
            )
            return True

        saved = self.database.transact(work)
        if saved and not (more and self._clock_s() < self._next_s):
            self.publish()
        return saved

    def flush(self, build: str = "") -> bool:
        """Drop all rows for all processes; False where this build has done so already.

        Raises: StoreFull, StoreError.
        """

        def work(connection: sqlite3.Connection) -> bool:
            if build and connection.execute("SELECT 1 FROM flushes WHERE build = ?", (build,)).fetchone():
                return False
            epoch = _epoch(connection) + 1
            connection.execute("DELETE FROM profiles")
            connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_EPOCH, epoch))
            if build:
                connection.execute("INSERT OR REPLACE INTO flushes (build, epoch) VALUES (?, ?)", (build, epoch))
                connection.execute("DELETE FROM flushes WHERE epoch <= ?", (epoch - MOST_FLUSHES,))
            return True

        flushed = self.database.transact(work)
        if flushed:
            self.publish()
        return flushed

    def of(self, setting: Setting, problem: str) -> dict[str, Profile]:
        """Candidate -> its profile, for a problem in a setting."""
        rows = self.database.rows(
            f"SELECT {', '.join(_COLUMNS)} FROM profiles WHERE gpu = ? AND driver = ? AND toolkit = ? AND library = ?"
            " AND flags = ? AND problem = ?",
            (setting.gpu, setting.driver, setting.toolkit, setting.library, setting.flags, problem),
        )
        found = (_profile(row) for row in rows)
        return {profile.candidate: profile for profile in found if profile is not None}

    def everything(self) -> list[Profile]:
        """Every row, problem by problem, the fastest first."""
        rows = self.database.rows(
            f"SELECT {', '.join(_COLUMNS)} FROM profiles ORDER BY problem, gpu, outcome <> 'measured', time_us"
        )
        return [profile for row in rows if (profile := _profile(row)) is not None]

    def best(self) -> list[Best]:
        """The fastest right candidate of each problem in each setting, in a fixed order."""
        found: dict[tuple[Setting, str], Profile] = {}
        for profile in self.everything():
            usable = profile.outcome is Outcome.IMPORTED or (profile.outcome is Outcome.MEASURED and profile.checked)
            known = found.get((profile.setting, profile.problem))
            if usable and (known is None or _worth(known) < _worth(profile)):
                found[(profile.setting, profile.problem)] = profile
        return [
            Best(
                setting=profile.setting,
                problem=profile.problem,
                candidate=profile.candidate,
                time_us=profile.time_us,
                measured_ns=profile.measured_ns,
            )
            for profile in found.values()
        ]

    def publish(self) -> None:
        """Write the file that plans read, where it would differ. Raises StoreError."""
        place, began_s = self.folder / FILE, self._clock_s()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Read under the lock: of two processes that publish at once, the later one sees the rows of both.
            with FolderLock(self.folder):
                content = msgspec.json.format(msgspec.json.encode(Published(best=tuple(self.best())))) + b"\n"
                if not place.exists() or place.read_bytes() != content:
                    _replace(place, content)
        except OSError as error:
            raise StoreError(
                f"the best kernels cannot be written: {error.strerror}",
                file=str(place),
                next_step="free some space" if error.errno in NO_SPACE else "check this folder's permissions",
            ) from error
        ended_s = self._clock_s()
        self._next_s = ended_s + max(_LEAST_PAUSE_S, (ended_s - began_s) * _PAUSE)


class ProfileArea(Area):
    """The rows of measured kernels, and the timings that JAX programs keep (`hooks.jax_timings`).

    They survive `buildd cache flush`. Each save trims the rows.
    """

    name = "profiles"

    def __init__(self, database: Database, store: Path) -> None:
        self._database = database
        self._store = store

    def held(self) -> Held:
        rows = self._database.rows("SELECT count(*), count(DISTINCT problem) FROM profiles")
        entries, problems = rows[0] if rows else (0, 0)
        size_bytes = sum(status.st_size for _, status in _timings(self._store))
        return Held(entries=as_int(entries), bytes=size_bytes, note=f"of {as_int(problems)} problems")

    def trim(self, limit_bytes: int) -> None:
        """Keep the newest timings of JAX programs: XLA reads all that there are."""
        trim_timings(self._store, _MOST_TIMINGS)


def trim_timings(store: Path, most: int) -> None:
    """Remove the oldest timings of JAX programs from a store until so many are left."""
    found = sorted(((status.st_mtime_ns, path) for path, status in _timings(store)), reverse=True)
    for _, path in found[most:]:
        with suppress(OSError):
            path.unlink()


def _timings(store: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of JAX programs' timings."""
    for path in (store / jax_timings.FOLDER).glob("*/**/*"):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield path, status


def _epoch(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (_EPOCH,)).fetchone()
    return as_int(row[0]) if row else 0


def _worth(profile: Profile) -> tuple[bool, float]:
    return profile.outcome is Outcome.MEASURED, -profile.time_us


def _replace(place: Path, content: bytes) -> None:
    handle, aside = tempfile.mkstemp(prefix=".best-", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(aside, place)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _row(profile: Profile) -> tuple[Any, ...]:
    setting = profile.setting
    return (
        *(setting.gpu, setting.driver, setting.toolkit, setting.library, setting.flags),
        *(profile.problem, profile.candidate, setting.capability, profile.outcome.value),
        *(profile.time_us, profile.spread, profile.error, int(profile.checked)),
        *(profile.workspace_bytes, profile.samples, profile.measured_ns, profile.note),
    )


def _profile(row: tuple[Any, ...]) -> Profile | None:
    """The profile in a row; None where the row is damaged."""
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else "" for value in (*row[:9], row[16])]
    numbers = [float(value) if isinstance(value, int | float) else -1.0 for value in row[9:12]]
    try:
        outcome = Outcome(texts[8])
    except ValueError:
        return None
    if min(numbers) < 0:
        return None
    return Profile(
        setting=Setting(
            gpu=texts[0], driver=texts[1], toolkit=texts[2], library=texts[3], flags=texts[4], capability=texts[7]
        ),
        problem=texts[5],
        candidate=texts[6],
        outcome=outcome,
        time_us=numbers[0],
        spread=numbers[1],
        error=numbers[2],
        checked=row[12] == 1,
        workspace_bytes=as_int(row[13]),
        samples=as_int(row[14]),
        measured_ns=as_int(row[15]),
        note=texts[9],
    )
