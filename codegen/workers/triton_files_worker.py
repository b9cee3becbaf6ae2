"""The files of one compile of `triton_worker`: finds the inputs among the files read, and writes the stages.

Knows nothing of kernels or buildd; imports only the standard library.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any


class Reads:
    """Files that were opened for reading, except those of the standard library and of Triton."""

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}
        # Modules loaded by start-up files of the environment (*.pth) are not inputs, nor is this script.
        self.before = frozenset(sys.modules)
        self._begun = False

    def begin(self) -> None:
        """Record files read from now on, and forget earlier ones."""
        if not self._begun:  # there is no way to take a hook away
            sys.addaudithook(self.hook)
        self._begun = True
        self.paths.clear()

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not arguments:
            return
        path, mode = arguments[0], arguments[1] if len(arguments) > 1 else None
        if isinstance(path, str) and path and (mode is None or not set(str(mode)) & set("wax+")):
            self.paths[os.path.abspath(path)] = None

    def inputs(self, ignored: tuple[str, ...]) -> list[str]:
        """Return the inputs, sorted; a module counts as its source even if its bytecode was read."""
        modules = [module for name, module in list(sys.modules.items()) if name not in self.before]
        loaded = [getattr(module, "__file__", None) for module in modules]
        found = {os.path.abspath(path) for path in loaded if path}
        found.update(path for path in self.paths if not path.endswith(".pyc"))
        others = (path for path in found if not path.startswith(ignored) and "\n" not in path)
        return sorted(path for path in others if os.path.isfile(path))


def own_folders(triton_folder: str) -> tuple[str, ...]:
    """Return the folders whose files are part of the tool's identity or do not matter."""
    site = [os.path.join(path, "triton") for path in sys.path if path]
    names = [triton_folder, *site, "/proc", "/sys", "/dev", os.environ["TRITON_CACHE_DIR"]]
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
