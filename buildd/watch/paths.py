"""Paths under watch: real names, the links on the way to them, and names that no build waits for.

Plain functions; they know the file system and nothing of a watch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_PASSING = re.compile(r"\..*|.*~|#.*#|\d+|.*___jb_(?:tmp|old)___|__pycache__|.*\.pyc|compile_commands\.json")
"""Names that editors and tools write in passing: no build waits for a new file of such a name."""
_MOST_PARTS = 400
"""Parts of a path once all links on its way are resolved: links may lead in a circle."""


def is_passing(name: str) -> bool:
    """Whether editors and tools use such a name in passing."""
    return _PASSING.fullmatch(name) is not None


def files_in(folder: str) -> list[str]:
    """The files of a folder, absolute."""
    return [path for path in entries(folder) if os.path.isfile(path)]


def entries(folder: str) -> list[str]:
    """All paths in a folder; none where it cannot be read."""
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


def real_path(path: str, resolved: dict[str, str]) -> str:
    """As `os.path.realpath`, for many files of few folders.

    Args:
        resolved: real paths of folders; grows.
    """
    folder, name = os.path.split(path)
    if os.path.islink(path):
        return os.path.realpath(path)
    if folder not in resolved:
        resolved[folder] = os.path.realpath(folder)
    return os.path.join(resolved[folder], name)


def links_to(path: str) -> Iterator[str]:
    """The links on the way to the file that a path means, each by its real name."""
    at, left = "/", path.split("/")
    for _ in range(_MOST_PARTS):
        while left and left[0] in ("", ".", ".."):
            at = os.path.dirname(at) if left.pop(0) == ".." else at
        if not left:
            return
        step = os.path.join(at, left.pop(0))
        try:
            target = os.readlink(step)
        except OSError:
            at = step
            continue
        yield step
        at = "/" if target.startswith("/") else at
        left = [*target.split("/"), *left]


def existing(folder: str) -> str:
    """The folder, or the nearest one above it that is there."""
    while not os.path.isdir(folder) and folder != "/":
        folder = os.path.dirname(folder)
    return folder
