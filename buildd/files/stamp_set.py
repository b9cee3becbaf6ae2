"""Sets of stamps: whether many files and folders are unchanged, judged by their stamps alone.

Reads no content, and does not know what depends on the answer (`foreign_intake`). When in doubt the answer is no. Shims
follow the same rules in C (answer.c), except that they read a file whose stamp changed and compare its digest. A test
makes sure that shims never say yes where this module says no, unless all contents are unchanged.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from buildd.files import sweep
from buildd.files.stamp import Stamp, listing_stamp, trustworthy


@dataclass(frozen=True, slots=True)
class FolderStamp:
    """A folder as it was when the set was made."""

    path: str
    stamp: int
    """As in `Snapshot.folder_stamp`: 0 where there was no folder, -1 where its stamp cannot be trusted."""
    there: frozenset[tuple[str, bool]] | None = None
    """For a folder in which a build's outputs may come and go: which of the names that matter it held, and whether each
    was a folder itself."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """Files and folders as they were, all old enough that their stamps can be trusted."""

    paths: list[bytes]
    stamps: bytes
    folders: tuple[FolderStamp, ...]
    names: frozenset[str] = frozenset()
    """The names that matter in the folders whose content is listed (`FolderStamp.there`)."""
    digests: bytes = b""
    """BLAKE3 digests of the files, 32 bytes each, zeros where only the stamp counts; empty if that is so for all."""
    bare: bytes = b""
    """The same of their bare forms with the line of every token; zeros where the whole content counts."""
    loose: bytes = b""
    """The same of their bare forms without lines; zeros where the line of a token counts."""

    def joined(self, other: Stamps) -> Stamps:
        """The union of both sets; the other one lists no names."""
        assert not other.names
        folders = tuple(dict.fromkeys((*self.folders, *other.folders)))
        none = [bytes(32 * len(each.paths)) for each in (self, other)]
        return Stamps(
            [*self.paths, *other.paths],
            self.stamps + other.stamps,
            folders,
            self.names,
            (self.digests or none[0]) + (other.digests or none[1]),
            (self.bare or none[0]) + (other.bare or none[1]),
            (self.loose or none[0]) + (other.loose or none[1]),
        )

    def hold(self, sweeper: sweep.Sweep) -> bool:
        """Whether everything is unchanged. Call it in a worker thread."""
        for folder in self.folders:
            try:
                # A stamp that was old enough and is the same proves that the folder has not changed.
                if folder.stamp != -1 and listing_stamp(os.stat(folder.path)) == folder.stamp:
                    continue
                if folder.there is None or listed_names(folder.path, self.names) != folder.there:
                    return False
            except OSError:
                if folder.stamp != 0:
                    return False
        return sweeper.all_equal(self.paths, self.stamps, worth_files=sweep.WORTH_FILES_LOADED)


def trusted_stamps(files: Sequence[tuple[str, Stamp]], folders: Iterable[FolderStamp], since_ns: int) -> Stamps | None:
    """A set of stamps; None where the stamps of now would not tell every change since a moment.

    Args:
        files: paths with their stamps.
        since_ns: the moment, by the file system's clock.
    """
    folders = tuple(folders)
    if any(folder.stamp == -1 and folder.there is None for folder in folders):
        return None
    if not all(trustworthy(stamp, since_ns) for _, stamp in files):
        return None
    numbers = sweep.packed([number for _, stamp in files for number in stamp])
    return Stamps([os.fsencode(path) for path, _ in files], numbers, folders)


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in the stream of hints about touched files."""

    count: int
    """How many hints came before it."""
    turns: int
    """How often the set of watched folders had changed: after a change hints may be missing."""


def listed_names(folder: str, names: frozenset[str]) -> frozenset[tuple[str, bool]]:
    """The names among `names` that a folder holds, and whether each is a folder itself. Raises OSError.

    A link that leads nowhere is not there: compilers pass over it, and search on.
    """
    found = set()
    for name in names.intersection(os.listdir(folder)):
        with contextlib.suppress(OSError):
            found.add((name, stat.S_ISDIR(os.stat(f"{folder}/{name}").st_mode)))
    return frozenset(found)
