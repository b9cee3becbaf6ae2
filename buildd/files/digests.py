"""Content digests of files, remembered by their stamps.

Knows which stamps are remembered; knows nothing of actions, keys or compilers. A digest is remembered under (device,
inode, size, mtime, ctime), and only when that stamp may be trusted (`stamp`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from blake3 import blake3

from buildd.files import kernel_clock
from buildd.files.patient_lock import PatientLock
from buildd.files.stamp import FolderMark, Stamp, folder_mark, stamp_of, trustworthy
from buildd.files.traits import Traits, traits_of
from codegen.reach import open_regular
from protocol.messages import Digest

LARGE_BYTES = 16 << 20
"""No source text is larger. Larger files are mapped instead of read."""
_MOST_LISTED = 2000
_MOST_NAMES = 1 << 18
"""Folders whose names are remembered, and names in all of them: some 20 MB."""
_READERS = min(4, os.cpu_count() or 1)


_BARE_BYTES = 64
_TRAITS_KNOWN = 13 << 16
"""Saved with every remembered digest. Change the number whenever `traits_of` finds more, so that digests which older
code saved are not used."""


class Fact(NamedTuple):
    """Digest and traits of a file's content, and the stamp that they belong to."""

    digest: Digest
    traits: Traits
    stamp: Stamp
    bare: str = ""
    """Digests of its two bare forms (`native.bare_text`), in hexadecimal; empty where it has none."""

    def has(self, trait: Traits) -> bool:
        """Whether the text has a trait. Most headers have none, and Python's flags are slow."""
        return self.traits is not Traits.NONE and bool(self.traits & trait)


DigestRow = tuple[int, int, int, int, int, bytes, int, bytes]
"""device, inode, size, mtime_ns, ctime_ns, digest (32 bytes), traits, digests of the bare forms (64 bytes or none)."""


def _no_bare_form(content: bytes) -> bytes:
    return b""


class DigestMemory(Protocol):
    """Keeps digests longer than the process: the store."""

    def digests_for(self, keys: list[tuple[int, int]]) -> dict[tuple[int, int], DigestRow]: ...

    def save_digests(self, rows: Iterable[DigestRow]) -> None: ...


class Files:
    """Digests of files for one store, shared by its requests. Safe to use from several threads.

    Args:
        memory: keeps digests over restarts; None where nothing does.
        stat: takes the stamp of a path (a test puts a coarse clock here).
        now_ns: the file system's clock.
        bare: digests of the bare forms of a text, as `BareText.digests` has them.
    """

    def __init__(
        self,
        memory: DigestMemory | None = None,
        *,
        stat: Callable[[str], Stamp | None] = stamp_of,
        now_ns: Callable[[], int] = kernel_clock.now_ns,
        bare: Callable[[bytes], bytes] = _no_bare_form,
    ) -> None:
        self._memory = memory
        self._bare = bare
        self._stat = stat
        self.now_ns = now_ns
        self._known: dict[tuple[int, int], Fact] = {}
        self._unsaved: dict[tuple[int, int], Fact] = {}
        self._listed: dict[str, tuple[tuple[int, int, int], frozenset[str]]] = {}
        """Folder -> its mark when it was listed, and the names in it."""
        self._name_count = 0
        self._lock = threading.Lock()
        self._readers = PatientLock()
        self.read_count = 0

    def stamp(self, path: str) -> Stamp | None:
        return self._stat(path)

    def fact(self, path: str) -> Fact | None:
        """Digest and traits of a file's content now; None where it cannot be read."""
        stamp = self._stat(path)
        if stamp is None:
            return None
        return self._recall(stamp) or self._read(path)

    def _recall(self, stamp: Stamp) -> Fact | None:
        if (stamp.device, stamp.inode) not in self._known:
            self.preload((stamp,))
        return self._held(stamp)

    def names_in(self, folder: str, looked: tuple[int, FolderMark | None] | None = None) -> frozenset[str] | None:
        """Names in a folder; None where there is no folder. Remembered while the folder's stamp stays the same.

        Args:
            looked: when the caller looked at the folder just now, and the mark that it had.
        """
        before_ns, mark = looked or (self.now_ns(), folder_mark(folder))
        known = self._listed.get(folder)
        if known is not None and known[0] == mark:
            return known[1]
        try:
            names = frozenset(os.listdir(folder))
        except OSError:
            return None
        # A folder that changed a moment ago may change again without a new stamp.
        if mark is not None and trustworthy(Stamp(mark[0], 0, 0, mark[2], mark[2]), before_ns):
            if len(self._listed) > _MOST_LISTED or self._name_count > _MOST_NAMES:
                self._listed, self._name_count = {}, 0
            self._listed[folder] = (mark, names)
            self._name_count += len(names)
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
        """Load the digests of many files: one query for the remembered ones, several threads for the others.

        The compilers of a toolkit are hundreds of megabytes, and hashing them does not hold the interpreter lock.
        """
        stamps = {path: stamp for path in dict.fromkeys(paths) if (stamp := self._stat(path)) is not None}
        self.preload(stamps.values())
        unknown = [path for path, stamp in stamps.items() if self._recall(stamp) is None]
        if len(unknown) > 1:
            unknown.sort(key=lambda path: -stamps[path].size)
            with ThreadPoolExecutor(min(_READERS, len(unknown))) as readers:
                list(readers.map(self._read, unknown))

    def facts(self, stamps: Mapping[str, Stamp]) -> dict[str, Fact | None]:
        """Facts of many small files: one query for the remembered ones; the others are read by one thread only.

        Args:
            stamps: path -> its stamp now.
        """
        self.preload(stamps.values())
        found = {path: self._held(stamp) for path, stamp in stamps.items()}
        unknown = [path for path, fact in found.items() if fact is None]
        if unknown:
            with self._readers.held():
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
                with open_regular(path) as file:  # the path may be a FIFO by now
                    status = os.fstat(file.fileno())
                    if status.st_size > LARGE_BYTES:
                        # A library of gigabytes: mapped, not read into memory. It is no source text.
                        size, traits, bare = status.st_size, Traits.NONE, b""
                        digest = Digest(blake3().update_mmap(path).hexdigest())
                    else:
                        content = file.read()
                        size, traits, bare = len(content), traits_of(content), self._bare(content)
                        if len(bare) > _BARE_BYTES:
                            traits |= Traits.VERSIONED
                        digest = Digest(blake3(content).hexdigest())
            except OSError:
                return None
            stamp = self._stat(path)
            if stamp is None:
                return None
            self.read_count += 1
            fact = Fact(digest, traits, stamp, bare[:_BARE_BYTES].hex())
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
        """Give the digests that were learned since the last call to the memory."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
        if unsaved and self._memory is not None:
            self._memory.save_digests(
                [
                    (*f.stamp, bytes.fromhex(f.digest), int(f.traits) | _TRAITS_KNOWN, bytes.fromhex(f.bare))
                    for f in unsaved.values()
                ]
            )

    def drop(self) -> None:
        """Save everything and free this process's memory; the digests are loaded again when they are needed."""
        self.save()
        with self._lock:
            self._known.clear()
        self._listed, self._name_count = {}, 0


def _from_row(row: DigestRow) -> Fact | None:
    if row[6] & ~0xFFFF != _TRAITS_KNOWN:
        return None
    return Fact(Digest(row[5].hex()), Traits(row[6] & 0xFFFF), Stamp(*row[:5]), row[7].hex())
