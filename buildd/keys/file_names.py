"""Names of files in keys and in the store, and the paths that they stand for.

Knows a tool's roots and no file system. Every source of a build includes the same few hundred headers, so answers are
remembered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache

BYTES = "{bytes}"
"""Before the hexadecimal spelling of a path that is not plain ASCII."""
_MOST = 1 << 16
_ROOT = re.compile(r"\{([^{}:]+)\}")
"""A root's name in a name of a file."""


class Names:
    """Names below one tool's roots.

    Args:
        roots: named folders with links resolved, the deepest first.
        project: paths below it are relative, even if their names are not.
    """

    def __init__(self, roots: tuple[tuple[str, str], ...], project: str) -> None:
        self._roots = roots
        self._project = f"{project}/"
        self._names: dict[str, str] = {}
        self._paths: dict[str, str] = {}

    def name(self, path: str) -> str:
        """The name of a path: relative to the root or else to the project that it is below, otherwise absolute."""
        name = self._names.get(path)
        if name is None:
            if len(self._names) >= _MOST:
                self._names = {}
            name = self._names[path] = self._name(path)
        return name

    def path(self, name: str) -> str:
        """The path that a name stands for."""
        path = self._paths.get(name)
        if path is None:
            if len(self._paths) >= _MOST:
                self._paths = {}
            path = self._paths[name] = self._path(name)
        return path

    def root(self, path: str) -> str:
        """The name of the root that a path is below; empty where it is below none."""
        name = self.name(path)
        return name[1 : name.index("}")] if name.startswith("{") and not name.startswith(BYTES) else ""

    def _name(self, path: str) -> str:
        if path.startswith("{") or not path.isascii():
            # A path in braces must not look like a root, and a path that is no UTF-8 must be storable.
            return BYTES + os.fsencode(path).hex()
        if path.startswith("/"):
            for name, folder in self._roots:
                if path.startswith(folder) and path[len(folder) : len(folder) + 1] == "/":
                    return f"{{{name}}}{path[len(folder) :]}"
        return path

    def _path(self, name: str) -> str:
        if name.startswith(BYTES):
            return os.fsdecode(bytes.fromhex(name[len(BYTES) :]))
        if name.startswith("{"):
            for root, folder in self._roots:
                if name.startswith(f"{{{root}}}"):
                    return folder + name[len(root) + 2 :]
        return name.removeprefix(self._project)


def spelled(text: str, roots: Iterable[tuple[str, str]]) -> str:
    """A text for people, with the folders of the roots in place of the roots' names."""
    folders = dict(roots)
    return _ROOT.sub(lambda found: folders.get(found[1], found[0]), text)


@lru_cache(maxsize=32)
def names_below(roots: tuple[tuple[str, str], ...], project: str) -> Names:
    """`Names` for these roots, shared by requests: the meaning of a name depends on the roots and the project alone."""
    return Names(roots, project)
