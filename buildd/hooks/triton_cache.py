"""Triton's cache, kept in the store: every kernel is whole and checked, found from any folder, and compiled once.

Runs in the user's own process, from this one file: standard library and triton only. Knows Triton's interface and the
format of an entry (`kept_kernels` bounds and checks them); no daemon. What Triton itself does not key is not kept.
Whatever goes wrong, Triton's own cache does what it would have done without us.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import logging
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

FOLDER = "triton"
MAGIC = b"buildd-triton 1\n"
HEAD = struct.Struct("<16s32sI")
"""Magic; digest of all that follows the digest; length of the facts, which the files' contents follow."""
_CHECKED = 48
_MOST_BYTES = 256 << 20
_MOST_WAIT_S, _LONGEST_WAIT_S = 60.0, 600.0
"""For another process that has a kernel to compile and computes nothing; for one that computes."""
_MOST_FILES = 10_000
_POLL_S = 0.005
_USED_AGAIN_S = 3600.0
_BACKENDS = ("cuda", "hip")
"""Triton's own; the code of others is not in its key."""
_HIDDEN = ("TRITON_KERNEL_OVERRIDE", "USE_IR_LOC", "LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS")
"""With these a kernel depends on files that are not in Triton's key."""
_OFF = ("", "0", "false", "no", "off")
NOTE = ".tool"
"""How names of notes end: what was made of a tool's files, by their stamps."""
_MOST_NOTED = 1 << 20
_SETTLED_NS = 2_000_000_000
_values: dict[str, str] = {}
"""Name of a note -> what it tells."""
_temporaries = itertools.count(1)
_log = logging.getLogger("buildd.triton")


class Entry:
    """A kernel's files as they are kept.

    Args:
        key: Triton's.
        group: the name that Triton has for the files together.
        files: name -> content.
    """

    def __init__(self, key: str, group: str, files: dict[str, bytes]) -> None:
        self.key = key
        self.group = group
        self.files = files

    def encode(self) -> bytes:
        facts = json.dumps(
            {"key": self.key, "group": self.group, "files": [[name, len(data)] for name, data in self.files.items()]}
        ).encode()
        rest = struct.pack("<I", len(facts)) + b"".join((facts, *self.files.values()))
        return MAGIC + hashlib.blake2b(rest, digest_size=32).digest() + rest

    @classmethod
    def decode(cls, content: bytes) -> Entry:
        """Raises ValueError for what is torn, damaged or none of ours."""
        if len(content) < HEAD.size or not content.startswith(MAGIC):
            raise ValueError("no entry")
        _, check, length = HEAD.unpack_from(content)
        if hashlib.blake2b(content[_CHECKED:], digest_size=32).digest() != check:
            raise ValueError("damaged")
        facts = json.loads(content[HEAD.size : HEAD.size + length])
        at, files = HEAD.size + length, {}
        for name, size in facts["files"]:
            if not is_plain(name) or len(content) - at < size:
                raise ValueError("damaged")
            files[name] = content[at : at + size]
            at += size
        if at != len(content):
            raise ValueError("damaged")
        return cls(facts["key"], facts["group"], files)


def is_plain(name: str) -> bool:
    """Whether a name stays in its folder."""
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\0"}


class Shelf:
    """The kernels of one store, or what else is kept like them. Every method may raise OSError and ValueError."""

    def __init__(self, store: str, folder: str = FOLDER) -> None:
        self.folder = os.path.join(store, folder)

    def open(self) -> bool:
        """Have the folder there; whether entries can be written to it."""
        try:
            status = os.lstat(self.folder)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(self.folder)):
                return False
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
            status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise OSError(f"{self.folder} is not a folder of this user's alone")
        return os.access(self.folder, os.W_OK | os.X_OK)

    def take(self, key: str, group: str) -> Entry | None:
        """An entry that is whole; None where there is none."""
        path = os.path.join(self.folder, name_of(key, group, self.folder))
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > _MOST_BYTES:
                raise ValueError("no entry")
            entry = Entry.decode(file.read())
            if (entry.key, entry.group) != (key, group) or group not in entry.files:
                raise ValueError("another entry")
            if time.time() - status.st_mtime > _USED_AGAIN_S:
                # What was not used for longest goes first.
                with contextlib.suppress(OSError):
                    os.utime(descriptor)
        return entry

    def put(self, entry: Entry) -> None:
        """Have an entry found from now on, whole or not at all."""
        content = entry.encode()
        if len(content) > _MOST_BYTES:
            return
        aside = os.path.join(self.folder, f".{os.getpid()}-{next(_temporaries)}")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                if file.write(content) != len(content):
                    raise OSError("written in part")
            os.replace(aside, os.path.join(self.folder, name_of(entry.key, entry.group, self.folder)))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise

    def lock_path(self, key: str, group: str) -> str:
        return os.path.join(self.folder, f"{name_of(key, group, self.folder)}.lock")


