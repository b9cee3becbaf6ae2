"""Takes stamps of many files at once: in C if this machine has a compiler, else in Python.

Knows neither records nor what a stamp means. The C side (sweep.c) is compiled with the host compiler once it would have
been useful, while no request waits, and kept in the store; it looks at the files without Python's lock and with a few
threads. If it fails in any way, the Python side gives the same answer, only later.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from buildd.files.devices import are_seen_by_opening
from buildd.files.stamp import stamp_of
from buildd.native.programs import NATIVE, NoProgram, check_owner, find_compiler, is_whole, place_of, seal

FIELDS = 5
"""Numbers in a stamp: device, inode, size, mtime and ctime in nanoseconds; modulo 2^64, as signed 64-bit numbers."""
WORTH_FILES = 1000
"""With fewer files, Python is done before a library would be loaded."""
WORTH_FILES_LOADED = 50
"""The same, once the library is loaded."""

_SHIMS = Path(__file__).parents[1] / "shims"
_SOURCES = (Path(__file__).with_name("sweep.c"), _SHIMS / "remote.c", _SHIMS / "shim.h")
_FLAGS = ("-O2", "-shared", "-fPIC", "-pthread")
_COMPILE_S = 30.0
_MOST_BYTES = 4 << 20
_THREADS = 4
_WORD = (1 << 64) - 1
_NOTHING = (0,) * FIELDS
_loads = itertools.count()
_log = logging.getLogger(__name__)


def packed(numbers: Sequence[int]) -> bytes:
    """Numbers of stamps as bytes, to compare and keep; an inode of a stacked file system can have all 64 bits."""
    return array.array("Q", [number & _WORD for number in numbers]).tobytes()


def stamp(path: bytes) -> tuple[int, ...]:
    """One file's numbers; zeros if it is not a regular file. sweep.c must agree with this."""
    return stamp_of(path) or _NOTHING


@cache
def sweep_of(store: Path) -> Sweep:
    """The process's sweep with its library in this store."""
    return Sweep(store / NATIVE)


