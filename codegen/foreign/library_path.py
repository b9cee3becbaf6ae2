"""LD_LIBRARY_PATH without the folders that hold no library a compiler could load.

cargo names its build folders there, which differ from checkout to checkout. The libraries in them are crates, whose
names end with a digest. Knows the loader's rules and no compiler.
"""

from __future__ import annotations

import os
import re

from codegen.compilers.closure import CAPABILITIES

NAME = "LD_LIBRARY_PATH"
_CRATE = re.compile(r"lib\w+-[0-9a-f]{16}\.so")
_MOST = 256
_YOUNG_NS = 2_000_000_000
"""A folder that changed so recently may change again without another time."""
_known: dict[str, tuple[int, int, int, bool]] = {}
"""Folder -> its device, inode and time of change when it was listed, and whether it holds a library."""


def without_idle(value: str, now_ns: int) -> str:
    """Return the value without such folders, and without those that are not there.

    Args:
        now_ns: by the clock of the file system.
    """
    return ":".join(entry for entry in value.split(":") if not entry.startswith("/") or _holds(entry, now_ns))


def _holds(folder: str, now_ns: int) -> bool:
    try:
        status = os.stat(folder)
        known = _known.get(folder)
        now = status.st_dev, status.st_ino, status.st_ctime_ns
        if known is not None and known[:3] == now:
            return known[3]
        with os.scandir(folder) as entries:
            holds = any(_is_library(entry.name) for entry in entries)
    except OSError:
        return os.path.lexists(folder)  # it may be searched, if not listed
    if now_ns - status.st_ctime_ns > _YOUNG_NS:
        if len(_known) >= _MOST:
            _known.clear()
        _known[folder] = (*now, holds)
    return holds


def _is_library(name: str) -> bool:
    return name in CAPABILITIES or (".so" in name and not _CRATE.fullmatch(name))