def name_of(key: str, group: str, notes: str = "") -> str:
    """The name of an entry's file: of all that Triton's key leaves out, too.

    Args:
        notes: a folder where digests of large files are remembered, for other processes.
    """
    parts = [key, group, str(_is_on("TRITON_STORE_BINARY_ONLY"))]
    # Tools in place of Triton's own: their version is keyed, their content is not.
    for name in sorted(name for name in os.environ if name.startswith("TRITON_") and name.endswith("_PATH")):
        if os.path.isfile(os.environ[name]):
            parts.append(f"{name}={digest_of(os.environ[name], notes)}")
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def digest_of(path: str, notes: str = "") -> str:
    """Of a file's content: it is read once for each state of it, where notes can be kept. Raises OSError."""

    def digest() -> str:
        hasher = hashlib.blake2b(digest_size=16)
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
        return hasher.hexdigest()

    return remembered(digest, lambda: [_stamp(path)], notes)


def remembered(value_of: Callable[[], str], stamps_of: Callable[[], Sequence[tuple[int, ...]]], notes: str = "") -> str:
    """What was made of files, unless they have changed. Raises OSError.

    Args:
        value_of: makes it: a text without blanks.
        stamps_of: the files' stamps, each with the time of its last change (ns) at the end.
        notes: a folder where it is remembered for other processes.
    """
    stamps = stamps_of()
    note = hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest() + NOTE
    value = _values.get(note) or (_noted(os.path.join(notes, note)) if notes else "")
    if not value:
        value = value_of()
        # A file that was written just now may be written again without a trace: clocks of file systems have steps.
        now_ns = time.time_ns()
        if any(abs(now_ns - stamp[-1]) < _SETTLED_NS for stamp in stamps) or stamps_of() != stamps:
            return value
        if notes:
            with contextlib.suppress(OSError):
                _write(os.path.join(notes, note), f"{value} {_check_of(note, value)}".encode())
    _values[note] = value
    return value


def _stamp(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _noted(place: str) -> str:
    """What another process has noted; empty where there is nothing that is whole."""
    with contextlib.suppress(OSError, ValueError), open(place, encoding="utf-8") as file:
        value, check = file.read(_MOST_NOTED).split()
        if check == _check_of(os.path.basename(place), value):
            return value
    return ""


def _check_of(note: str, value: str) -> str:
    return hashlib.blake2b(f"{note} {value}".encode(), digest_size=16).hexdigest()


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


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() not in _OFF


def _is_keyed() -> bool:
    """Whether Triton's key says all that a kernel depends on."""
    return not any(os.environ.get(name, "").lower() not in _OFF for name in _HIDDEN)


@contextlib.contextmanager
def _fails_open(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The edge between us and the user's program: there Triton's own cache goes on.
        _log.info("%s: %s", what, error)


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
                if store and not override and not dump and not _is_on("BUILDD_DISABLE") and _is_keyed():
                    self._shelf = Shelf(store)

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
                    if not _is_on("BUILDD_RECACHE"):
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
                _log.info("an entry is bad: %s", error)
                return None
            if entry is None:
                return None
            paths = {name: self._make_path(name) for name in entry.files}
            fresh = not os.listdir(self.cache_dir)
            for name, path in paths.items():
                if not (fresh and _make(path, entry.files[name])) and not _holds(path, entry.files[name]):
                    _write(path, entry.files[name])
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


def _write(path: str, data: bytes) -> None:
    """Have a file there, whole or not at all."""
    aside = f"{path}.{os.getpid()}-{next(_temporaries)}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


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
            found += [_stamp(path) for path in paths]
            if len(found) > _MOST_FILES:
                raise OSError("a folder with more than Triton in it")
        return sorted(found)

    @functools.lru_cache
    def key() -> str:
        with _fails_open("Triton's own digest is made again"):
            shelf = Shelf(os.environ.get("BUILDD_DIR", ""))
            if not _is_on("BUILDD_DISABLE") and shelf.open():
                return remembered(triton_key, stamps, shelf.folder)
        return triton_key()

    return key
