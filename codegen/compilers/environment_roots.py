"""Treats a virtual environment that a compile names as a root, and the CUDA toolkit that nvcc belongs to: the same
compile for another one has the same key.

setuptools names the environment's folder for headers (-I/home/me/env/include) in each compile, and torch's extensions
name torch's headers in it. A toolkit may lie in an environment too, or have another prefix on another machine. Whether
such a path can reach a result is found out as for a checkout (`checkout_roots`), but debug information mentions an
environment only if a file in it was read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from codegen.compilers import checkout_roots, temporary_roots
from codegen.compilers.command_parser import Compile, Family, Makes
from codegen.compilers.temporary_roots import Roots
from codegen.flags import inspect

TOOLKIT = f"{checkout_roots.ENVIRONMENT}-toolkit"
"""Name of the root of nvcc's toolkit, by the path that nvcc was called by."""
TOOLKIT_BEHIND_LINKS = "toolkit behind links"
"""Name of the toolkit's real folder. A tool that was called by a link may write that path too."""
_MARKS = ("pyvenv.cfg", "conda-meta", "bin/nvcc")
"""What stands at the top of an environment of Python's venv (uv, virtualenv, Poetry), of one of conda's, and of a
toolkit."""
_SHARED = ("/", "/usr", "/usr/local", "/opt")
"""Folders that hold other things too."""
_SYSTEM = ("/usr/include", "/usr/lib", "/lib", "/lib64")


def roots_of(
    compile: Compile,
    folder: str,
    flags: Sequence[str],
    others: Roots,
    installed: Sequence[str],
    *,
    toolkit: str = "",
    clang: bool = False,
) -> Roots:
    """Return the environments that a compile of gcc, clang or nvcc names, and nvcc's toolkit.

    An environment in another root counts from there. nvcc names a module after folders, so the checkout must be a root.

    Args:
        folder: the working folder of the compile.
        flags: all flags of the tool, also those from its environment.
        others: the roots that the compile has.
        installed: other folders that belong to the tool or the system.
        toolkit: the folder of nvcc's toolkit; empty if it must stay in the key.
        clang: the compiler is clang.
    """
    nvcc = compile.family is Family.NVCC
    if compile.makes is not Makes.OBJECT or compile.objects or compile.family not in (Family.GCC, Family.NVCC):
        return ()
    if not checkout_roots.may_move(compile, flags, clang=clang) or checkout_roots.is_packed(flags):
        return ()
    if nvcc and (not others or inspect(flags).path_sensitive):
        return ()
    source = os.path.normpath(os.path.join(folder, compile.source))
    output = os.path.normpath(os.path.join(folder, compile.output))
    own = (folder, source, output, *installed, *(path for _, path in others))
    mapped = checkout_roots.mapped_folders(flags)

    def may_move(path: str) -> bool:
        within = any(checkout_roots.is_in(each, path) for each in own)
        return path not in _SHARED and not within and not path.startswith(mapped)

    named = _environments(temporary_roots.folders_in(compile.arguments), others)
    environments = (path for path in named if path != toolkit and checkout_roots.is_plain(path) and may_move(path))
    found = [(f"{checkout_roots.ENVIRONMENT}-{number}", path) for number, path in enumerate(environments)]
    if nvcc and checkout_roots.has_one_spelling(toolkit) and may_move(toolkit):
        found.append((TOOLKIT, toolkit))
    return tuple(found)


def read_in(roots: Roots, files: Iterable[str]) -> set[str]:
    """Return the environments among the roots that one of the files lies in."""
    folders = [(name, f"{folder}/") for name, folder in roots if checkout_roots.is_environment(name)]
    return {name for path in files for name, folder in folders if path.startswith(folder)}


def _environments(paths: Iterable[str], others: Roots) -> Iterator[str]:
    """Yield the environments around the paths, each once."""
    looked: set[str] = set()
    known = (*_SYSTEM, *(path for _, path in others))
    for path in paths:
        while path not in (*looked, *_SHARED) and not any(checkout_roots.is_in(path, top) for top in known):
            looked.add(path)
            if any(os.path.exists(f"{path}/{mark}") for mark in _MARKS):
                yield path
                break
            path = os.path.dirname(path)
