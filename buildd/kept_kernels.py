"""Triton's kernels, Inductor's graphs, Python's bytecode beside the store: their bound, are they sound, figures.

Knows nothing of how they come there and are found: that happens in the users' processes (`hooks/triton_cache`,
`hooks/inductor_cache`, `hooks/bytecode`), nor what an entry is (`hooks/entries`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from buildd.hooks import bytecode, inductor_cache, signatures, triton_why
from buildd.hooks.entries import NOTE, Entry, Shelf, check
from buildd.hooks.triton_cache import FOLDER

FOLDERS = (FOLDER, inductor_cache.FOLDER)
SHARE = 10
"""They may hold this part of the store's bound, beside the store."""
_NAME = re.compile(r"[0-9a-f]{32}")
_TORN_S = 3600.0
_NOTES = 1000
"""So many kernels' notes of what they were compiled from stay."""
_UNLOCKED_S = 86400.0
"""So old a lock is nobody's: it would have been removed by who held it. A note of a tool may be of none by then."""


def held(store: Path) -> tuple[int, int]:
    """How many kernels and graphs there are, and their bytes."""
    sizes = [status.st_size for entry, status in _all(store) if _NAME.fullmatch(entry.name)]
    return len(sizes), sum(sizes)


def trim(store: Path, limit_bytes: int) -> int:
    """Remove what was not used for longest, until the others fit, and what killed processes have left; the
    bytes that are left."""
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
    """Remove all kernels and graphs (how many there were), what they were compiled from, and bytecode."""
    for entry, _ in (*_statuses(store, triton_why.FOLDER), *_statuses(store, bytecode.FOLDER)):
        _remove(entry.path)
    return sum(_remove(entry.path) for entry, _ in _all(store) if _NAME.fullmatch(entry.name))


def sound(store: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content, unsigned, of each kernel and graph that is whole, and signed by somebody who is trusted. A
    graph's name begins with its folder's."""
    keys = signatures.keys(os.environ)
    for folder in FOLDERS:
        for file in [entry.name for entry, _ in _statuses(store, folder) if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError, ValueError):
                content = (store / folder / file).read_bytes()
                check(content, f"{folder}/{file}", keys)
                yield (file if folder == FOLDER else f"{folder}/{file}"), Entry.decode(content).encode()


def read(store: Path, name: str) -> bytes:
    """One kernel's or graph's content, unsigned. Raises OSError, ValueError."""
    return Entry.decode(store.joinpath(*_place(name)).read_bytes()).encode()


def take_in(store: Path, name: str, content: bytes) -> bool:
    """Have a kernel or graph found from now on, whole or not at all, and signed by the user, who trusts where it comes
    from; False for what is none. Raises OSError, ValueError where the user has no key.

    Under a name that is not its own it is never taken for another one: who finds it compares keys.
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
    """Folder and name of a file."""
    folder, _, file = name.rpartition("/")
    return folder or FOLDER, file


def verify(store: Path) -> tuple[int, int]:
    """Read all kernels and graphs and remove the bad ones; how many there were, and how many were bad."""
    count = bad = 0
    for entry, _ in _all(store):
        if _NAME.fullmatch(entry.name):
            count += 1
            with contextlib.suppress(OSError):
                bad += not _is_sound(Path(entry.path)) and _remove(entry.path)
    return count, bad


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
    with contextlib.suppress(FileNotFoundError), os.scandir(store / folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield entry, entry.stat(follow_symlinks=False)


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
