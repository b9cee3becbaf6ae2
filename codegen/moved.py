"""Folders that have another name each time, such as those that pip builds in: roots, so that keys do not hold them.

Knows their names and where a command line of gcc or clang mentions them; no file. A root's folder is still part of the
key where its path can reach the output, unless the user turned mapping on: then the compiler is told to write the
root's name instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from codegen.flags import inspect
from codegen.parsing import Compile, Family, Makes
from codegen.plan import MAPPED, Argument, Place, Ref

MAP_PATHS = "BUILDD_MAP_PATHS"
"""Variable with the folder of a build whose paths are mapped away; empty: none are."""

# pip, build and uv: <temporary folder>/<kind>-<random>, below that perhaps <project>_<random>.
_TEMPORARY = re.compile(
    r"(/(?:[^/]+/)*?(?:(pip-[a-z-]+|build-env|build-via-sdist)-[a-z0-9_]{8}|(builds-v\d+)/\.tmp[A-Za-z0-9]{6})"
    r"(?:/[^/]+_[0-9a-f]{32}(?=/|$))?)(?=/|$)"
)
_FOLDER = re.compile(r"(-I|-isystem|-iquote|-idirafter|-include|)(/.*)", re.DOTALL)
_DEBUG = re.compile(r"-g([0-3]|dwarf(-[2-5])?|gdb[0-3]?)?|-fdebug-prefix-map=.*")
_HOLDS = re.compile(r"-flto.*|-f(no-)?record-.*|-g(no-)?record-.*|-fplugin.*")
"""What such an object holds of the command line is not known."""

Roots = tuple[tuple[str, str], ...]
"""Name and folder of each."""


def roots_of(compile: Compile, folder: str, mapped: str) -> Roots:
    """The moving folders that a compile mentions, each under the name that it has in every build of this kind.

    Args:
        folder: where it is called.
        mapped: MAP_PATHS.
    """
    if compile.family is not Family.GCC or any(_HOLDS.fullmatch(flag) for flag in compile.flags):
        return ()  # nvcc and hipcc name modules after the source's absolute path
    if compile.makes is Makes.HEADER:
        return ()
    # Where a link leads to the folder the compiler may write either name.
    mark = MAPPED if os.path.isabs(mapped) and os.path.realpath(folder) == folder else ""
    found: dict[str, str] = {}
    for text in (*compile.arguments, folder) if mark else compile.flags:
        match = _FOLDER.fullmatch(text)
        root = _TEMPORARY.match(match[2]) if match else None
        if root and root[1] not in found.values():
            found[f"{mark}{root[2] or root[3]}{len(found) or ''}"] = root[1]
    if mark and os.path.realpath(mapped) == mapped != "/":
        found[f"{mark}build"] = mapped
    # One in another first: its paths are its own.
    return tuple(sorted(found.items(), key=lambda item: (-len(item[1]), item)))


def arguments(compile: Compile, roots: Roots) -> tuple[Argument, ...]:
    """The compiler's arguments with references to roots, and with those that map them away."""
    found: list[Argument] = []
    for text in compile.arguments:
        match = _FOLDER.fullmatch(text)
        # The source's own path can reach the output (a name for its initialisers).
        if match and (text != compile.source or _are_mapped(roots)):
            found.append(_reference(text, match[1], match[2], roots))
        else:
            found.append(text)
    if _are_mapped(roots):
        # Of several that fit the compiler takes the last.
        found += [
            Ref(place=Place.ROOT, name=name, prefix="-ffile-prefix-map=", suffix=f"=/{name.removeprefix(MAPPED)}")
            for name, _ in reversed(roots)
        ]
    return tuple(found)


def source(compile: Compile, roots: Roots, folder: str) -> str:
    """The source as a key may name it."""
    path = compile.source
    below = any(path.startswith(f"{root}/") for _, root in roots)
    return os.path.relpath(path, folder) if below and _are_mapped(roots) else path


def is_mapped(flags: Sequence[str], roots: Roots, folder: str) -> bool:
    """Whether mapping leaves no absolute path in the output: the folder is below a root, and only debug information
    would hold it."""
    below = any(folder == root or folder.startswith(f"{root}/") for _, root in roots)
    rest = inspect(flag for flag in flags if not _DEBUG.fullmatch(flag))
    return below and _are_mapped(roots) and not rest.path_sensitive


def _are_mapped(roots: Roots) -> bool:
    return any(name.startswith(MAPPED) for name, _ in roots)


def _reference(text: str, option: str, path: str, roots: Roots) -> Argument:
    for name, folder in roots:
        if path == folder or path.startswith(f"{folder}/"):
            return Ref(place=Place.ROOT, name=name, prefix=option, suffix=path[len(folder) :])
    return text


def listed(roots: Roots, paths: Iterable[str]) -> bytes:
    """Files that a tool has read, with the roots as they were; each string with a final NUL."""
    head = [part for root in roots for part in root]
    return b"".join(os.fsencode(part) + b"\0" for part in (*(("", *head, "") if head else ()), *paths))


def read(content: bytes, roots: Roots) -> tuple[list[str], list[tuple[bytes, bytes]]]:
    """What `listed` wrote, as it is called now; and for texts of then: what stands for what now.

    Args:
        roots: of now.
    """
    parts = [os.fsdecode(part) for part in content.split(b"\0")[:-1]]
    if not parts or parts[0]:
        return parts, []
    end = parts.index("", 1)
    now = dict(roots)
    before = list(zip(parts[1:end:2], parts[2:end:2], strict=True))
    moves = [(folder, now[name]) for name, folder in before if now.get(name, folder) != folder]
    paths = [_moved(path, moves) for path in parts[end + 1 :]]
    return paths, [(os.fsencode(old), os.fsencode(new)) for old, new in moves]


def _moved(path: str, moves: Iterable[tuple[str, str]]) -> str:
    for old, new in moves:
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path
