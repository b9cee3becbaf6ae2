"""What is in a folder beside the outputs that a build puts there.

The listing of a folder may decide which file a compiler finds, so its stamp is kept; but below it outputs are made and
removed, and that changes its stamp too. Knows names and kinds of files, no record and no request.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from blake3 import blake3

Above = dict[str, dict[str, str]]
"""Folder -> the names in it that are outputs ("f") or lead to some ("d")."""


def folders_above(outputs: Iterable[str]) -> Above:
    """All folders above outputs.

    Args:
        outputs: absolute.
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
    """The names in a folder, their kinds, where links lead: none where it is gone, None where it cannot be read."""
    try:
        with os.scandir(folder) as listing:
            return {entry.name: _kind(entry) for entry in listing}
    except FileNotFoundError:
        return {}
    except OSError:
        return None


def names_in(folder: str, above: Above) -> str:
    """A digest of the entries of a folder as they are with all outputs in place: one that is gone will hold just these.
    Empty where there is nothing to tell."""
    found = entries(folder)
    mine = above.get(os.path.normpath(folder), {})
    return digest(mine | found) if found is not None and (found or mine) else ""


def digest(found: dict[str, str]) -> str:
    """Of entries."""
    return blake3(repr(sorted(found.items())).encode(errors="surrogateescape")).hexdigest()


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"l{os.readlink(entry.path)}"
    return "d" if entry.is_dir(follow_symlinks=False) else "f" if entry.is_file(follow_symlinks=False) else "o"
