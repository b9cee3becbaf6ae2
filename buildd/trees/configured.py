"""Trees that other tools have configured: which compilers they call, and whether those calls can reach buildd.

Reads the files of cmake, ninja and make as far as that needs, and runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buildd.shims.environment import LAUNCHERS
from buildd.shims.shim_folders import TREES
from codegen.foreign.called_tool import MARK
from codegen.foreign.command_line import TOOLS

_MOST_BYTES = 4 << 20
_CACHE = "CMakeCache.txt"
_ENTRY = re.compile(r"^(CMAKE_(?:C|CXX|CUDA)_COMPILER(?:_LAUNCHER)?):\w+=(.*)$", re.MULTILINE)
_NAMES = "|".join(sorted(map(re.escape, TOOLS), key=len, reverse=True))
_CALLED = re.compile(rf"(?<![^\s='\"])(/[^\s'\"$:]*/(?:{_NAMES}))(?![^\s'\"])")
_ASSIGNED = re.compile(rf"^\s*(?:export\s+)?(\w+)\s*[:?]?=\s*(/[^\s$]*/({_NAMES}))\s*$", re.MULTILINE)
_BELOW = re.compile(r"\$[({](CUDA_HOME|CUDA_PATH|CUDA_ROOT|CUDA_DIR)[)}]/bin/nvcc")
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")


def folder_of(command: Sequence[str], folder: str) -> str:
    """The tree that a command of cmake, ninja or make builds.

    Args:
        folder: where the command runs.
    """
    if os.path.basename(command[0]) not in ("cmake", "ninja", "make", "gmake"):
        return folder
    words = iter(command[1:])
    for word in words:
        for option in ("--build", "--directory", "-C", "-B"):
            if word == option:
                return os.path.join(folder, next(words, ""))
            if word.startswith(f"{option}=") or (len(option) == 2 and word.startswith(option)):
                return os.path.join(folder, word[len(option) :].removeprefix("="))
    return folder


def advice(command: Sequence[str], folder: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Why no compile of a build came to buildd, and what to do, as far as the tree shows it.

    Args:
        folder: where the command ran.
        environ: the command's, with the shims.
    """
    place = folder_of(command, folder)
    cmake = _cmake_tree(place)
    if cmake is not None:
        if not cmake.launched:
            tree = _named(place, folder)
            yield f"{tree} was configured without buildd; next: buildd run -- cmake {tree}"
        return
    if _read(Path(place, "build.ninja")):
        called = _direct(_CALLED.findall(_read(Path(place, "build.ninja"))))
        if called:
            yield f"build.ninja calls {', '.join(called)} by path, past buildd; configure it below buildd run"
    else:
        yield from _make_advice(place, environ)


def _make_advice(place: str, environ: Mapping[str, str]) -> Iterator[str]:
    text = next(filter(None, (_read(Path(place, name)) for name in _MAKEFILES)), "")
    assigned = [(name, path, tool) for name, path, tool in _ASSIGNED.findall(text) if _direct([path])]
    below = _BELOW.search(text)
    if assigned:
        paths = ", ".join(path for _, path, _ in assigned)
        said = " ".join(f"{name}={tool}" for name, _, tool in assigned)
        yield f"the makefile calls {paths} by path, past buildd; next: buildd run -- make {said}"
    elif below and environ.get("PYTORCH_NVCC"):
        root = Path(environ["PYTORCH_NVCC"]).parents[1]
        yield f"the makefile calls nvcc below {below[1]}, past buildd; next: buildd run -- make {below[1]}={root}"
    elif called := _direct(_CALLED.findall(text)):
        yield f"the makefile calls {', '.join(called)} by path, past buildd; let it call compilers by name"


@dataclass(frozen=True, slots=True)
class CMakeTree:
    """What the cache of a tree says about its compilers."""

    compilers: Mapping[str, str]
    """Variable -> value, of compilers and launchers."""

    @property
    def launched(self) -> bool:
        """Whether compiles of some language go through a launcher or a shim, buildd's or another tool's."""
        values = (value for name, value in self.compilers.items() if name in LAUNCHERS and value)
        return any(values) or any(not _direct([path]) for name, path in self.compilers.items() if name not in LAUNCHERS)


def _cmake_tree(place: str) -> CMakeTree | None:
    text = _read(Path(place, _CACHE))
    return CMakeTree(dict(_ENTRY.findall(text))) if text else None


def left_trees(permanent: Path) -> list[str]:
    """The trees that call a program in the permanent folder, of those that were noted."""
    noted = dict.fromkeys(os.path.normpath(line) for line in _read(permanent / TREES).splitlines() if line[:1] == "/")
    return [tree for tree in noted if f"{permanent}/" in _read(Path(tree, _CACHE))]


def _direct(paths: Iterable[str]) -> list[str]:
    """Those that are no shims, each once."""
    return [path for path in dict.fromkeys(paths) if not os.path.isdir(os.path.join(os.path.dirname(path), MARK))]


def _named(place: str, folder: str) -> str:
    return os.path.relpath(place, folder) if place.startswith(f"{folder}/") or place == folder else place


def _read(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""
