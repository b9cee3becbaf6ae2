"""clang as a HIP compiler, called without hipcc: by CMake's language HIP, or with the flags of `hip::device`.

clang finds ROCm by its options, by variables and in the usual places. A dry run with the compile's own flags names what
it found. Knows which files such an answer depends on; `compiler` describes the compiler itself.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence

from codegen.compilers import hipcc
from codegen.compilers.closure import Environment

PARTS = re.compile(r"--(?:rocm|hip)-path=(/.*)|--(?:rocm|hip)-device-lib-path=(/.*)")
"""Options that say where ROCm is, or the folder of its device libraries."""
_LIBRARY = "ocml.bc"
"""A device library that every ROCm has."""


def is_hip(arguments: Sequence[str]) -> bool:
    """Tell whether a command of clang compiles HIP: by -x, else by the ending of a source's name."""
    language, named = "", False
    for before, word in itertools.pairwise(("", *arguments)):
        if before == "-x":
            language = word
        elif word.startswith("-x") and word != "-x":
            language = word[2:]
        elif word.endswith(".hip") and not word.startswith("-") and before not in ("-o", "-MF", "-MT", "-MQ"):
            named = True
    return language == "hip" or (named and not language)


def files(clang: str, flags: Iterable[str], environment: Environment) -> tuple[str, ...]:
    """Return the files on which clang's choice of a ROCm depends; most do not exist.

    Args:
        clang: its absolute path.
    """
    variables = dict(environment)
    named = [match for flag in flags if (match := PARTS.fullmatch(flag))]
    installed = os.path.dirname(os.path.realpath(clang))
    above = [os.path.normpath(os.path.join(installed, *[".."] * levels)) for levels in (1, 2, 3)]
    roots = [match[1] or "" for match in named]
    roots += [variables.get("ROCM_PATH", ""), variables.get("HIP_PATH", ""), *above, "/opt/rocm", "/usr/local", "/usr"]
    libraries = [match[2] or "" for match in named] + [variables.get("HIP_DEVICE_LIB_PATH", "")]
    libraries += [os.path.join(root, "amdgcn", "bitcode") for root in roots if root]
    known = [os.path.join(root, name) for root in roots if root for name in hipcc.VERSIONS]
    known += [os.path.join(folder, _LIBRARY) for folder in libraries if folder]
    return tuple(dict.fromkeys((clang, *known)))
