"""The files of one compile of `triton_worker`: finds the inputs among the files read, and writes the stages.

Knows nothing of kernels or buildd; imports only the standard library.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SYSTEM = tuple(f"{top}/lib{bits}/" for top in ("", "/usr") for bits in ("", "32", "64", "x32"))
_OPENS = ("sqlite3.connect", "ctypes.dlopen")


class Reads:
    """Files that were opened for reading, except those of the standard library and of Triton."""

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}
        self.before = frozenset(sys.modules)
        self._begun = False
        self._mapped: set[str] = set()

    def begin(self) -> None:
        """Record files read from now on, and forget earlier ones."""
        if not self._begun:  # there is no way to take a hook away
            sys.addaudithook(self.hook)
            os.open = self._opening(os.open)
        self._begun = True
        self.paths.clear()
        self._mapped = _mapped()

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OPENS and arguments:
            self._read(arguments[0])
        elif event == "open" and len(arguments) > 2:
            path, mode, flags = arguments[:3]
            if not (isinstance(mode, str) and set(mode) & set("wxa") and "+" not in mode) and (
                isinstance(mode, str) or not isinstance(flags, int) or flags & os.O_ACCMODE != os.O_WRONLY
            ):
                self._read(path)

    def inputs(self, ignored: tuple[str, ...]) -> list[str]:
        """Return the inputs, sorted; a module counts as its source even if its bytecode was read."""
        found = {
            os.path.abspath(path) for name, module in list(sys.modules.items()) if (path := self._file(name, module))
        }
        found.update(path for path in self.paths if not path.endswith(".pyc"))
        # An extension module or a library may load others.
        found.update(_mapped() - self._mapped)
        return sorted(path for path in found if not path.startswith(ignored) and os.path.isfile(path))

    def _file(self, name: str, module: Any) -> str | None:
        """The file of a module that is an input, if it has one."""
        file = getattr(module, "__file__", None)
        if name in self.before and file:
            # Start-up files of the environment (*.pth) load modules, and so does buildd. What a sitecustomize loads
            # may be the user's.
            path = os.path.abspath(file)
            if (f"-packages{os.sep}" in path and not name.startswith("__editable__")) or path.startswith(
                _OURS + os.sep
            ):
                return None
        return file

    def _read(self, path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)) and path:
            self.paths[os.path.abspath(os.fsdecode(path))] = None

    def _opening(self, opens: Any) -> Any:
        """`os.open`, which tells a hook nothing of the folder that a path is relative to."""

        @functools.wraps(opens)
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is not None and isinstance(path, (str, bytes, os.PathLike)):
                self._read(os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path)))
            return int(opens(path, flags, mode, dir_fd=dir_fd))

        return opened


def _mapped() -> set[str]:
    """The libraries of others than the system that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if " /" in line}
    return {path for path in paths if ".so" in path and not path.startswith(_SYSTEM)}


def own_folders(triton_folder: str) -> tuple[str, ...]:
    """Return the folders whose files are part of the tool's identity or do not matter."""
    names = [triton_folder, "/proc", "/sys", os.environ["TRITON_CACHE_DIR"]]
    return (*(os.path.abspath(name) + os.sep for name in names), *standard_library())


@functools.cache
def standard_library() -> tuple[str, ...]:
    """Return the files and folders of the standard library."""
    import sysconfig

    names = []
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        # Packages that the user installed are below the standard library and do count.
        names += [os.path.join(folder, name) for name in os.listdir(folder) if not name.endswith("-packages")]
    return tuple(name if os.path.isfile(name) else os.path.abspath(name) + os.sep for name in names)


def stages_to(outputs: dict[str, str], base: Any) -> Any:
    """Return a cache manager for Triton that finds nothing and writes each stage once.

    Triton's own manager writes each stage into a separate folder, from which it would have to be copied: more work for
    the file system than all of Triton's Python.

    Args:
        outputs: suffix of a stage -> path. Other stages go to Triton's folder, which is private.
        base: Triton's FileCacheManager.
    """

    class Stages(base):  # type: ignore[misc]
        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path = outputs.get(filename.rpartition(".")[2]) or self._make_path(filename)
            with open(path, "wb") as file:
                file.write(data if isinstance(data, bytes) else str(data).encode())
            return str(path)

        def get_group(self, filename: str) -> None:
            return None

        def put_group(self, filename: str, group: Any) -> str:
            return ""

    return Stages
