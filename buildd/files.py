"""Content digests of files, remembered by their stamps.

Knows when a stamp may be trusted; knows nothing of actions, keys or compilers. A digest is remembered under (device,
inode, size, mtime, ctime) only when both times lie further back than the file system's clock step at the moment the
content was read: a later write in the same tick would leave the stamp as it is.

A `Snapshot` is one request's view: every path is looked at once, at or after the request came in.
"""

from __future__ import annotations

import os
import stat as stat_module
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from blake3 import blake3

from buildd.traits import Traits, traits_of
from buildd.turns import Turns
from protocol.messages import Digest

FINE_STEP_NS = 20_000_000
"""ext4, xfs, btrfs and tmpfs stamp with the kernel's tick (at most 10 ms)."""
COARSE_STEP_NS = 2_000_000_000
"""FAT and old network file systems."""
LARGE_BYTES = 16 << 20
"""No source text is larger; what is larger is mapped instead of read."""
_MOST_LISTED = 2000
"""Folders whose names are remembered."""
_READERS = min(4, os.cpu_count() or 1)


_TRAITS_KNOWN = 2 << 8
"""Saved with every remembered digest; another number whenever `traits_of` finds more, so that no answer of older code
is taken for one of this."""


class Stamp(NamedTuple):
    """What the file system says of a file without reading it. Times in nanoseconds."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Fact(NamedTuple):
    """What is known of a file's content."""

    digest: Digest
    traits: Traits
    stamp: Stamp


DigestRow = tuple[int, int, int, int, int, bytes, int]
"""device, inode, size, mtime_ns, ctime_ns, digest (32 bytes), traits."""


