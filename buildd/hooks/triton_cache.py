"""Triton's cache, kept in the store: every kernel is whole and checked, found from any folder, and compiled once.

Runs in the user's own process: standard library and triton only. Knows Triton's interface; what an entry is, is
`entries`'. No daemon. What Triton itself does not key is not kept. Whatever goes wrong, Triton's own cache does what it
would have done without us.
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

from . import entries
from .entries import Entry, Shelf, is_on

FOLDER = "triton"
_MOST_WAIT_S, _LONGEST_WAIT_S = 60.0, 600.0
"""For another process that has a kernel to compile and computes nothing; for one that computes."""
_MOST_FILES = 10_000
_POLL_S = 0.005
_BACKENDS = ("cuda", "hip")
"""Triton's own; the code of others is not in its key."""
_HIDDEN = ("TRITON_KERNEL_OVERRIDE", "USE_IR_LOC", "LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS")
"""With these a kernel depends on files that are not in Triton's key."""
_log = logging.getLogger("buildd.triton")


class Lock:
    """Held by the one process that compiles a kernel. The kernel lets go of it when that process ends."""

    _held: ClassVar[dict[str, tuple[int, int]]] = {}
    """Path -> the process and thread that hold it: they must not wait for themselves."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._owner = 0

    def take(self) -> bool:
        """Take it if nobody has it."""
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
        """How much whoever holds it has computed so far, itself and in processes like ptxas; empty where nobody can
        tell: in another pid namespace. Compared only."""
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
        if self._owner == os.getpid():  # in a child that was forked meanwhile it is still the parent's
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            self.release()


def _ticks(pid: int) -> list[str]:
    """CPU times of a process and of those that it has waited for. Raises OSError."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[11:15]


def _is_keyed() -> bool:
    """Whether Triton's key says all that a kernel depends on."""
    return not any(is_on(name) for name in _HIDDEN)


@contextlib.contextmanager
def _fails_open(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The edge between us and the user's program: there Triton's own cache goes on.
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
                # What this process made, not what another one may have written to the same place by then.
                data = data if isinstance(data, bytes) else str(data)
                self._made[filename] = data if isinstance(data, bytes) else data.encode()
            return super().put(data, filename, binary)

        def get_group(self, filename: str) -> Any:
            with _fails_open("not looked up"):
                if self._shelf is not None:
                    writable = self._shelf.open()
                    if not is_on("BUILDD_RECACHE"):
                        found = self._find(filename)
                        if found is None and writable:
                            found = self._wait(filename)
                        if found is not None:
                            return found
                    if writable:
                        # Not Triton's own copy: nobody could tell whether it is whole.
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
            """The files of an entry, each in Triton's folder as it has to be; None where there is no whole entry."""
            assert self._shelf is not None
            try:
                entry = self._shelf.take(self._kernel, filename)
            except ValueError as error:
                entries.tell(_log, "an entry is not taken", error)
                return None
            if entry is None:
                return None
            paths = {name: self._make_path(name) for name in entry.files}
            fresh = not os.listdir(self.cache_dir)
            for name, path in paths.items():
                if not (fresh and _make(path, entry.files[name])) and not _holds(path, entry.files[name]):
                    entries.write(path, entry.files[name])
            return paths

        def _wait(self, filename: str) -> dict[str, str] | None:
            """Come to be the one who compiles, or find what another one has compiled meanwhile."""
            assert self._shelf is not None
            lock = Lock(self._shelf.lock_path(self._kernel, filename))
            if not _waited(lock):
                return None
            self._lock = lock
            found = self._find(filename)
            if found is not None:
                lock.release()
                self._lock = None
            return found

        def _keep(self, filename: str, group: dict[str, str]) -> None:
            if self._shelf is None or not _is_keyed() or set(group) - set(self._made):
                return
            facts = json.loads(self._made[filename])
            if facts["target"]["backend"] in _BACKENDS and not facts.get("ir_override"):
                self._shelf.open()
                self._shelf.put(Entry(self._kernel, filename, {name: self._made[name] for name in group}))

    return CacheManager


def _waited(lock: Lock) -> bool:
    """Take a lock, as soon as nobody has it; False where whoever has it gets nowhere. Raises OSError."""
    begun_s = until_s = time.monotonic()
    computed, pause_s = "", _POLL_S
    while not lock.take():
        if (now_s := time.monotonic()) >= until_s:
            before, computed = computed, lock.progress()
            if until_s > begun_s and (computed in ("", before) or now_s - begun_s > _LONGEST_WAIT_S):
                _log.info("%s: not waited for any longer", lock.path)
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
    """Make a new file; False where one is there.

    Who meets half of it knows by its content, and puts a whole one in its place: so it need not be renamed. Triton
    without us takes no file for whole that no group names.
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
    """Have Triton use the store.

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
        triton_key: makes it.
        folder: Triton's.
    """

    def stamps() -> list[tuple[int, ...]]:
        found = []
        for where, _, names in os.walk(folder, followlinks=True):
            paths = (os.path.join(where, name) for name in names if name.endswith((".py", ".so")))
            found += [entries.stamp_of(path) for path in paths]
            if len(found) > _MOST_FILES:
                raise OSError("a folder with more than Triton in it")
        return sorted(found)

    @functools.lru_cache
    def key() -> str:
        with _fails_open("Triton's own digest is made again"):
            shelf = Shelf(os.environ.get("BUILDD_DIR", ""), FOLDER)
            if not is_on("BUILDD_DISABLE") and shelf.open():
                return entries.remembered(triton_key, stamps, shelf.folder)
        return triton_key()

    return key
