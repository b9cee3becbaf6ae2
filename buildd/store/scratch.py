"""Folders for private files of this process, such as those of jobs: on the disk of the store, or where there is room.

Knows disks and names, not what the files are for. What a killed process left in the store's own folder is removed by
`sessions.sweep`; elsewhere the next process of this user removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from buildd.errors import StoreError
from buildd.store.location import network_file_system
from buildd.store.packing import write_error

ENOUGH_BYTES = 512 << 20
"""A compile of CUTLASS writes about 100 MiB, and several run at once."""
ENOUGH_FILES = 1000
_PLAIN = re.compile(r"[A-Za-z0-9_./+=@%-]*")
_LARGE = "/var/tmp"
_YOUNG_S = 60.0


class Scratch:
    """The scratch folders of one open store. Every method may be called from any thread.

    Args:
        store: the store's folder.
        make: makes this process's folder in the store. Raises OSError and StoreError where it cannot be made.
    """

    def __init__(self, store: Path, make: Callable[[], Path]) -> None:
        self._store = store
        self._ways: tuple[Callable[[], Path], ...] = (make,) if _PLAIN.fullmatch(str(store)) else ()
        self._lock = threading.Lock()
        self._made: dict[Path, int] = {}
        """Folders elsewhere, each with the descriptor that holds its lock."""
        self._used: dict[Path, None] = {}

    def folder(self) -> Path:
        """A folder with room, which is removed when the process ends: the store's own, if it will do.

        Elsewhere (TMPDIR or /tmp, /var/tmp) if the store may not be written, if its disk is nearly full and another has
        more room, or if tools split the name of the store's folder: nvcc passes linker options to a shell and splits
        them at commas, gcc's SUNPRO_DEPENDENCIES ends at the first blank.

        Raises: StoreError where none can be made.
        """
        with self._lock:
            best = self._best()
            self._used[best] = None
            return best

    def folders(self) -> tuple[Path, ...]:
        """All folders that `folder` has given: what is below them is no input of anything."""
        with self._lock:
            return tuple(self._used)

    def close(self) -> None:
        """Remove the folders that are not in the store."""
        with self._lock:
            for folder, descriptor in self._made.items():
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)
            self._made.clear()

    def _best(self) -> Path:
        ways: list[Callable[[], Path]] = [*self._ways, *(partial(self._elsewhere, place) for place in places())]
        found: list[Path] = []
        failure: OSError | StoreError | None = None
        for make in ways:
            try:
                folder = make()
            except (OSError, StoreError) as error:
                failure = failure or error
                continue
            if _has_enough(folder):
                return folder
            found.append(folder)
        if found:
            return max(found, key=_room)
        if isinstance(failure, OSError):
            raise write_error(failure, Path(failure.filename or self._store)) from failure
        raise failure or StoreError("there is no folder for temporary files", next_step="set TMPDIR to one")

    def _elsewhere(self, place: str) -> Path:
        for folder in self._made:
            if folder.parent == Path(place) and folder.is_dir():
                return folder
        beginning = f"buildd-scratch-{os.geteuid()}-"
        # A folder's lock is seen on its own machine alone.
        if not network_file_system(place):
            _sweep(place, beginning)
        folder = Path(tempfile.mkdtemp(prefix=beginning, dir=place))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self._made[folder] = descriptor
        return folder


def places() -> tuple[str, ...]:
    """Where temporary files may go, best first."""
    try:
        chosen = tempfile.gettempdir()
    except FileNotFoundError:
        return ()
    return tuple(dict.fromkeys((*filter(_PLAIN.fullmatch, (chosen, _LARGE)), chosen)))


def _room(folder: Path) -> tuple[bool, int]:
    """Whether there is room for many files, and how many bytes are free."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False, 0
    # Some file systems make inodes as they need them, and count none.
    return disk.f_files == 0 or disk.f_favail >= ENOUGH_FILES, disk.f_bavail * disk.f_frsize


def _has_enough(folder: Path) -> bool:
    has_inodes, free_bytes = _room(folder)
    return has_inodes and free_bytes >= ENOUGH_BYTES


def _sweep(place: str, beginning: str) -> None:
    """Remove folders of processes of this user that have died: nobody holds their lock."""
    for name in os.listdir(place):
        if name.startswith(beginning):
            folder = os.path.join(place, name)
            with contextlib.suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    status = os.fstat(descriptor)
                    # A young one may belong to a process that has not locked it yet.
                    if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _YOUNG_S:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)
