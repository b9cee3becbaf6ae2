"""The parts of a store: its index, its counts, its blobs and its areas.

Garbage collection, verification, figures and job history work on these. Callers outside this room use `store`, which
is built on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from buildd.store.areas import Area
from buildd.store.blobs import Blobs
from buildd.store.database import Database
from buildd.store.tally import Counter, Tally


class Parts:
    """The parts of one store, opened.

    Args:
        folder: the store's folder.
        limit_bytes: size bound.
        read_only: take no lock and write nothing.
        notice: called with one line for people when something happened to the index.
        limit_reached: called after every put with the store's size.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        *,
        read_only: bool,
        notice: Callable[[str], None],
        limit_reached: Callable[[int], None],
    ) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.database = Database(folder, read_only=read_only, notice=notice)
        self.tally = Tally(self.database)
        self.blobs = Blobs(self.database, self.tally, limit_reached)
        self.areas: tuple[Area, ...] = ()
        """What the store keeps beside its results; `Store` puts them together."""

    @property
    def read_only(self) -> bool:
        return self.database.read_only

    def count(self, counter: Counter, amount: int = 1) -> None:
        self.tally.count(counter, amount)

    def counters(self) -> dict[Counter, int]:
        """Counts over the store's whole life, with those not yet written."""
        return self.tally.totals()
