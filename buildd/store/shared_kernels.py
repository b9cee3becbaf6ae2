"""Triton's kernels, Inductor's graphs, JAX's programs, ccache's values and Python's bytecode beside the store: bound,
verification and figures.

The users' processes write and find them (`hooks/triton_cache`, `hooks/inductor_cache`, `hooks/jax_cache`,
`hooks/bytecode`, `ccache_storage`); the format of an entry is in `hooks/entries`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from buildd.hooks import bytecode, inductor_cache, jax_cache, signatures, triton_why
from buildd.hooks.entries import NOTE, Entry, Shelf, check
from buildd.hooks.triton_cache import FOLDER
from buildd.store.areas import Area, Checked, Held

CCACHE = "ccache"
"""The folder of ccache's values."""
FOLDERS = (FOLDER, inductor_cache.FOLDER, jax_cache.FOLDER, CCACHE)
SHARE = 10
"""Kernels and graphs may hold the store's bound divided by this, beside the store."""
_NOTE = "entries: kernels of Triton, graphs of torch.compile, programs of JAX, values of ccache"
_NAME = re.compile(r"[0-9a-f]{32}")
_TORN_S = 3600.0
_NOTES = 1000
"""How many notes about the sources of kernels are kept."""
_UNLOCKED_S = 86400.0
"""A lock older than this is abandoned: its holder would have removed it. A tool's note may be out of use by then."""


def held(store: Path) -> tuple[int, int]:
    """How many kernels and graphs there are, and their size in bytes."""
    sizes = [status.st_size for entry, status in _all(store) if _NAME.fullmatch(entry.name)]
    return len(sizes), sum(sizes)


def trim(store: Path, limit_bytes: int) -> int:
    """Remove the least recently used entries until the others fit, and leftovers of killed processes.

    Returns how many bytes are left.
    """
    found, now_s = [], time.time()
    for entry, status in (*_all(store), *_statuses(store, bytecode.FOLDER)):
        age_s = now_s - status.st_mtime
        if _NAME.fullmatch(entry.name):
            found.append((status.st_mtime_ns, status.st_size, entry.path))
        elif age_s > (_UNLOCKED_S if entry.name.endswith((".lock", NOTE)) else _TORN_S):
            _remove(entry.path)
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit_bytes:
            break
        total -= size * _remove(path)
    notes = [(status.st_mtime_ns, entry) for entry, status in _statuses(store, triton_why.FOLDER)]
    kernels = sorted((time_ns, entry.path) for time_ns, entry in notes if _NAME.fullmatch(entry.name))
    for _, path in kernels[:-_NOTES]:
        _remove(path)
    return total


def clear(store: Path) -> int:
    """Remove all kernels and graphs, the notes about their sources, and bytecode; how many kernels and graphs went."""
    for entry, _ in (*_statuses(store, triton_why.FOLDER), *_statuses(store, bytecode.FOLDER)):
        _remove(entry.path)
    return sum(_remove(entry.path) for entry, _ in _all(store) if _NAME.fullmatch(entry.name))


def sound(store: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content, without signature, of each undamaged kernel and graph that a trusted key has signed.

    A graph's name begins with its folder.
    """
    for place in places(store):
        with contextlib.suppress(OSError, ValueError):
            yield place.removeprefix(f"{FOLDER}/"), signed(store, place)


def places(store: Path) -> list[str]:
    """The place of each entry in a store, such as "triton/5f0c...", in the order of their last use."""
    found = []
    for folder in FOLDERS:
        for entry, status in _statuses(store, folder):
            if _NAME.fullmatch(entry.name):
                found.append((status.st_mtime_ns, f"{folder}/{entry.name}"))
    return [place for _, place in sorted(found)]


def is_place(text: str) -> bool:
    """Whether an entry may be there."""
    folder, _, file = text.partition("/")
    return folder in FOLDERS and _NAME.fullmatch(file) is not None


def signed(store: Path, place: str) -> bytes:
    """The content, without its signature, of an entry that a trusted key has signed. Raises OSError, ValueError."""
    content = (store / place).read_bytes()
    check(content, place, signatures.keys(os.environ))
    return Entry.decode(content).encode()


def read(store: Path, name: str) -> bytes:
    """The content of one kernel or graph, without its signature. Raises OSError, ValueError."""
    return Entry.decode(store.joinpath(*_place(name)).read_bytes()).encode()


def take_in(store: Path, name: str, content: bytes) -> bool:
    """Add a kernel or graph, atomically, signed by the user, who trusts its origin; False if it is neither.

    A wrong name cannot confuse it with another entry, because readers compare keys. Raises OSError, and ValueError
    where the user has no key.
    """
    try:
        entry = Entry.decode(content)
    except ValueError:
        return False
    folder, file = _place(name)
    shelf = Shelf(os.fspath(store), folder)
    if not shelf.open():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(store / folder))
    shelf.put_as(file, entry)
    return True


def _place(name: str) -> tuple[str, str]:
    """The folder and the file name of an entry."""
    folder, _, file = name.rpartition("/")
    return folder or FOLDER, file


def verify(store: Path) -> tuple[int, int]:
    """Read all kernels and graphs and remove the bad ones, if they may be; how many there were, how many were bad."""
    count = bad = 0
    for entry, _ in _all(store):
        if _NAME.fullmatch(entry.name):
            count += 1
            with contextlib.suppress(OSError):
                if not _is_sound(Path(entry.path)):
                    _remove(entry.path)
                    bad += 1
    return count, bad


class KernelArea(Area):
    """The folders of Triton's kernels, Inductor's graphs, JAX's programs and ccache's values."""

    name = "kernels"

    def __init__(self, store: Path) -> None:
        self._store = store

    def held(self) -> Held:
        entries, size_bytes = held(self._store)
        return Held(entries=entries, bytes=size_bytes, note=_NOTE)

    def trim(self, limit_bytes: int) -> None:
        trim(self._store, limit_bytes // SHARE)

    def verify(self) -> Checked:
        entries, bad = verify(self._store)
        return Checked(entries=entries, removed=bad)

    def flush(self, *, everything: bool) -> None:
        if everything:
            clear(self._store)


def _is_sound(path: Path) -> bool:
    try:
        Entry.decode(path.read_bytes())
    except ValueError:
        return False
    return True


def _all(store: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    for folder in FOLDERS:
        yield from _statuses(store, folder)


def _statuses(store: Path, folder: str = FOLDER) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(store / folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield entry, entry.stat(follow_symlinks=False)


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
