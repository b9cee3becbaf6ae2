"""Compilers that a build calls by their path: the library that has them run under the shim (interpose.c).

Knows how the library comes into a build's environment. If it cannot be made, or preloaded, calls by path run as without
buildd.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from buildd.native.libraries import make_library, try_library
from buildd.native.programs import NoProgram
from codegen.foreign.command_line import family_of

LAUNCHER = "buildd-cc"
"""Under this name the shim takes the compiler as its first argument."""
LIBRARY = "libbuildd-interpose.so"
_FILES = ("interpose.c", "program_file.c", "program_name.c", "program_file.h", "program_name.h")
_SOURCES = tuple(Path(__file__).with_name(name) for name in _FILES)
# Without libc the library binds to no version of it; it must load into programs with an older one.
_FLAGS = ("-nostdlib", "-fno-builtin", "-fno-stack-protector", "-Wl,-z,lazy")
_log = logging.getLogger(__name__)


def library(store: Path, path: str) -> Path | None:
    """The library in the store; None if it cannot be made, or not be preloaded from there.

    Args:
        path: where to search for the host compiler, as $PATH.
    """
    found = _made(store, path)
    return found if found is not None and found.exists() else None


@cache
def _made(store: Path, path: str) -> Path | None:
    try:
        place = make_library(store, _SOURCES, _FLAGS, ".interpose.so", path)
        try_library(place)
    except (OSError, NoProgram, subprocess.SubprocessError) as error:
        _log.info("compilers that are called by their path are not cached: %s", error)
        return None
    return place


def with_library(environ: Mapping[str, str], programs: Path) -> str:
    """LD_PRELOAD of a build: the user's libraries, which may have to be the first ones, then ours.

    Args:
        programs: the folder of shims; the library has its link there.
    """
    return " ".join(filter(None, (without_library(environ), os.fspath(programs / LIBRARY))))


def is_loaded(environ: Mapping[str, str]) -> bool:
    """Whether programs in this environment load the library."""
    return without_library(environ) != " ".join(environ.get("LD_PRELOAD", "").replace(":", " ").split())


def below(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """A command as a process that has the library would call it.

    Args:
        environ: the command's, from `environment.variables`.
    """
    loaded = next((entry for entry in environ.get("LD_PRELOAD", "").split(" ") if entry.endswith(f"/{LIBRARY}")), "")
    is_path = os.path.dirname(command[0]) and os.access(command[0], os.X_OK)
    if loaded and is_path and family_of(os.path.basename(command[0])):
        return [os.path.join(os.path.dirname(loaded), LAUNCHER), *command]
    return list(command)


def without_library(environ: Mapping[str, str]) -> str:
    """LD_PRELOAD without our library."""
    entries = environ.get("LD_PRELOAD", "").replace(":", " ").split(" ")
    return " ".join(entry for entry in entries if entry and os.path.basename(entry) != LIBRARY)
