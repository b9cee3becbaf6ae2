"""Triton's cache in the store: every kernel is whole and checked, found from any folder, and compiled once.

Runs in the user's own process: standard library and triton only. Knows Triton's interface; `entries` knows the format.
Compiles without a daemon; the daemon is asked for what other machines have compiled (`tier_door`). Keeps nothing that
depends on something outside Triton's key. If anything goes wrong, Triton's own cache works as without buildd.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from . import entries, proof, tier_door
from .entries import Entry, Shelf, is_on

FOLDER = "triton"
_MOST_WAIT_S, _LONGEST_WAIT_S = 60.0, 600.0
"""Longest waits for another process to compile a kernel: one that uses no CPU time, and one that does."""
_MOST_FILES = 10_000
_POLL_S = 0.005
_BACKENDS = ("cuda", "hip")
"""Triton's own backends; the code of others is not in its key."""
_HIDDEN = ("TRITON_KERNEL_OVERRIDE", "USE_IR_LOC", "LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS")
"""With these a kernel depends on files that are not in Triton's key."""
_log = logging.getLogger("buildd.triton")


class Lock:
    """Held by the one process that compiles a kernel. The operating system releases it when that process ends."""

    _held: ClassVar[dict[str, tuple[int, int]]] = {}
    """Path -> the process and thread that hold it: a thread must not wait for itself."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._owner = 0

    def take(self) -> bool:
        """Take the lock if it is free."""
        if self._held.get(self.path) == (os.getpid(), threading.get_ident()):
            return True
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:  # its last holder removed it meanwhile
                raise BlockingIOError
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptor, self._owner = descriptor, os.getpid()
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, b"%d\n" % self._owner, 0)
        self._held[self.path] = (self._owner, threading.get_ident())
        return True

    def progress(self) -> str:
        """CPU time of the holder so far, including processes like ptxas; only for comparison. Empty if unknown: the
        holder is in another pid namespace."""
        try:
            with open(self.path, encoding="ascii") as file:
                pid = int(file.read(20))
            found = [_ticks(pid)]
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                    found += [_ticks(int(child)) for child in file.read().split()]
        except (OSError, ValueError):
            return ""
        return repr(found)

    def release(self) -> None:
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        self._held.pop(self.path, None)
        if self._owner == os.getpid():  # in a child forked meanwhile the lock is still the parent's
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            self.release()


def _ticks(pid: int) -> list[str]:
    """CPU times of a process and of its waited-for children. Raises OSError."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[11:15]


def _is_keyed() -> bool:
    """Whether Triton's key covers everything that a kernel depends on."""
    return not any(is_on(name) for name in _HIDDEN)