class DigestMemory(Protocol):
    """Where remembered digests outlive the process (the store)."""

    def digests_for(self, keys: list[tuple[int, int]]) -> dict[tuple[int, int], DigestRow]: ...

    def save_digests(self, rows: Iterable[DigestRow]) -> None: ...


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a regular file, symbolic links followed; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat_module.S_ISREG(status.st_mode):
        return None
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def folder_mark(folder: str) -> tuple[int, int, int] | None:
    """What identifies a folder with its names: device, inode, time of its last change; None where there is none."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def listing_stamp(folder: os.stat_result) -> int:
    """A number that changes when a name comes to or goes from a folder."""
    return (folder.st_mtime_ns ^ (folder.st_ino << 8)) & 0x7FFF_FFFF_FFFF_FFFF


def trustworthy(stamp: Stamp, now_ns: int) -> bool:
    """Whether a write after `now_ns` must change the stamp. One from the future (a clock set back) is not trusted."""
    newest = max(stamp.mtime_ns, stamp.ctime_ns)
    coarse = stamp.mtime_ns % 1_000_000_000 == 0 and stamp.ctime_ns % 1_000_000_000 == 0
    return now_ns - newest > (COARSE_STEP_NS if coarse else FINE_STEP_NS)


def moved_since(path: str, since_ns: int, known: dict[str, bool]) -> bool:
    """Whether a name may have meant another file at some moment since: a link on its way was made or turned, or a
    folder on its way was moved. The stamps of what it means now do not tell that.

    Args:
        path: absolute.
        known: answers for folders so far, for the same moment.
    """
    folder = os.path.dirname(path)
    if folder != path:
        if folder not in known:
            known[folder] = moved_since(folder, since_ns, known)
        if known[folder]:
            return True
    try:
        status = os.lstat(path)
    except OSError:
        return True
    if stat_module.S_ISREG(status.st_mode) or trustworthy(_changed(status), since_ns):
        if not stat_module.S_ISLNK(status.st_mode):
            return False
        try:
            target = os.path.normpath(os.path.join(folder, os.readlink(path)))
        except OSError:
            return True
        return moved_since(target, since_ns, known)
    # A name that comes or goes in a folder changes both of its times, moving the folder itself only the second.
    return not stat_module.S_ISDIR(status.st_mode) or status.st_ctime_ns != status.st_mtime_ns


def appeared_since(path: str, since_ns: int, known: dict[str, bool]) -> bool:
    """Whether what is there may not have been there, under this name, at some moment since. See `moved_since`."""
    try:
        status = os.lstat(path)
    except OSError:
        return True
    return not trustworthy(_changed(status), since_ns) or moved_since(path, since_ns, known)


def _changed(status: os.stat_result) -> Stamp:
    return Stamp(0, 0, 0, status.st_ctime_ns, status.st_ctime_ns)


class Files:
    """Digests of files for one store, shared by its requests. Safe to use from several threads.

    Args:
        memory: where digests are kept over restarts, if anywhere.
        stat: how a stamp is taken (a test puts a coarse clock here).
        now_ns: the file system's clock.
    """

    def __init__(
        self,
        memory: DigestMemory | None = None,
        *,
        stat: Callable[[str], Stamp | None] = stamp_of,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._memory = memory
        self._stat = stat
        self.now_ns = now_ns
        self._known: dict[tuple[int, int], Fact] = {}
        self._unsaved: dict[tuple[int, int], Fact] = {}
        self._listed: dict[str, tuple[tuple[int, int, int], frozenset[str]]] = {}
        """Names in folders, with what identified them then."""
        self._lock = threading.Lock()
        self._readers = Turns()
        self.read_count = 0

    def stamp(self, path: str) -> Stamp | None:
        return self._stat(path)

    def fact(self, path: str) -> Fact | None:
        """Digest and traits of a file's content now; None when it cannot be read."""
        stamp = self._stat(path)
        if stamp is None:
            return None
        return self._recall(stamp) or self._read(path)

    def _recall(self, stamp: Stamp) -> Fact | None:
        if (stamp.device, stamp.inode) not in self._known:
            self.preload((stamp,))
        return self._held(stamp)

    def names_in(self, folder: str) -> frozenset[str] | None:
        """Names in a folder; None when it is not one. Remembered while its stamp says that none came or went."""
        before_ns = self.now_ns()
        mark = folder_mark(folder)
        known = self._listed.get(folder)
        if known is not None and known[0] == mark:
            return known[1]
        try:
            names = frozenset(os.listdir(folder))
        except OSError:
            return None
        # One that changed a moment ago may change again without a new stamp.
        if mark is not None and trustworthy(Stamp(0, 0, 0, mark[2], mark[2]), before_ns):
            if len(self._listed) > _MOST_LISTED:
                self._listed = {}
            self._listed[folder] = (mark, names)
        return names

    def preload(self, stamps: Iterable[Stamp]) -> None:
        """Fetch what the memory knows of many files in one query."""
        if self._memory is None:
            return
        wanted = [(s.device, s.inode) for s in stamps if (s.device, s.inode) not in self._known]
        if wanted:
            for identity, row in self._memory.digests_for(wanted).items():
                if (known := _from_row(row)) is not None:
                    self._known[identity] = known

    def read_ahead(self, paths: Iterable[str]) -> None:
        """Have the digests of many files at hand: one query for what is remembered, several threads for the rest. The
        compilers of a toolkit are hundreds of megabytes, and hashing them waits for no interpreter lock."""
        stamps = {path: stamp for path in dict.fromkeys(paths) if (stamp := self._stat(path)) is not None}
        self.preload(stamps.values())
        unknown = [path for path, stamp in stamps.items() if self._recall(stamp) is None]
        if len(unknown) > 1:
            unknown.sort(key=lambda path: -stamps[path].size)
            with ThreadPoolExecutor(min(_READERS, len(unknown))) as readers:
                list(readers.map(self._read, unknown))

    def facts(self, stamps: Mapping[str, Stamp]) -> dict[str, Fact | None]:
        """Facts of many small files: one query for what is remembered, and what has to be read is read once, whoever
        else wants it now.

        Args:
            stamps: of each path, as of now.
        """
        self.preload(stamps.values())
        found = {path: self._held(stamp) for path, stamp in stamps.items()}
        unknown = [path for path, fact in found.items() if fact is None]
        if unknown:
            with self._readers.turn():
                found.update((path, self._held(stamps[path]) or self._read(path)) for path in unknown)
        return found

    def _held(self, stamp: Stamp) -> Fact | None:
        known = self._known.get((stamp.device, stamp.inode))
        return known if known is not None and known.stamp == stamp else None

    def _read(self, path: str) -> Fact | None:
        # The stamp is taken from the open file before and after reading: a writer in between is seen, and the content
        # belongs to that inode even if the name was replaced meanwhile.
        for _ in range(3):
            before = self.now_ns()
            try:
                with open(path, "rb") as file:
                    status = os.fstat(file.fileno())
                    if status.st_size > LARGE_BYTES:
                        # A library of gigabytes: mapped, not read into our memory, and no source text.
                        size, traits = status.st_size, Traits.NONE
                        digest = Digest(blake3().update_mmap(path).hexdigest())
                    else:
                        content = file.read()
                        size, traits = len(content), traits_of(content)
                        digest = Digest(blake3(content).hexdigest())
            except OSError:
                return None
            stamp = self._stat(path)
            if stamp is None:
                return None
            self.read_count += 1
            fact = Fact(digest, traits, stamp)
            if (status.st_dev, status.st_ino) == (stamp.device, stamp.inode) and size == stamp.size:
                if trustworthy(stamp, before):
                    self._keep(fact)
                return fact
        return fact

    def _keep(self, fact: Fact) -> None:
        identity = (fact.stamp.device, fact.stamp.inode)
        with self._lock:
            self._known[identity] = fact
            self._unsaved[identity] = fact

    def save(self) -> None:
        """Hand what was learned since the last call to the memory."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
        if unsaved and self._memory is not None:
            self._memory.save_digests(
                [(*f.stamp, bytes.fromhex(f.digest), int(f.traits) | _TRAITS_KNOWN) for f in unsaved.values()]
            )

    def drop(self) -> None:
        """Give the memory back; what was saved is fetched again when asked for."""
        self.save()
        with self._lock:
            self._known.clear()
        self._listed = {}


def _from_row(row: DigestRow) -> Fact | None:
    if row[6] & ~0xFF != _TRAITS_KNOWN:
        return None
    return Fact(Digest(row[5].hex()), Traits(row[6] & 0xFF), Stamp(*row[:5]))


class Snapshot:
    """One request's view of the file system: each file and folder is looked at once.

    Files made during the request are put in with `produced`, so that nobody reads them back.

    Args:
        files: the digests behind it.
        project: folder that relative paths are under.
    """

    def __init__(self, files: Files, project: str) -> None:
        self.files = files
        self.project = project
        self._facts: dict[str, tuple[Fact | None, int]] = {}
        """What was seen, and when."""
        self._produced: dict[str, Digest] = {}
        self._listings: dict[str, frozenset[str] | None] = {}
        self._marks: dict[str, tuple[int, tuple[int, int, int] | None]] = {}
        """When folders were listed, and what identified them then."""
        self._folders: dict[str, int] = {}

    def absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.project}/{path}"

    def produced(self, path: str, digest: Digest) -> None:
        """An action of this request made `path` (relative to the project). Where it was put there as a file, its stamp
        of now is what `steady` compares with."""
        self._produced[path] = digest
        stamp = self.files.stamp(self.absolute(path))
        if stamp is not None:
            self._facts[path] = (Fact(digest, Traits.NONE, stamp), self.files.now_ns())

    def make(self, path: str, digest: Digest) -> None:
        """As `produced`, of a file whose stamp is taken over."""
        self._produced[path] = digest

    def is_produced(self, path: str) -> bool:
        return path in self._produced

    def is_aside(self, path: str) -> bool:
        """Whether it was made, but not put into the project."""
        return path in self._produced and self._facts.get(path, (None, 0))[0] is None

    def made_none_of(self, paths: frozenset[str]) -> bool:
        """Whether no action of this request made any of these so far: what was seen of them holds."""
        return self._produced.keys().isdisjoint(paths)

    def digest(self, path: str) -> Digest | None:
        """Content digest of a file or of a produced one; None when there is no such file."""
        made = self._produced.get(path)
        if made is not None:
            return made
        fact = self.fact(path)
        return None if fact is None else fact.digest

    def has_seen(self, path: str) -> bool:
        """Whether `fact` has been asked for a file: it then says what was there at that time, not what is there now."""
        return path in self._facts

    def seen(self, path: str) -> tuple[Fact | None, int] | None:
        """What `fact` has said of a file and when it looked; None where it was not asked."""
        return self._facts.get(path)

    def take_over(self, seen: Mapping[str, tuple[Fact | None, int]]) -> None:
        """Take what another snapshot has seen of files that are known to be as they were."""
        self._facts.update(seen)

    def fact(self, path: str) -> Fact | None:
        try:
            return self._facts[path][0]
        except KeyError:
            looked_ns = self.files.now_ns()
            fact = self.files.fact(self.absolute(path))
            self._facts[path] = (fact, looked_ns)
            return fact

    def see(self, paths: Iterable[str]) -> None:
        """Have the facts of many files at hand."""
        looked_ns, stamp = self.files.now_ns(), self.files.stamp
        known = self._facts.keys() | self._produced.keys()
        unseen = {path: self.absolute(path) for path in paths if path not in known}
        found = self.files.facts({path: seen for path in unseen.values() if (seen := stamp(path)) is not None})
        for path, place in unseen.items():
            self._facts.setdefault(path, (found.get(place), looked_ns))

    def has_seen_young(self) -> bool:
        """Whether a file that was looked at is so young that whoever reads it now may seem to read something else."""
        now_ns = self.files.now_ns()
        seen = list(self._facts.values())
        return any(fact is not None and not trustworthy(fact.stamp, now_ns) for fact, _ in seen)

    def steady(self, path: str, since_ns: int) -> bool:
        """Whether a file held what this snapshot says of it from `since_ns` until now. When in doubt: no.

        A file that was changed and changed back has a new stamp, and whoever read it may have read what was in between.
        """
        if self.is_aside(path):
            return True  # nobody can have changed it
        fact = self.fact(path)
        if fact is None:
            return False
        looked_ns = self._facts[path][1]
        if self.files.stamp(self.absolute(path)) != fact.stamp:
            return False
        if not trustworthy(fact.stamp, looked_ns):
            # So young when it was looked at that a write since then may not show: compare the content.
            again = self.files.fact(self.absolute(path))
            if again is None or again.digest != fact.digest:
                return False
        return looked_ns <= since_ns or trustworthy(fact.stamp, since_ns)

    def untouched(self, path: str, spelled: str, since_ns: int, moved: dict[str, bool]) -> bool:
        """Whether a file was steady, and the name that a tool read it by meant it all the while.

        Args:
            spelled: absolute, or relative to the project.
            moved: see `moved_since`.
        """
        absolute = self.absolute(spelled)
        fact, looked_ns = self._facts.get(path, (None, 0))
        if fact is not None and path not in self._produced and moved.get(absolute[: absolute.rfind("/")]) is False:
            # The usual case, for each header of each compile: a regular file, old at either moment, as it was.
            try:
                status = os.lstat(absolute)
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
            self.folder_stamp(folder)
            mark = (self.files.now_ns(), self._mark(folder))
            names = self.files.names_in(self.absolute(folder))
            self._listings[folder] = names
            self._marks[folder] = mark
            return names

    def listed(self, folder: str) -> frozenset[str] | None:
        """What `listing` said, if it was asked; never looks."""
        return self._listings.get(folder)

    def listed_since(self, folder: str, since_ns: int) -> bool:
        """Whether no name came to or went from a folder since. When in doubt: no."""
        mark = self._mark(folder)
        if mark is None:
            return False
        if trustworthy(Stamp(0, 0, 0, mark[2], mark[2]), since_ns):
            return True
        looked_ns, seen = self._marks.get(folder, (since_ns + 1, None))
        if looked_ns > since_ns or seen != mark:
            return False
        # Changed just before it was listed, so that a change just after may not show in the stamp.
        try:
            return frozenset(os.listdir(self.absolute(folder))) == self._listings[folder]
        except OSError:
            return False

    def _mark(self, folder: str) -> tuple[int, int, int] | None:
        return folder_mark(self.absolute(folder))

    def folder_stamp(self, folder: str) -> int:
        """A number that changes when a name is added to or removed from a folder; 0 when there is no folder; -1 when it
        changed so recently that the stamp cannot be trusted."""
        try:
            return self._folders[folder]
        except KeyError:
            now = self.files.now_ns()
            try:
                status = os.stat(self.absolute(folder) or "/")
            except OSError:
                stamp = 0
            else:
                mark = Stamp(status.st_dev, status.st_ino, 0, status.st_mtime_ns, status.st_mtime_ns)
                stamp = listing_stamp(status) if trustworthy(mark, now) else -1
            self._folders[folder] = stamp
            return stamp
