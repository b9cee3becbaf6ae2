"""Treats a virtual environment that a compile names as a root: the same compile for another one has the same key.

setuptools names the environment's folder for headers (-I/home/me/env/include) in each compile, and torch's extensions
name torch's headers in it. Whether the environment's path can reach a result is found out as for a checkout
(`checkout_roots`), but debug information mentions the environment only if a file in it was read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from codegen.compilers import checkout_roots, temporary_roots
from codegen.compilers.command_parser import Compile, Family, Makes
from codegen.compilers.temporary_roots import Roots
from codegen.flags import inspect

_MARKS = ("pyvenv.cfg", "conda-meta")
"""What stands at the top of an environment of Python's venv (uv, virtualenv, Poetry), and of one of conda's."""


def roots_of(
    compile: Compile, folder: str, flags: Sequence[str], others: Roots, installed: Sequence[str], *, clang: bool = False
) -> Roots:
    """Return the environments that a compile of gcc, clang or nvcc names.

    An environment in another root counts from there. nvcc names a module after folders, so the checkout must be a root.

    Args:
        folder: the working folder of the compile.
        flags: all flags of the tool, also those from its environment.
        others: the roots that the compile has.
        installed: folders that belong to the tool or the system.
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
    found = (
        environment
        for environment in _environments(temporary_roots.folders_in(compile.arguments), others)
        if checkout_roots.is_plain(environment)
        and not any(checkout_roots.is_in(path, environment) for path in own)
        and not environment.startswith(mapped)
    )
    return tuple((checkout_roots.environment_name(number), path) for number, path in enumerate(found))


def read_in(roots: Roots, files: Iterable[str]) -> set[str]:
    """Return the environments among the roots that one of the files lies in."""
    folders = [(name, f"{folder}/") for name, folder in roots if checkout_roots.is_environment(name)]
    return {name for path in files for name, folder in folders if path.startswith(folder)}


def _environments(paths: Iterable[str], others: Roots) -> Iterator[str]:
    """Yield the environments around the paths, each once."""
    looked: set[str] = set()
    known = (*checkout_roots.SYSTEM, *(path for _, path in others))
    for path in paths:
        while path not in looked and path != "/" and not any(checkout_roots.is_in(path, top) for top in known):
            looked.add(path)
            if any(os.path.exists(f"{path}/{mark}") for mark in _MARKS):
                yield path
                break
            path = os.path.dirname(path)
