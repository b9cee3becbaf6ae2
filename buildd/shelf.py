"""The bare parts of a store: its index, its counts and its blobs.

What collects and learns works on these (`collect`, `history`); what others call is `store`, which stands on both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from buildd.blobs import Blobs
from buildd.database import Database
from buildd.tally import Counter, Tally


class Shelf:
    """The parts, opened.

    Args:
        folder: the store's folder.
        limit_bytes: size bound.
        read_only: take no lock and write nothing.
        notice: is told what happened to the index, in one line for people.
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

    @property
    def read_only(self) -> bool:
        return self.database.read_only

    def count(self, counter: Counter, amount: int = 1) -> None:
        self.tally.count(counter, amount)

    def counters(self) -> dict[Counter, int]:
        """Counts over the store's whole life, with those not yet written."""
        return self.tally.totals()
