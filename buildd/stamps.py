"""Whether files and folders are still as they were, told by their stamps alone.

Knows no content, and not what stands on the answer (`compiles`). In doubt it says no.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from buildd import sweep
from buildd.files import listing_stamp


@dataclass(frozen=True, slots=True)
class Listing:
    """The names that matter in a folder that our own outputs come and go in, and which of them were there."""

    names: frozenset[str]
    there: frozenset[tuple[str, bool]]
    """With whether it was a folder."""

    def holds(self, folder: str) -> bool:
        return listed_names(folder, self.names) == self.there


def listed_names(folder: str, names: frozenset[str]) -> frozenset[tuple[str, bool]]:
    """Which of some names are in a folder, with whether each is a folder itself. Raises OSError."""
    with os.scandir(folder) as entries:
        return frozenset((entry.name, entry.is_dir()) for entry in entries if entry.name in names)


@dataclass(frozen=True, slots=True)
class Stamps:
    """Files and folders as they were, all old enough to be told by their stamps."""

    paths: list[bytes]
    stamps: bytes
    folders: tuple[tuple[str, int, Listing | None], ...]
    """Path and stamp; where an output is written into it also what matters there."""

    def hold(self, sweeper: sweep.Sweep) -> bool:
        """Whether everything is still so. In a worker thread."""
        for folder, stamp, listing in self.folders:
            try:
                # One that is as it was when it was old enough has not been changed since.
                if stamp != -1 and listing_stamp(os.stat(folder)) == stamp:
                    continue
                if listing is None or not listing.holds(folder):
                    return False
            except OSError:
                if stamp != 0:
                    return False
        return sweeper.all_equal(self.paths, self.stamps, worth_files=sweep.WORTH_FILES_LOADED)
