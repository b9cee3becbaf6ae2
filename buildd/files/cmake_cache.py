"""Reads what CMake wrote into the cache of a build folder."""

from __future__ import annotations

import os
from pathlib import Path

_SOURCES = "CMAKE_HOME_DIRECTORY:INTERNAL="


def source_folder(folder: str) -> str:
    """Return the real path of the sources that a build folder of CMake was configured for; empty if it is none."""
    try:
        with Path(folder, "CMakeCache.txt").open(errors="surrogateescape") as cache:
            found = next((line for line in cache if line.startswith(_SOURCES)), "")
    except OSError:
        return ""
    path = found.removeprefix(_SOURCES).rstrip("\n")
    return os.path.realpath(path) if path else ""
