"""The walk of an action as people read it: a folder's path in place of the name that a key has for the folder.

The name of a checkout's folder says how far it lies above the working folder, and a walk of last time may name a folder
by a name that this time has none. Pure: compares texts; asks no file system.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from buildd.keys.action_key import SHOWN, Component
from buildd.keys.file_names import spelled
from codegen.compilers.temporary_roots import BUILD
from codegen.plan import MAPPED, Place

_NAMED = re.compile(r"\{([^{}:]+)\}(/.*)", re.DOTALL)
_ABOVE = re.compile(r"checkout(?:-(\d+))?")
_OBJECT = re.compile(r"\b(object|program) [0-9a-f]{16}( with its depfile)?")
_MAP, _TO = "-ffile-prefix-map=", f"=/{BUILD.removeprefix(MAPPED)}"
"""As `temporary_roots.mapping` writes it."""
_WRITTEN = re.compile(r"\{" + re.escape(MAPPED) + r"([^{}]*)\}")
"""A mapped folder in a value, in whose place the compiler writes its name behind a slash."""
_OURS = ("variable PWD", "variable BUILDD_SHOWN")
"""No tool gets the caller's PWD, and none the other. `foreign.compile_plan` has them in keys."""
_FIELDS = 4
"""Fields of a reference in a "command" component."""


def told(
    before: Sequence[Component], now: Sequence[Component], roots: Iterable[tuple[str, str]], project: str
) -> tuple[list[Component], list[Component]]:
    """Two walks of one action with paths in place of roots' names, as far as the paths are known.

    Args:
        roots: the present roots.
        project: the working folder, which both walks have.
    """
    folders = dict(roots)
    read = list(_walk(now, folders))
    paths = [name.removeprefix("input ") for name, _ in read if name.startswith("input ")]
    names = (_NAMED.match(name.removeprefix("input ")) for name, _ in before if name.startswith("input "))
    lost = {match[1]: match[2] for match in names if match and match[1] not in folders}
    command = dict(before).get("command", "")
    lost |= {name: "" for name in _rooted(command) if name not in {*folders, *lost}}
    for name, below in lost.items():
        if folder := _folder(name, below, paths, project):
            folders[name] = folder
    return list(_walk(before, folders)), read


def _folder(name: str, below: str, paths: Iterable[str], project: str) -> str:
    """The folder that a name of last time stood for; empty if nobody knows."""
    if match := _ABOVE.fullmatch(name):
        return "/".join(project.split("/")[: -int(match[1])]) if match[1] else project
    # `buildd run` was called there, or it was mapped: above the working folder, where the input still is.
    found = (path.removesuffix(below) for path in paths if below and path.endswith(below))
    return next((folder for folder in found if f"{project}/".startswith(f"{folder}/")), "")


def _walk(walk: Iterable[Component], folders: Mapping[str, str]) -> Iterator[Component]:
    for name, value in walk:
        if name in _OURS:
            yield SHOWN, _WRITTEN.sub(r"/\1", value)
        elif name == "command":
            yield name, "\0".join(_command(value, folders))
        elif match := _OBJECT.search(name):
            yield name.replace(match[0], match[1]), value
            if match[2]:
                yield "depfile", "asked for"
        else:
            yield spelled(name, folders.items()), spelled(value, folders.items())


def _command(encoded: str, folders: Mapping[str, str]) -> Iterator[str]:
    """The fields of a command. Its first argument, the program, stays: an explanation compares it by itself."""
    for number, (kind, *rest) in enumerate(_arguments(encoded)):
        name, prefix, suffix = (each[1:] for each in rest or ("", "", ""))
        if kind != f"@{Place.ROOT.value}" or not number:
            yield from (kind, *rest)
        elif prefix.endswith(_MAP) and name == BUILD and suffix == _TO:
            yield "=--map-paths"  # what the user wrote
        elif name in folders:
            yield f"={prefix}{folders[name]}{suffix}"
        else:
            yield f"={prefix}...{suffix}"


def _rooted(encoded: str) -> Iterator[str]:
    """The roots that a command refers to."""
    for number, (kind, *rest) in enumerate(_arguments(encoded)):
        if number and kind == f"@{Place.ROOT.value}":
            yield rest[0][1:]


def _arguments(encoded: str) -> Iterator[list[str]]:
    fields = encoded.split("\0")
    at = 0
    while at < len(fields):
        length = _FIELDS if fields[at][:1] == "@" and at + _FIELDS <= len(fields) else 1
        yield fields[at : at + length]
        at += length
