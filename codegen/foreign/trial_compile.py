"""Tells compiler calls that a configure step makes to try the compiler out from compiles of a project.

CMake, Meson, autoconf and Go compile small sources in scratch folders of their own, and remove those folders. What such
a call writes is never part of a build. Knows names alone; reads no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise

_SCRATCH = re.compile(
    r"/CMakeFiles/(CMakeScratch/TryCompile-[^/]+|CMakeTmp|[0-9.]+[^/]*/CompilerId[^/]+)/"
    r"|/meson-private/(tmp[^/]*/|sanitycheck)"
)
"""Only the folders of single tries: a checkout may lie anywhere."""
_GOS_SOURCE = re.compile(r"/cgo-gcc-input-\d+\.c|/go-link-\d+/trivial\.c")
"""cgo asks the compiler what a name of C means, with errors on purpose, and Go's linker which options there are."""
_NO_FILE = "__cmake_determine_cuda"
"""CMake calls `nvcc -v` with this name, of which there is no file, to read where nvcc's parts are."""
_CONFTEST = "conftest"
"""The name of each source that a script of autoconf writes, and of what is made from it."""


def is_trial(command: Sequence[str], folder: str) -> bool:
    """Tell whether a call only tries the compiler out.

    Only the place of the output counts, since a configure step may try a source of the project, or one of CMake's own:
    an object in a scratch folder is removed with it. For autoconf, which works in the build folder itself, source and
    output must have its own name. What is made of nothing, or written to /dev/null, is part of no build either.

    Args:
        command: the tool, then its arguments.
        folder: where the call is made, absolute.
    """
    if _NO_FILE in command[1:]:
        return True
    output = _output(command)
    if output == os.devnull or _reads_nothing(command):
        return True
    place = os.path.normpath(os.path.join(folder, output or "a.out"))
    if _SCRATCH.search(place):
        return True
    named = [word for word in command[1:] if not word.startswith("-") and word != output]
    if any(_GOS_SOURCE.search(os.path.join(folder, name)) for name in named):
        return True
    if "-E" in command and named and all(_SCRATCH.search(os.path.join(folder, name)) for name in named):
        return True
    sources = list(map(os.path.basename, named))
    made = os.path.basename(output) if output else _CONFTEST
    return bool(sources) and {name.partition(".")[0] for name in (*sources, made)} == {_CONFTEST}


def _reads_nothing(command: Sequence[str]) -> bool:
    """Tell whether /dev/null is a source, as Kbuild's `cc-option` has it."""
    return any(
        word == os.devnull and before not in ("-include", "-imacros", "-MF") for before, word in pairwise(command)
    )


def _output(command: Sequence[str]) -> str:
    """The word behind the last -o; empty if there is none."""
    found = ""
    for index, word in enumerate(command[1:], 1):
        if word in ("-o", "--output-file"):
            found = command[index + 1] if index + 1 < len(command) else ""
        elif word.startswith("-o") and len(word) > 2 and "=" not in word:
            found = word[2:]
    return found
