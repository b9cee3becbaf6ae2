"""Keeps mapped folders out of the line information of device code (nvcc's -lineinfo).

cicc has no option that maps paths. It writes each source's path once, into a `.file` line of its PTX, and ptxas takes
it from there; fatbinary gets the source's path as an option. Knows both texts, runs nothing. Full debug information
(-G) has paths in other places, and is not mapped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from codegen.compilers.temporary_roots import Roots
from codegen.plan import MAPPED, Argument

VARIABLE = "FILE_PREFIX_MAP"
"""Variable of a cicc whose output is mapped; cicc does not read it. With it the step's key tells both outputs apart."""
_LINES = re.compile(r"-{1,2}(generate-line-info|lineinfo)")
_FILE = re.compile(rb'^(\s*\.file\s+\d+\s+")([^"\\\n]*)(?=")', re.MULTILINE)
_IDENT = "--ident="


def environment(argv: Sequence[Argument], roots: Roots) -> dict[str, str]:
    """Return the variable for a step if its output has line information with mapped folders in it."""
    names = [name for name, _ in roots if name.startswith(MAPPED)]
    has_lines = any(isinstance(word, str) and _LINES.fullmatch(word) for word in argv)
    return {VARIABLE: ":".join(names)} if names and has_lines else {}


def ident(word: Argument, roots: Roots) -> Argument:
    """Return a word of fatbinary's command line with mapped folders under their names."""
    if not isinstance(word, str) or not word.startswith(_IDENT):
        return word
    return _IDENT + _mapped(word.removeprefix(_IDENT), roots)


def mapped(ptx: bytes, roots: Roots) -> bytes:
    """Return PTX whose `.file` lines have mapped folders under their names."""

    def put(match: re.Match[bytes]) -> bytes:
        return match[1] + _mapped(match[2].decode(errors="surrogateescape"), roots).encode(errors="surrogateescape")

    return _FILE.sub(put, ptx)


def _mapped(path: str, roots: Roots) -> str:
    for name, folder in roots:
        if name.startswith(MAPPED) and (path == folder or path.startswith(f"{folder}/")):
            return f"/{name.removeprefix(MAPPED)}{path[len(folder) :]}"
    return path