@contextlib.contextmanager
def _fails_open(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The edge to the user's program: Triton's own cache takes over.
        entries.tell(_log, what, error)


def manager_of(base: Any) -> Any:
    """The cache manager class.

    Args:
        base: Triton's FileCacheManager.
    """

    class CacheManager(base):  # type: ignore[misc]
        """Triton's cache of one key, with the store behind it."""

        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            super().__init__(key, override=override, dump=dump)
            self._kernel = key
            self._made: dict[str, bytes] = {}
            self._shelf: Shelf | None = None
            self._lock: Lock | None = None
            with _fails_open("no store"):
                store = os.environ.get("BUILDD_DIR", "")
                if store and not override and not dump and not is_on("BUILDD_DISABLE") and _is_keyed():
                    self._shelf = Shelf(store, FOLDER)

        def put(self, data: Any, filename: str, binary: bool = True) -> Any:
            if self._shelf is not None:
                # The files of this process, not those that another one may have written to the same place by then.
                data = data if isinstance(data, bytes) else str(data)
                self._made[filename] = data if isinstance(data, bytes) else data.encode()
            return super().put(data, filename, binary)

        def get_group(self, filename: str) -> Any:
            found = self._group(filename)
            if found is None and proof.is_on():
                proof.refuse("Triton kernel", filename.removesuffix(".json"))
            return found

        def _group(self, filename: str) -> Any:
            with _fails_open("not looked up"):
                if self._shelf is not None:
                    writable = self._shelf.open()
                    if not is_on("BUILDD_RECACHE"):
                        found = self._find(filename)
                        if found is None and writable:
                            found = self._wait(filename) if not proof.is_on() else self._fetch(filename)
                        if found is not None:
                            return found
                    if writable:
                        # Not Triton's own copy: it cannot be checked.
                        return None
            return super().get_group(filename)

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            made = super().put_group(filename, group)
            with _fails_open("not kept"):
                self._keep(filename, group)
            with _fails_open("not released"):
                if self._lock is not None:
                    self._lock.release()
                    self._lock = None
            self._made.clear()
            return made

        def _find(self, filename: str) -> dict[str, str] | None:
            """The files of an entry, each in Triton's folder and undamaged; None if there is no whole entry."""
            assert self._shelf is not None
            try:
                entry = self._shelf.take(self._kernel, filename)
            except ValueError as error:
                entries.tell(_log, "an entry is rejected", error)
                return None
            if entry is None:
                return None
            paths = {name: self._make_path(name) for name in entry.files}
            fresh = not os.listdir(self.cache_dir)
            for name, path in paths.items():
                if not (fresh and _make(path, entry.files[name])) and not _holds(path, entry.files[name]):
                    entries.write(path, entry.files[name])
            entries.note_found(os.path.dirname(self._shelf.folder), entries.FOUND_KERNEL)
            return paths

        def _wait(self, filename: str) -> dict[str, str] | None:
            """Become the process that compiles (None), or find what another one has compiled meanwhile."""
            assert self._shelf is not None
            lock = Lock(self._shelf.lock_path(self._kernel, filename))
            if not waited(lock):
                return None
            self._lock = lock
            found = self._find(filename) or self._fetch(filename)
            if found is not None:
                lock.release()
                self._lock = None
            return found

        def _fetch(self, filename: str) -> dict[str, str] | None:
            """Look for the entry in the shared tier."""
            assert self._shelf is not None
            with _fails_open("not fetched"):
                if tier_door.fetch(self._shelf, self._kernel, filename):
                    return self._find(filename)
            return None

        def _keep(self, filename: str, group: dict[str, str]) -> None:
            if self._shelf is None or not _is_keyed() or set(group) - set(self._made):
                return
            facts = json.loads(self._made[filename])
            if facts["target"]["backend"] in _BACKENDS and not facts.get("ir_override"):
                self._shelf.open()
                self._shelf.put(Entry(self._kernel, filename, {name: self._made[name] for name in group}))
                tier_door.offer(self._shelf, self._kernel, filename)

    return CacheManager


def waited(lock: Lock) -> bool:
    """Take a lock as soon as it is free; False if its holder makes no progress. Raises OSError."""
    begun_s = until_s = time.monotonic()
    computed, pause_s = "", _POLL_S
    while not lock.take():
        if (now_s := time.monotonic()) >= until_s:
            before, computed = computed, lock.progress()
            if until_s > begun_s and (computed in ("", before) or now_s - begun_s > _LONGEST_WAIT_S):
                _log.info("%s: its holder makes no progress; compiling without waiting", lock.path)
                return False
            until_s = now_s + _MOST_WAIT_S
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)
    return True


def _holds(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def _make(path: str, data: bytes) -> bool:
    """Make a new file; False if it exists.

    A process that finds half a file sees that by its content and replaces it, so no rename is needed. Triton without
    buildd uses no file that no group names.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    with open(descriptor, "wb", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError("written in part")
    return True


def use(cache: Any) -> None:
    """Make Triton use the store.

    Args:
        cache: the module triton.runtime.cache.
    """
    knobs = cache.knobs.cache
    if knobs.manager_class is None:
        knobs.manager_class = manager_of(cache.FileCacheManager)
    if hasattr(cache, "triton_key"):
        cache.triton_key = key_remembered(cache.triton_key, os.path.dirname(os.path.dirname(cache.__file__)))


def key_remembered(triton_key: Callable[[], str], folder: str) -> Callable[[], str]:
    """Triton's digest of itself, which would take each process a quarter of a second: it reads 500 MB.

    Args:
        triton_key: computes it.
        folder: Triton's folder.
    """

    def stamps() -> list[tuple[int, ...]]:
        found = []
        for where, _, names in os.walk(folder, followlinks=True):
            paths = (os.path.join(where, name) for name in names if name.endswith((".py", ".so")))
            found += [entries.stamp_of(path) for path in paths]
            if len(found) > _MOST_FILES:
                raise OSError("the folder holds more than Triton")
        return sorted(found)

    @functools.lru_cache
    def key() -> str:
        with _fails_open("Triton's own digest is computed again"):
            shelf = Shelf(os.environ.get("BUILDD_DIR", ""), FOLDER)
            if not is_on("BUILDD_DISABLE") and shelf.open():
                return entries.remembered("Triton's key", triton_key, stamps, shelf.folder)
        return triton_key()

    return key
