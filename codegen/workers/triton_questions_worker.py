"""What the user's modules ask of the file system during one compile of `triton_worker`, other than a file's content.

A module may choose its code by a module that cannot be imported, by a file that is not there or by the names in a
folder. Such a question and its answer are an input of the kernel as a file is. Knows nothing of kernels or buildd;
imports only the standard library.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

MOST = 20_000
"""Questions beyond this number are not kept; the result is not stored then."""
_MOST_BYTES = 64 << 20
_FOLDER = os.path.dirname(os.path.abspath(__file__))
_IMPORTS = ("importlib._bootstrap_external", "_frozen_importlib_external")
_IMPORTERS = ("importlib", "_frozen_importlib", "_frozen_importlib_external", "pkgutil", "runpy")
_NEWLINE = "it asks for a file with a newline in its name"
_LISTS = ("os.listdir", "os.scandir")
_LOADS = ("ctypes.dlopen", "sqlite3.connect")
_STARTS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.forkpty")


class Questions:
    """The first answer to each question. `lines` gives them as `buildd.keys.depfiles` reads them."""

    def __init__(self) -> None:
        self.ignored: tuple[str, ...] = ()
        self.kinds: dict[str, str] = {}
        """Path -> "absent", "folder" or "file"."""
        self.names: dict[tuple[str, str], str] = {}
        """("names" or "packages", folder) -> the digest of its names, or of those of installed packages."""
        self.unstored = ""
        self._is_asking = False
        self._stat, self._scandir = os.stat, os.scandir

    def begin(self, ignored: tuple[str, ...]) -> None:
        """Forget earlier questions.

        Args:
            ignored: beginnings of paths that are part of the tool's identity or do not matter.
        """
        self.ignored = ignored
        self.kinds.clear()
        self.names.clear()
        self.unstored = ""

    def install(self) -> None:
        """Hear of questions from now on. There is no way back, because audit hooks stay."""
        sys.addaudithook(self.hook)
        sys.meta_path.insert(0, self)
        for name in ("stat", "lstat", "access", "readlink"):
            setattr(os, name, self._asking(getattr(os, name)))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Ask the other finders, and note where they found the module, or all places where they did not.

        A module that is only looked for, as by `importlib.util.find_spec`, is no file that is read.
        """
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if _asker() is _Asker.OURS or _is_standard_import():
            return spec
        entries = sys.path if path is None else list(path)
        stem = name.rpartition(".")[2]
        if spec is not None:
            if _asker() is _Asker.USER:
                # A module there would be found first.
                before = itertools.takewhile(lambda entry: not _is_in(spec, entry, stem), entries)
                self._absent(before, stem)
            # A package without an __init__.py has folders only.
            for place in (spec.origin,) if spec.origin else spec.submodule_search_locations or ():
                if os.path.isabs(place):
                    self.kind(place)
            return spec
        self._absent(entries, stem)
        return None

    def files(self) -> list[str]:
        """The files that were asked for: by size, or whether they are there. They count by their content, but for large
        ones, as a model's weights, of which only that they are there counts."""
        asked = (path for path, kind in self.kinds.items() if kind == "file" and os.path.isfile(path))
        return [path for path in asked if os.path.getsize(path) <= _MOST_BYTES]

    def start_files(self) -> list[str]:
        """The files beside installed packages that Python reads when it starts: they add folders to its path. That
        there are no others is a question, too."""
        found = []
        for folder in sys.path:
            if folder.rstrip(os.sep).endswith("-packages") and self._counts(folder):
                with contextlib.suppress(OSError), self._scandir(folder) as entries:
                    names = [entry.name for entry in entries if entry.name.endswith(".pth")]
                    self.names["starts", os.path.abspath(folder)] = digest_of(names)
                    found += [os.path.join(os.path.abspath(folder), name) for name in names]
        return found

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what an audit event says. Raises nothing, since that would end the caller's call."""
        if self._is_asking or event not in ("open", *_LISTS, *_STARTS, *_LOADS):
            return
        if str(sys._getframe(1).f_globals.get("__name__")) in _IMPORTS:
            return  # it looks for modules and their bytecode: those that it loads are files, the others `find_spec`'s
        if event in _STARTS:
            if _asker() is _Asker.USER and not self.unstored:
                self.unstored = f"it starts {_program(event, arguments)}, and nobody sees what that reads"
        elif event == "open" or event in _LOADS:
            path = arguments[0]
            path = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
            if path and self._kind(path) == "absent" and _asker() is not _Asker.OURS:
                self.kind(path)
        elif _asker() is not _Asker.OURS:
            path = arguments[0] if arguments and arguments[0] is not None else "."
            if isinstance(path, (str, bytes, os.PathLike)):
                self._list(os.fsdecode(path))
            else:
                self.unstored = self.unstored or "it lists a folder by a descriptor"

    def kind(self, path: str) -> None:
        """Note what a path is now."""
        place = os.path.abspath(path)
        if place not in self.kinds and self._counts(place):
            self.kinds[place] = self._kind(place)

    def lines(self, read: list[str]) -> list[str]:
        """The questions, a line each.

        Args:
            read: files that are inputs by their content: that they exist is no further input.
        """
        if any("\n" in path for path in read):
            self.unstored = self.unstored or _NEWLINE
        if self.unstored:
            return [f"unstored {self.unstored}"]
        # Where such a file is, the folders above it are folders.
        known = {*read, *_above([*read, *_standard(), *self.ignored, os.path.join(os.getcwd(), "x")])}
        # What the module itself has made and removed is not there for the next one either.
        kinds = ((path, kind) for path, kind in sorted(self.kinds.items()) if kind != "file" or os.path.isfile(path))
        found = [f"{kind} {path}" for path, kind in kinds if path not in known]
        return found + [f"{what} {digest} {path}" for (what, path), digest in sorted(self.names.items())]

    def _absent(self, entries: Iterable[str], stem: str) -> None:
        for entry in entries:
            place = os.path.join(entry or os.getcwd(), stem)
            for suffix in ("", *importlib.machinery.all_suffixes()):
                self.kind(place + suffix)

    def _list(self, path: str) -> None:
        place = os.path.abspath(path)
        what = "packages" if _is_of_metadata() else "names"
        if (what, place) in self.names or not self._counts(place):
            return
        self._is_asking = True
        try:
            with self._scandir(place) as entries:
                names = [entry.name + "/" * entry.is_dir() for entry in entries]
                self.names[what, place] = digest_of(filter(_is_package, names) if what == "packages" else names)
        except OSError:
            self.kind(path)
        finally:
            self._is_asking = False

    def _counts(self, place: str) -> bool:
        if place.startswith(_standard()) and f"-packages{os.sep}" not in place:
            return False
        if f"{place}/".startswith(self.ignored):
            return False
        if "\n" in place:
            self.unstored = self.unstored or _NEWLINE
            return False
        if len(self.kinds) + len(self.names) >= MOST:
            self.unstored = self.unstored or f"it asks for more than {MOST} files and folders"
            return False
        return True

    def _kind(self, place: str) -> str:
        try:
            status = self._stat(place)
        except (OSError, ValueError):
            return "absent"
        return "folder" if stat.S_ISDIR(status.st_mode) else "file"

    def _asking(self, asks: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(asks)
        def asked(path: Any, *more: Any, **named: Any) -> Any:
            if isinstance(path, (str, bytes, os.PathLike)) and _asker() is not _Asker.OURS:
                if named.get("dir_fd") is not None:
                    path_there = os.path.join(f"/proc/self/fd/{named['dir_fd']}", os.fsdecode(path))
                    self.kind(os.path.realpath(path_there))
                else:
                    self.kind(os.fsdecode(path))
            return asks(path, *more, **named)

        return asked


def _is_in(spec: Any, entry: str, stem: str) -> bool:
    """Tell whether a module was found in a folder of the search path, or not in a folder at all."""
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    beginning = os.path.join(os.path.abspath(entry or os.getcwd()), stem)
    return not any(map(os.path.isabs, places)) or any(place.startswith(beginning) for place in places)


def _is_package(name: str) -> bool:
    return name.rstrip("/").endswith((".dist-info", ".egg-info", ".egg"))


def digest_of(names: Any) -> str:
    """The digest of the names in a folder."""
    text = "\0".join(sorted(name for name in names if name.rstrip("/") != "__pycache__"))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


class _Asker(Enum):
    """Whose code asks."""

    OURS = "Triton's and this worker's: what they ask does not change the kernel"
    PACKAGE = "an installed package's"
    USER = "the project's"


def _asker() -> _Asker:
    """The owner of the innermost code that is not of the standard library."""
    frame = sys._getframe(1)
    while frame is not None:
        name, file = (str(frame.f_globals.get(key)) for key in ("__name__", "__file__"))
        if name.partition(".")[0] == "triton":
            return _Asker.OURS
        if os.path.dirname(file) == _FOLDER:
            if file != __file__:
                return _Asker.OURS
        elif name.partition(".")[0] not in sys.stdlib_module_names:
            return _Asker.PACKAGE if f"-packages{os.sep}" in file else _Asker.USER
        frame = frame.f_back  # type: ignore[assignment]
    return _Asker.OURS


def _is_standard_import() -> bool:
    """Tell whether the standard library imports a module for itself, as `pickle` does on another Python."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name != __name__ and name.partition(".")[0] not in _IMPORTERS:
            return name.partition(".")[0] in sys.stdlib_module_names
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_of_metadata() -> bool:
    """Tell whether `importlib.metadata` looks for the versions or entry points of packages."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.startswith("importlib.metadata"):
            return True
        if name != __name__ and name.partition(".")[0] not in sys.stdlib_module_names:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _above(paths: list[str]) -> set[str]:
    """All folders above some paths."""
    found: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)
        while folder and folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


@functools.cache
def _standard() -> tuple[str, ...]:
    """The folders of the standard library, and the archive in which it may be: no user adds a module there."""
    import sysconfig

    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    archives = {f"{os.path.dirname(folder)}/python{sys.version_info[0]}{sys.version_info[1]}.zip" for folder in folders}
    return (*(folder + os.sep for folder in folders), *archives)


def _program(event: str, arguments: tuple[Any, ...]) -> str:
    first = arguments[0] if arguments else None
    if isinstance(first, (str, bytes, os.PathLike)):
        text = os.fsdecode(first)
        return os.path.basename(text.split()[0]) if text.split() else event
    return "a process"
