"""Whether files and folders are still as they were, told by their stamps alone.

Looks at no content, and does not know what stands on the answer (`compiles`). In doubt it says no. Stand-ins go by the
same rules in C (answer.c), but that they read a file that has another stamp and a digest: a test holds that they never
say yes where this says no, unless no content is another one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from buildd import sweep
from buildd.files import listing_stamp


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as it was."""

    path: str
    stamp: int
    """See `Snapshot.folder_stamp`: 0 where there was none, -1 where it cannot be told by its stamp."""
    there: frozenset[tuple[str, bool]] | None = None
    """Where our own outputs come and go in it: which of the names that matter were there, with whether each was a
    folder itself."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """Files and folders as they were, all old enough to be told by their stamps."""

    paths: list[bytes]
    stamps: bytes
    folders: tuple[Folder, ...]
    names: frozenset[str] = frozenset()
    """Those that matter in folders with a list of what was there."""
    digests: bytes = b""
    """BLAKE3 of the files, 32 bytes each, zeros where only the stamp counts; empty where that is so for all."""

    def joined(self, other: Stamps) -> Stamps:
        """What both stand on; the other one lists no names."""
        assert not other.names
        folders = tuple(dict.fromkeys((*self.folders, *other.folders)))
        digests = b"".join(each.digests or bytes(32 * len(each.paths)) for each in (self, other))
        return Stamps([*self.paths, *other.paths], self.stamps + other.stamps, folders, self.names, digests)

    def hold(self, sweeper: sweep.Sweep) -> bool:
        """Whether everything is still so. In a worker thread."""
        for folder in self.folders:
            try:
                # One that is as it was when it was old enough has not been changed since.
                if folder.stamp != -1 and listing_stamp(os.stat(folder.path)) == folder.stamp:
                    continue
                if folder.there is None or listed_names(folder.path, self.names) != folder.there:
                    return False
            except OSError:
                if folder.stamp != 0:
                    return False
        return sweeper.all_equal(self.paths, self.stamps, worth_files=sweep.WORTH_FILES_LOADED)


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, as hints of what is touched tell it."""

    count: int
    """Of hints before it."""
    turns: int
    """Of the set of folders: where that has moved, hints may be missing."""


def listed_names(folder: str, names: frozenset[str]) -> frozenset[tuple[str, bool]]:
    """Which of some names are in a folder, with whether each is a folder itself. Raises OSError."""
    with os.scandir(folder) as entries:
        return frozenset((entry.name, entry.is_dir()) for entry in entries if entry.name in names)
