"""Access times and counters of the store, gathered in memory and written every few seconds.

Uses no clock that can be set: "used" is a logical tick that only grows, so a clock that goes backwards cannot make a
fresh entry look old. A crash may lose the last few seconds; no result depends on them.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable
from enum import Enum

from buildd.errors import StoreError
from buildd.store.database import Database
from buildd.store.values import as_int

FLUSH_S = 5.0
_MOST_TOUCHES = 20_000
_MOST_REASON = 80
_COLUMN = {"results": "key", "actions": "name", "probes": "name", "records": "name"}


class Counter(Enum):
    """What a store counts over its whole life."""

    HITS = "hits"
    MISSES = "misses"
    SAVED_MS = "saved_ms"
    """Wall time of the jobs that hits made unnecessary."""
    BAD_BLOBS = "bad_blobs"
    BAD_RESULTS = "bad_results"
    EVICTED_RESULTS = "evicted_results"
    EVICTED_BYTES = "evicted_bytes"
    STORED_BLOBS = "stored_blobs"
    STORED_BYTES = "stored_bytes"
    """Bytes as given, before compression."""
    SHARED_BLOBS = "shared_blobs"
    """Puts of a blob that was already there."""
    DROPPED_PUTS = "dropped_puts"
    """Puts to a store that may not be written; counted in this process only."""


class Reasoned(Enum):
    """What a store counts by reason; the value is the beginning of the counter's name."""

    PASSED_THROUGH = "passed_through:"
    """Commands that shims passed through to the tool."""
    MISSED = "missed:"
    """Look-ups of whole actions that missed."""
    HIT = "hit:"
    """Hits of whole actions."""
    TIER = "tier:"
    """Answers of the shared tier, and what was written to it."""
    WHOLE = "whole:"
    """Compiles that ran whole though others of their kind run in steps."""


def next_tick(connection: sqlite3.Connection, count: int = 1) -> int:
    """Advance the logical clock inside a transaction; the first of `count` new ticks."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'tick'").fetchone()
    tick = as_int(row[0]) + 1 if row else 1
    if not 0 < tick < 1 << 62:  # a damaged row: the order of use is lost, nothing else
        tick = 1
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('tick', ?)", (tick + count - 1,))
    return tick


class Tally:
    """Counters and access times of one store. Every method may be called from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Counter, 0)
        self._reasons: dict[str, int] = {}
        """Whole name of a counter -> count."""
        self._touched: dict[tuple[str, bytes], None] = {}
        self._flushed_s = time.monotonic()

    def count(self, counter: Counter, amount: int = 1) -> None:
        with self._lock:
            self._counts[counter] += amount
        self._maybe_flush()

    def count_passed_through(self, reason: str) -> None:
        """Count a command that a shim passed through."""
        self.count_reasoned(Reasoned.PASSED_THROUGH, reason)

    def count_reasoned(self, what: Reasoned, reason: str, amount: int = 1) -> None:
        """Count more of these, for this reason."""
        name = what.value + reason[:_MOST_REASON]
        with self._lock:
            self._reasons[name] = self._reasons.get(name, 0) + amount
        self._maybe_flush()

    def reasons(self, what: Reasoned) -> dict[str, int]:
        """How many of these there were, by reason."""
        rows = self._database.rows("SELECT name, value FROM counters")
        named = {name.decode(errors="replace"): as_int(value) for name, value in rows if isinstance(name, bytes)}
        with self._lock:
            for name, count in self._reasons.items():
                named[name] = named.get(name, 0) + count
        head = len(what.value)
        return {name[head:]: count for name, count in sorted(named.items()) if name.startswith(what.value)}

    def touch(self, table: str, names: Iterable[bytes]) -> None:
        """Note that these rows were used just now, in this order."""
        with self._lock:
            for name in names:
                # Removed first, so that the dictionary's order is the order of last use.
                self._touched.pop((table, name), None)
                self._touched[(table, name)] = None
        self._maybe_flush()

    def totals(self) -> dict[Counter, int]:
        rows = self._database.rows("SELECT name, value FROM counters")
        stored = {name.decode(errors="replace"): as_int(value) for name, value in rows if isinstance(name, bytes)}
        with self._lock:
            return {counter: stored.get(counter.value, 0) + self._counts[counter] for counter in Counter}

    def flush(self, *, wait: bool = False) -> None:
        """Write everything gathered so far. If another process is writing, or the disk is full, keep it for later."""
        if self._database.read_only:
            return
        with self._lock:
            self._flushed_s = time.monotonic()
            counts = {counter: count for counter, count in self._counts.items() if count}
            counts.pop(Counter.DROPPED_PUTS, None)
            for counter in counts:
                self._counts[counter] = 0
            reasons, self._reasons = self._reasons, {}
            touched, self._touched = self._touched, {}
        if not counts and not touched and not reasons:
            return
        named = {counter.value: count for counter, count in counts.items()}
        named |= reasons
        try:
            self._database.transact(lambda connection: _write(connection, named, touched), wait=wait)
        except StoreError:
            with self._lock:
                for name, count in reasons.items():
                    self._reasons[name] = self._reasons.get(name, 0) + count
                for counter, count in counts.items():
                    self._counts[counter] += count
                if len(touched) + len(self._touched) <= _MOST_TOUCHES:
                    self._touched = touched | self._touched

    def _maybe_flush(self) -> None:
        if time.monotonic() - self._flushed_s >= FLUSH_S or len(self._touched) > _MOST_TOUCHES:
            self.flush()


def _write(connection: sqlite3.Connection, counts: dict[str, int], touched: dict[tuple[str, bytes], None]) -> None:
    connection.executemany(
        "INSERT INTO counters (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        list(counts.items()),
    )
    tick = next_tick(connection, max(1, len(touched)))
    for offset, (table, name) in enumerate(touched):
        connection.execute(f"UPDATE {table} SET used = ? WHERE {_COLUMN[table]} = ?", (tick + offset, name))
