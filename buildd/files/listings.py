"""Listings of folders, without the outputs that a build puts there.

The listing of a folder may decide which file a compiler finds, so a record keeps the folder's stamp. A build that makes
and removes outputs in the folder changes that stamp too: then the listing decides. Knows names and kinds of files, no
record and no request.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from blake3 import blake3

Above = dict[str, dict[str, str]]
"""Folder -> the names in it that are outputs ("f") or lead to some ("d")."""

IGNORE = ".gitignore"
"""A name that no compiler searches. buildd puts such a file into the folder of outputs, and both go together."""


def folders_above(outputs: Iterable[str]) -> Above:
    """All folders above outputs, with the names in them that are outputs or lead to some.

    Args:
        outputs: absolute paths.
    """
    above: Above = {}
    for path in outputs:
        folder, _, name = path.rpartition("/")
        above.setdefault(folder or "/", {})[name] = "f"
    for folder in list(above):
        while folder != "/":
            outer, _, name = folder.rpartition("/")
            outer = outer or "/"
            names = above.setdefault(outer, {})
            if names.get(name) == "d":
                break
            names[name] = "d"
            folder = outer
    return above


def entries(folder: str) -> dict[str, str] | None:
    """The names in a folder with their kinds and link targets; empty where it is gone, None where it is unreadable."""
    try:
        with os.scandir(folder) as listing:
            return {entry.name: _kind(entry) for entry in listing if entry.name != IGNORE}
    except FileNotFoundError:
        return {}
    except OSError:
        return None


def names_in(folder: str, above: Above) -> str:
    """A digest of a folder's entries as if all outputs were in place: a folder that is gone will hold only outputs.

    Empty where the folder is unreadable, or has neither entries nor outputs.
    """
    found = entries(folder)
    mine = above.get(os.path.normpath(folder), {})
    return digest(mine | found) if found is not None and (found or mine) else ""


def digest(found: dict[str, str]) -> str:
    """A digest of entries."""
    return blake3(repr(sorted(found.items())).encode(errors="surrogateescape")).hexdigest()


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"l{os.readlink(entry.path)}"
    return "d" if entry.is_dir(follow_symlinks=False) else "f" if entry.is_file(follow_symlinks=False) else "o"
