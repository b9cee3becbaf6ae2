"""Lists the folders where compilers and linkers search, from their flags: a new file there may be found first.

Knows nvcc's, gcc's and clang's spellings. The result has no order: the real order depends on the kind of each folder
and on its other mentions, so callers must assume that any folder may come first. A superfluous folder costs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from codegen.flags import words
from codegen.plan import Argument, Place, Ref

_INCLUDE = re.compile(
    r"(-I|-{1,2}include-(?:path|directory|directory-after)|-{1,2}system-include|-isystem-after|-isystem|-iquote"
    r"|-idirafter|-cxx-isystem|-c-isystem|-internal-(?:externc-)?isystem)(=?)(.*)",
    re.DOTALL,
)
_LIBRARY = re.compile(r"(-L|-{1,2}library-path|-{1,2}library-directory)(=?)(.*)", re.DOTALL)
_LEADING_DOT = re.compile(r"\A(\./+)+(?=[^/])")
_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_FIRST = re.compile(r"-include|-imacros|-{1,2}pre-include|-{1,2}imacros|-{1,2}include(=.*)?")


def include_folders(
    include: Iterable[Argument],
    flags: Iterable[str],
    roots: Mapping[str, str],
    environment: Iterable[tuple[str, str]] = (),
) -> tuple[str, ...]:
    """Return the folders that the flags and the caller's variables name for headers.

    Args:
        include: -I flags, including those below a root.
        flags: all other flags, including those from the environment.
        roots: the tool's roots.
        environment: the variables of the tool.
    """
    flags = tuple(flags)
    found = [
        roots[argument.name] + argument.suffix if isinstance(argument, Ref) else argument[2:] for argument in include
    ]
    found += variable_folders(environment)
    found += _named(_INCLUDE, flags)
    if any(_FIRST.fullmatch(word) for word in words(flags)):
        found.append(".")  # -include searches the working folder first
    return _normal(found)


def library_folders(
    flags: Iterable[Argument], environment: Iterable[tuple[str, str]], roots: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the folders that the flags and LIBRARY_PATH name for libraries."""
    flags = tuple(flags)
    plain = [flag for flag in flags if isinstance(flag, str)]
    found = _named(_LIBRARY, plain)
    for flag in flags:
        if isinstance(flag, Ref) and flag.place is Place.ROOT and flag.prefix == "-L":
            found.append(roots[flag.name] + flag.suffix)
    return _normal((*found, *folders_in(environment, "LIBRARY_PATH")))


def without_variables(folders: Iterable[str], environment: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the folders that a tool searches for headers by itself, without those that the caller's variables name.

    What is in the others is the caller's, and may change between two compiles as the caller's sources do.
    """
    named = {os.path.normpath(folder) for folder in variable_folders(environment)}
    return tuple(folder for folder in folders if folder not in named)


def variable_folders(environment: Iterable[tuple[str, str]]) -> list[str]:
    """Return the folders that the caller's variables name for headers, as they are spelled."""
    variables = dict(environment)
    values = [value for name in _VARIABLES if (value := variables.get(name))]
    return [folder or "." for value in values for folder in value.split(os.pathsep)]  # empty: the working folder


def folders_in(environment: Iterable[tuple[str, str]], name: str) -> tuple[str, ...]:
    """Return the folders that a variable lists, as they are spelled."""
    return tuple(dict.fromkeys(folder for folder in dict(environment).get(name, "").split(os.pathsep) if folder))


def _named(option: re.Pattern[str], flags: Iterable[str]) -> list[str]:
    found: list[str] = []
    waiting = False
    for word in words(flags):
        match = option.fullmatch(word)
        if waiting:
            found += _folders(word)
            waiting = False
        elif match:
            waiting = not match[3]
            found += _folders(match[3])
    return [folder for folder in found if folder]


def _folders(value: str) -> list[str]:
    """nvcc splits a value at commas; gcc and clang do not."""
    return [value, *value.split(",")] if "," in value else [value]


def _normal(folders: Iterable[str]) -> tuple[str, ...]:
    # Behind a link, `..` leads to another place than the path's text says. gcc leaves out `./` at the beginning.
    named = ((f, _LEADING_DOT.sub("", f)) for f in folders if f)
    kept = (each.rstrip("/") or "/" for both in named for each in both)
    return tuple(dict.fromkeys(f if "/.." in f else os.path.normpath(f) for f in kept))
