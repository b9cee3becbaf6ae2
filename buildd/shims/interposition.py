"""Compilers that a build calls by their path: the library that has them run under the shim (interpose.c).

Knows how the library comes into a build's environment. If it cannot be made, or preloaded, calls by path run as without
buildd.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from buildd.native.libraries import make_library, try_library
from buildd.native.programs import NoProgram
from codegen.foreign.called_tool import MARK
from codegen.foreign.command_line import family_of

LAUNCHER = "buildd-cc"
"""Under this name the shim takes the compiler as its first argument."""
LIBRARY = "libbuildd-interpose.so"
_PARTS = ("preloaded", "program_file", "program_name")
_FILES = ("interpose.c", *(f"{name}.c" for name in _PARTS), *(f"{name}.h" for name in _PARTS))
_SOURCES = tuple(Path(__file__).with_name(name) for name in _FILES)
# Without libc the library binds to no version of it; it must load into programs with an older one.
_FLAGS = ("-nostdlib", "-fno-builtin", "-fno-stack-protector", "-Wl,-z,lazy")
_TOLD = ("cmake", "make", "gmake", "ninja", "ccache", "sccache")
"""Other programs to which shims have something to tell."""
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
    """LD_PRELOAD of a build: the user's libraries, which may have to be the first ones, then buildd's.

    Args:
        programs: the folder of shims; the library has its link there.
    """
    return " ".join(filter(None, (without_library(environ), os.fspath(programs / LIBRARY))))


def folder_of(environ: Mapping[str, str]) -> str:
    """The folder of shims with the library that programs in this environment load; empty if they load none."""
    entries = environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return next((os.path.dirname(entry) for entry in entries if entry.endswith(f"/{LIBRARY}")), "")


def below(command: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], str | None]:
    """A command as a process that has the library would call it: its words, and the program if they do not name it.

    Args:
        environ: the command's, from `environment.variables`.
    """
    folder = folder_of(environ)
    name = os.path.basename(command[0])
    if not folder or not (family_of(name) or name in _TOLD):
        return list(command), None
    found = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if found is None or os.path.isdir(os.path.join(os.path.dirname(found), MARK)):
        return list(command), None
    return [command[0], os.path.abspath(found), *command[1:]], os.path.join(folder, LAUNCHER)


def without_library(environ: Mapping[str, str]) -> str:
    """LD_PRELOAD without our library."""
    entries = environ.get("LD_PRELOAD", "").replace(":", " ").split(" ")
    return " ".join(entry for entry in entries if entry and os.path.basename(entry) != LIBRARY)