class Sweep:
    """Looks at many files. Safe to use from several threads.

    Args:
        folder: where the library is kept; made when needed.
        path: where to search for the compiler, as $PATH.
    """

    def __init__(self, folder: Path, *, path: str | None = None) -> None:
        self.problem = ""
        """Why Python does the work, if the library was tried."""
        self._folder = folder
        self._path = path
        self._function: ctypes._NamedFuncPointer | None = None
        self._looked = False
        self._wanted = False
        self._lock = threading.Lock()
        self._maker: threading.Thread | None = None
        self._compiler: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def is_native(self) -> bool:
        return self._function is not None

    # ------------------------------------------------------------ looking

    def stamps_of(self, paths: Sequence[bytes]) -> bytes:
        """Stamps of the files, one after the other, in native byte order."""
        function, joined = self._native(paths)
        if function is None:
            return packed([number for path in paths for number in stamp(path)])
        found = ctypes.create_string_buffer(8 * FIELDS * len(paths))
        function(joined, len(paths), None, found, _threads(len(paths)))
        return found.raw

    def all_equal(self, paths: Sequence[bytes], stamps: bytes, *, worth_files: int = WORTH_FILES) -> bool:
        """Whether these files have these stamps now; stops at the first that differs.

        Args:
            worth_files: with so many files or more, the library is used.
        """
        if len(stamps) != 8 * FIELDS * len(paths):
            return False
        function, joined = self._native(paths, worth_files)
        if function is not None:
            return bool(function(joined, len(paths), stamps, None, _threads(len(paths))))
        step = 8 * FIELDS
        look = os.stat
        regular = stat.S_ISREG
        numbers = array.array("Q", stamps)
        place = 0
        for path in paths:
            # `stamp`, written out: a no-op build waits for this.
            try:
                status = look(path)
            except (OSError, ValueError):
                status = None
            if status is None or not regular(status.st_mode):
                if any(stamps[8 * place : 8 * place + step]):
                    return False
            elif are_seen_by_opening(status.st_dev):
                if packed(stamp(path)) != stamps[8 * place : 8 * place + step]:
                    return False
            elif (
                numbers[place + 1] != status.st_ino & _WORD
                or numbers[place + 4] != status.st_ctime_ns & _WORD
                or numbers[place + 3] != status.st_mtime_ns & _WORD
                or numbers[place + 2] != status.st_size & _WORD
                or numbers[place] != status.st_dev & _WORD
            ):
                return False
            place += FIELDS
        return True

    def _native(
        self, paths: Sequence[bytes], worth_files: int = WORTH_FILES
    ) -> tuple[ctypes._NamedFuncPointer | None, bytes]:
        """The library's function and the paths in its format; None if Python has to do the work."""
        if len(paths) < worth_files:
            return None, b""
        if self._function is None:
            self._wanted = True
            if not self._looked:
                self.load()
        function = self._function
        if function is None:
            return None, b""
        joined = b"\0".join(paths) + b"\0"
        # A zero byte would split a path in two; such a path names no file, and Python says so.
        return (function, joined) if joined.count(b"\0") == len(paths) else (None, b"")

    # ------------------------------------------------------------ the library

    def expect(self, count: int) -> None:
        """Expect so many files later: compile in the background, if that pays and is not yet done."""
        if count < WORTH_FILES or self._function is not None:
            return
        with self._lock:
            if self._maker is None and not self._closed and not self.problem:
                maker = threading.Thread(target=self.make, name="sweep", daemon=True)
                try:
                    maker.start()
                except RuntimeError:  # no more threads: try the next time
                    return
                self._maker = maker

    def rest(self) -> None:
        """Compile, if the library would have been useful; called while no request waits."""
        if self._wanted and self._function is None and self._maker is None and not self.problem:
            self.make()

    def close(self) -> None:
        """End a compiler that still runs. A loaded library stays."""
        with self._lock:
            self._closed = True
            if self._compiler is not None:
                self._compiler.kill()
        if self._maker is not None:
            self._maker.join(timeout=_COMPILE_S)
        self._maker, self._closed, self.problem = None, False, ""

    def make(self) -> None:
        """Load the library, compiling it first if it is missing. Raises nothing; see `problem`."""
        try:
            if not self.load():
                self._compile()
                if not self.load():
                    self.problem = self.problem or "the compiled library cannot be loaded"
        except (OSError, subprocess.SubprocessError, NoProgram) as error:
            self.problem = str(error) or type(error).__name__
        if self.problem and not self._closed:
            _log.info("stamps of files are taken by Python: %s", self.problem)

    def load(self) -> bool:
        """Load the library if it exists and is undamaged; whether it is used now."""
        self._looked = True
        try:
            compiler = find_compiler(self._search_path())
            descriptor = os.open(self._place(compiler), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (OSError, NoProgram):
            return False
        try:
            check_owner(os.stat(self._folder))
            check_owner(os.fstat(descriptor))
            content = os.read(descriptor, _MOST_BYTES)
            if not is_whole(content):
                return False
            # By descriptor, so that exactly the checked file is loaded. Under a new name each time: for a name that
            # dlopen knows, it returns the library that it knows.
            library = ctypes.CDLL(f"/proc/self/{'./' * next(_loads)}fd/{descriptor}")
            function = library.buildd_sweep
        except (OSError, AttributeError, NoProgram) as error:
            self.problem = f"{type(error).__name__}: {error}"
            return False
        finally:
            os.close(descriptor)
        function.restype = ctypes.c_int
        function.argtypes = (
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_uint,
        )
        if not _agrees(function, self._place(compiler)):
            self.problem = "the C side reads stamps differently"
            return False
        self._function = function
        return True

    def _compile(self) -> None:
        compiler = find_compiler(self._search_path())
        place = self._place(compiler)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        check_owner(os.stat(self._folder))
        aside = place.with_name(f".{place.name}.{os.getpid()}")
        command = [compiler, *_FLAGS, "-o", str(aside), *(str(path) for path in _SOURCES if path.suffix == ".c")]
        try:
            with self._lock:
                if self._closed:
                    return
                self._compiler = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env={"PATH": self._search_path(), "LC_ALL": "C", "BUILDD_DISABLE": "1"},
                )
            try:
                _, said = self._compiler.communicate(timeout=_COMPILE_S)
            finally:
                self._compiler.kill()
                self._compiler.wait()
            if self._compiler.returncode != 0:
                raise NoProgram(f"{compiler}: {said.decode(errors='replace').strip()[-300:]}")
            seal(aside, place)
        finally:
            with self._lock:
                self._compiler = None
            aside.unlink(missing_ok=True)
        for old in self._folder.iterdir():  # made from other sources or by other compilers
            if old != place and old.suffixes == [".so"]:
                old.unlink(missing_ok=True)

    def _search_path(self) -> str:
        return os.environ.get("PATH", os.defpath) if self._path is None else self._path

    def _place(self, compiler: str) -> Path:
        return place_of(self._folder, _SOURCES, _FLAGS, compiler, ".so")


def _agrees(function: ctypes._NamedFuncPointer, place: Path) -> bool:
    """Whether C and Python agree on a file, a folder, a device and a missing file."""
    paths = [os.fsencode(place), b"/", b"/dev/null", os.fsencode(f"{place}.no"), os.fsencode(sys.executable)]
    found = ctypes.create_string_buffer(8 * FIELDS * len(paths))
    function(b"\0".join(paths) + b"\0", len(paths), None, found, 2)
    return found.raw == packed([number for path in paths for number in stamp(path)])


def _threads(count: int) -> int:
    return max(1, min(_THREADS, len(os.sched_getaffinity(0)), count // WORTH_FILES))
