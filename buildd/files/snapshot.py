"""A snapshot: one request's view of the file system, which looks at every path once, at or after the request came in.

Knows which files were seen and which ones the request made itself; knows nothing of actions and keys.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Collection, Iterable, Mapping

from buildd.files.digests import Fact, Files
from buildd.files.stamp import (
    COARSE_STEP_NS,
    Stamp,
    folder_mark,
    listing_stamp,
    mark_of,
    moved_since,
    stamp_in,
    trustworthy,
)
from buildd.files.traits import Traits
from protocol.messages import Digest

_NOTHING: Mapping[str, os.stat_result] = {}


class Snapshot:
    """One request's view of the file system: each file and folder is looked at once.

    Files made during the request are entered with `produced`, so that they need not be read back.

    Args:
        files: reads and remembers the digests.
        project: the folder that relative paths are below.
    """

    def __init__(self, files: Files, project: str) -> None:
        self.files = files
        self.project = project
        self._facts: dict[str, tuple[Fact | None, int]] = {}
        """Path -> the fact that was seen, and when (ns)."""
        self._produced: dict[str, Digest] = {}
        self._listings: dict[str, frozenset[str] | None] = {}
        self._kinds: dict[str, bool | None] = {}
        self._marks: dict[str, tuple[int, tuple[int, int, int] | None]] = {}
        """Folder -> when it was listed (ns), and its mark at that time."""
        self._folders: dict[str, int] = {}

    def absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.project}/{path}"

    def produced(self, path: str, digest: Digest) -> None:
        """Enter a file that an action of this request made.

        If the file exists at `path`, `steady` compares with its present stamp.

        Args:
            path: relative to the project.
        """
        self._produced[path] = digest
        stamp = self.files.stamp(self.absolute(path))
        if stamp is not None:
            self._facts[path] = (Fact(digest, Traits.NONE, stamp), self.files.now_ns())

    def make(self, path: str, digest: Digest) -> None:
        """As `produced`, for a file whose stamp comes from another snapshot."""
        self._produced[path] = digest

    def is_produced(self, path: str) -> bool:
        return path in self._produced

    def is_aside(self, path: str) -> bool:
        """Whether an action of this request made the file, but it is not in the project."""
        return path in self._produced and self._facts.get(path, (None, 0))[0] is None

    def made_none_of(self, paths: frozenset[str]) -> bool:
        """Whether no action of this request has made any of these files: facts seen about them still hold."""
        return self._produced.keys().isdisjoint(paths)

    def digest(self, path: str) -> Digest | None:
        """Content digest of a file, produced or not; None where there is no such file."""
        made = self._produced.get(path)
        if made is not None:
            return made
        fact = self.fact(path)
        return None if fact is None else fact.digest

    def has_seen(self, path: str) -> bool:
        """Whether `fact` was called for a file: its answer describes the file at that time, not now."""
        return path in self._facts

    def seen(self, path: str) -> tuple[Fact | None, int] | None:
        """The answer of `fact` for a file and when it looked (ns); None where it was not called."""
        return self._facts.get(path)

    def take_over(self, seen: Mapping[str, tuple[Fact | None, int]]) -> None:
        """Take over what another snapshot has seen of files that are known to be unchanged."""
        self._facts.update(seen)

    def fact(self, path: str) -> Fact | None:
        try:
            return self._facts[path][0]
        except KeyError:
            looked_ns = self.files.now_ns()
            fact = self.files.fact(self.absolute(path))
            self._facts[path] = (fact, looked_ns)
            return fact

    def see(self, paths: Iterable[str], looked: Mapping[str, os.stat_result] = _NOTHING, looked_ns: int = 0) -> None:
        """Load the facts of many files in one go.

        Args:
            looked: what was seen of some of them, which are no links.
            looked_ns: a moment before that.
        """
        looked_ns, stamp = looked_ns or self.files.now_ns(), self.files.stamp
        known = self._facts.keys() | self._produced.keys()
        unseen = {path: self.absolute(path) for path in paths if path not in known}
        stamps = {
            place: stamp(place) if (status := looked.get(path)) is None else stamp_in(status)
            for path, place in unseen.items()
        }
        found = self.files.facts({place: seen for place, seen in stamps.items() if seen is not None})
        for path, place in unseen.items():
            self._facts.setdefault(path, (found.get(place), looked_ns))

    def has_seen_young(self) -> bool:
        """Whether some file that was looked at is so young that a write now might not change its stamp."""
        now_ns = self.files.now_ns()
        seen = list(self._facts.values())
        return any(fact is not None and not trustworthy(fact.stamp, now_ns) for fact, _ in seen)

    def steady(self, path: str, since_ns: int) -> bool:
        """Whether a file had the content that this snapshot saw from `since_ns` until now. When in doubt: no.

        A file that was changed and changed back has a new stamp, and a tool may have read the content in between.
        """
        if self.is_aside(path):
            return True  # it is in no place where somebody could change it
        fact = self.fact(path)
        if fact is None:
            return False
        looked_ns = self._facts[path][1]
        if self.files.stamp(self.absolute(path)) != fact.stamp:
            return False
        if not trustworthy(fact.stamp, looked_ns):
            # The file was so young when it was looked at that a later write may not show: compare the content.
            again = self.files.fact(self.absolute(path))
            if again is None or again.digest != fact.digest:
                return False
        return looked_ns <= since_ns or trustworthy(fact.stamp, since_ns)

    def untouched(
        self, path: str, spelled: str, since_ns: int, moved: dict[str, bool], status: os.stat_result | None = None
    ) -> bool:
        """Whether a file was steady, and the path by which a tool read it led to it all the time.

        Args:
            spelled: absolute, or relative to the project.
            moved: see `moved_since`.
            status: what lstat has said of the file since the tool ended.
        """
        absolute = self.absolute(spelled)
        fact, looked_ns = self._facts.get(path, (None, 0))
        if fact is not None and path not in self._produced and moved.get(absolute[: absolute.rfind("/")]) is False:
            # The usual case, for each header of each compile: a regular file, old at either moment, as it was.
            try:
                status = status or os.lstat(absolute)
            except OSError:
                return False
            stamp = fact.stamp
            if (
                status.st_mtime_ns == stamp.mtime_ns
                and status.st_ctime_ns == stamp.ctime_ns
                and status.st_ino == stamp.inode
                and status.st_dev == stamp.device
                and status.st_size == stamp.size
                and stat_module.S_ISREG(status.st_mode)
                and min(looked_ns, since_ns) - max(stamp.mtime_ns, stamp.ctime_ns) > COARSE_STEP_NS
            ):
                return True
        if not self.steady(path, since_ns):
            return False
        return path in self._produced or not moved_since(absolute, since_ns, moved)

    def listing(self, folder: str) -> frozenset[str] | None:
        """Names in a folder; None when it is not one."""
        try:
            return self._listings[folder]
        except KeyError:
            # The stamp first: a name that comes in between must not be covered by a later stamp.
            looked_ns, status = self._looked_at(folder)
            looked = looked_ns, None if status is None else mark_of(status)
            names = self.files.names_in(self.absolute(folder), looked)
            self._listings[folder] = names
            self._marks[folder] = looked
            return names

    def keep_names(self, names: frozenset[str]) -> None:
        """Forget all other names in the folders that were listed."""
        for folder, listed in self._listings.items():
            if listed is not None:
                self._listings[folder] = listed & names

    def is_folder(self, path: str) -> bool | None:
        """Whether a listed name is a folder and no file; None where it is neither, or a link. Looked at once."""
        try:
            return self._kinds[path]
        except KeyError:
            kind = None
            try:
                mode = os.lstat(self.absolute(path)).st_mode
                kind = stat_module.S_ISDIR(mode) if stat_module.S_ISDIR(mode) or stat_module.S_ISREG(mode) else None
            except OSError:
                pass
            self._kinds[path] = kind
            return kind

    def was_folder(self, path: str) -> bool:
        """Whether `is_folder` was asked, and the name was that of a folder. Reads nothing."""
        return self._kinds.get(path) is True

    def listed(self, folder: str) -> frozenset[str] | None:
        """The answer of `listing`, if it was called; None otherwise. Reads nothing."""
        return self._listings.get(folder)

    def listed_since(self, folder: str, since_ns: int, names: Collection[str]) -> bool:
        """Whether a folder has had the same of these names since `since_ns`, each for the same file. When in doubt: no.

        A build puts its outputs into a folder in which another compile looks for a header: names that did not matter
        may come and go, if the folder was listed before.
        """
        mark = self._mark(folder)
        if mark is None:
            return False
        if trustworthy(Stamp(mark[0], 0, 0, mark[2], mark[2]), since_ns):
            return True
        looked_ns, _ = self._marks.get(folder, (since_ns + 1, None))
        listed = self._listings.get(folder)
        if looked_ns > since_ns or listed is None:
            return False
        place, there = self.absolute(folder), listed.intersection(names)
        try:
            return there == frozenset(os.listdir(place)).intersection(names) and all(
                is_old(f"{place}/{name}", since_ns) for name in there
            )
        except OSError:
            return False

    def _mark(self, folder: str) -> tuple[int, int, int] | None:
        return folder_mark(self.absolute(folder))

    def folder_stamp(self, folder: str) -> int:
        """A number that changes when a name is added to or removed from a folder.

        0 where there is no folder; -1 where it changed so recently that its stamp cannot be trusted.
        """
        try:
            return self._folders[folder]
        except KeyError:
            self._looked_at(folder)
            return self._folders[folder]

    def has_same_names(self, folder: str) -> bool:
        """Whether a folder that was looked at has the same names now. When in doubt: no."""
        stamp = self._folders.get(folder, -1)
        try:
            return stamp not in (-1, 0) and listing_stamp(os.stat(self.absolute(folder) or "/")) == stamp
        except OSError:
            return False

    def _looked_at(self, folder: str) -> tuple[int, os.stat_result | None]:
        """When a folder was looked at, and its status then. The first look gives the folder its stamp."""
        now_ns = self.files.now_ns()
        try:
            status = os.stat(self.absolute(folder) or "/")
        except OSError:
            self._folders.setdefault(folder, 0)
            return now_ns, None
        if folder not in self._folders:
            mark = Stamp(status.st_dev, status.st_ino, 0, status.st_mtime_ns, status.st_mtime_ns)
            self._folders[folder] = listing_stamp(status) if trustworthy(mark, now_ns) else -1
        return now_ns, status


def is_old(path: str, since_ns: int) -> bool:
    """Whether a name has led to the same file or folder since a moment. The folder's own names count elsewhere. Raises
    OSError."""
    status = os.lstat(path)
    return stat_module.S_ISDIR(status.st_mode) or trustworthy(
        Stamp(status.st_dev, 0, 0, status.st_ctime_ns, status.st_ctime_ns), since_ns
    )
