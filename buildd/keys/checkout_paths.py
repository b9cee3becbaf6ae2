"""Whether the files that a run read lead to a moving root's own folder, so that its result holds for that folder alone.

A root moves where another build may have another folder in its place: a checkout's, one with a random name, a mapped
one. A file may name the folder: `#include "/home/u/one/x.h"` means the same file in every checkout. A file may also
stand outside of the folder and be found through it. Knows the request's files; knows no tool and no store.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass

from blake3 import blake3

from buildd.files.snapshot import Snapshot
from buildd.keys.request_files import RequestFiles
from buildd.native.bare_text import BareText
from codegen.compilers.checkout_roots import (
    OF_ALL,
    is_checkout,
    is_level,
    mapped_in,
    moving,
    names_in_text,
    searched_whole,
)
from codegen.compilers.environment_roots import TOOLKIT, TOOLKIT_BEHIND_LINKS
from codegen.compilers.temporary_roots import Roots
from codegen.plan import Action, Place, Ref, Tool

_MOST = 1 << 15
_OWN = ("/c++/", "/gcc/", "/clang/")
_CLIMBING = re.compile(rb"(include\w*|import)[ \t]*\(?[ \t]*([\"<])([^\">\n]*\.\./[^\">\n]*)[\">]", re.IGNORECASE)
_COMPUTED = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*(?:include\w*|import)\b(?!\s*[\"<])", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Mentions:
    """How a text's includes can lead to a root's folder, or out of it."""

    names: frozenset[str]
    """Roots whose folder the text names, comments included."""
    used: frozenset[str]
    """Roots whose folder it names elsewhere than in a comment."""
    climbs: tuple[tuple[bool, str], ...]
    """Names with `..` that it includes or asks for; True for a name that is looked for beside the file first."""
    computes: bool
    """A macro names a file."""
    begins: frozenset[str]
    """Roots whose first folder the text names: macros may add the rest."""


_LINKED = (b"\x7fELF", b"!<arch>\n")
"""How objects, libraries and archives begin. They may have a gigabyte. The key of a link has their contents: a path in
them is the same one in every checkout. A thin archive names files, and is searched."""
_MAGIC_BYTES = 8
_searched: OrderedDict[tuple[str, Roots], _Mentions] = OrderedDict()
"""By the file's digest: all compiles of a project read the same headers."""
_lock = threading.Lock()


def compilers_own(path: str, tool: Tool) -> bool:
    """Whether a header belongs to the compiler. Such headers only hand `__FILE__` to functions at run time, and then
    the object shows the path."""
    moved = [folder for name, folder in tool.roots if is_checkout(name)]  # a toolkit may be one
    if any(path.startswith(f"{folder}/") for _, folder in tool.roots if folder not in moved):
        return True
    return any(path.startswith(f"{folder}/") and any(own in f"{folder}/" for own in _OWN) for folder in tool.search)


def installed(path: str, tool: Tool) -> bool:
    """Whether a file came with the tool or the system: it asks for no file of a project under a computed name."""
    return path.startswith(installed_folders(tool))


def installed_folders(tool: Tool) -> tuple[str, ...]:
    """The folders of `installed`, each with a slash behind it."""
    return (*(f"{folder}/" for folder in tool.search), "/usr/")


def held(
    snapshot: Snapshot, bare: BareText, roots: Roots, paths: Iterable[str], *, by_content: bool
) -> set[str] | None:
    """The roots whose folder some of the files mention; None where a file is no longer as the run read it.

    Args:
        by_content: a mention in a comment counts.
    """
    found: set[str] = set()
    for path in paths:
        digest = snapshot.digest(path)
        if digest is None or snapshot.is_aside(path):
            continue
        with _lock:
            known = _searched.get((digest, roots))
        if known is None:
            try:
                with open(snapshot.absolute(path), "rb") as file:
                    head = file.read(_MAGIC_BYTES)
                    if head.startswith(_LINKED):
                        continue
                    content = head + file.read()
            except OSError:
                return None
            if blake3(content).hexdigest() != digest:
                return None
            known = _mentions(content, bare, roots)
            with _lock:
                _searched[digest, roots] = known
                while len(_searched) > _MOST:
                    _searched.popitem(last=False)
        found |= known.names if by_content else known.used
    return found


def _mentions(content: bytes, bare: BareText, roots: Roots) -> _Mentions:
    text = content.replace(b"\\\n", b"")
    climbs = ((quote == b'"', os.fsdecode(name)) for _, quote, name in _CLIMBING.findall(text))
    names = names_in_text(content, roots)
    form = bare.form(content) if names else None
    return _Mentions(
        names=frozenset(names),
        used=frozenset(names if form is None else names_in_text(form, roots)),
        climbs=tuple(dict.fromkeys(climbs)),
        computes=_COMPUTED.search(text) is not None,
        begins=frozenset(name for name, folder in roots if _begins(text, os.fsencode(_first(folder)))),
    )


def _begins(text: bytes, first: bytes) -> bool:
    """Whether a text names a folder so that more can follow. A closed string ends, as "/tmp" in <stdio.h> does."""
    return first in text and first in text.replace(b'"%b"' % first, b"")


def _first(folder: str) -> str:
    return "/".join(folder.split("/")[:2])


def escaping(files: RequestFiles, action: Action, tool: Tool, roots: Roots, paths: Iterable[str]) -> set[str]:
    """The roots that an include can leave, or reach by a name that only the preprocessor knows.

    Whether a file lies outside of a root, where an include with `..` is searched, no input of another build tells.
    `held` must have seen the files.
    """
    snapshot = files.snapshot
    folders = [folder for _, folder in roots]
    toolkit = [folder for name, folder in tool.roots if name in (TOOLKIT, TOOLKIT_BEHIND_LINKS)]
    searched = (*action.search, *(folder for folder in tool.search if _is_below(folder, toolkit)))
    # Real paths: build/../include does not lie below build.
    search = [snapshot.absolute(files.searched(snapshot.absolute(folder))) for folder in searched]
    # Of the command's words, only those with a definition can become a macro's text.
    given = [word for word in action.argv if isinstance(word, str) and "=" in word]
    given += [value for name, value in action.environment if name.endswith(("_FLAGS", "_FLAGS_APPEND"))]
    begun = {name for word in given for name, folder in roots if f"{_first(folder)}/" in word}
    guessable = {name for name, _ in searched_whole(roots)}
    computes, found = False, set[str]()
    for path in paths:
        with _lock:
            known = _searched.get((snapshot.digest(path) or "", roots))
        if known is None:
            continue
        begun |= known.begins
        if not known.computes and not known.climbs:
            continue
        place = os.path.dirname(os.path.normpath(snapshot.absolute(path)))
        # The names that Thrust computes lead to its own headers.
        computes = computes or (known.computes and _is_below(place, folders) and not _is_below(place, toolkit))
        for is_beside, name in known.climbs:
            beside = is_beside and os.path.lexists(os.path.join(place, name))
            for folder in (place,) if beside else (place, *search):
                leads = os.path.normpath(os.path.join(folder, name))
                above = tuple(root for root in roots if _is_below(leads, (root[1],)))
                found.update(root for root, top in roots if _is_below(folder, (top,)) and _leaves(root, above))
    return found | (begun & guessable if computes else set())


def beside(snapshot: Snapshot, action: Action, tool: Tool, paths: Iterable[str]) -> set[str]:
    """The roots that an action's own flags map away, and beside which a file lies whose path begins as the root's does.

    Of /p-1/x.h, -ffile-prefix-map=/p=. leaves .-1/x.h. In a checkout where no path begins so, it leaves the path.
    """
    roots = moving(tool.roots)
    cut = mapped_in(action, roots, OF_ALL)
    if not cut:
        return set()
    places = [snapshot.absolute(path) for path in paths]
    return {
        name
        for name, folder in roots
        if name in cut and any(place.startswith(folder) and not place.startswith(f"{folder}/") for place in places)
    }


def told_roots(action: Action, tool: Tool) -> set[str]:
    """The roots whose path a tool is told: by the command, which refers to them, or as the place of an input."""
    told = {word.name for word in action.argv if isinstance(word, Ref) and word.place is Place.ROOT}
    places = {folder for name, folder in tool.roots if name in told}  # a toolkit has two names
    given = [path for path in action.inputs if path.startswith("/")]
    return told.union(
        name
        for name, folder in moving(tool.roots)
        if folder in places or any(_is_below(path, (folder,)) for path in given)
    )


def behind_links(tool: Tool) -> set[str]:
    """The root of the toolkit's real folder, if the toolkit was called by a link: it may write either path, and the
    real one is not searched for."""
    roots = dict(tool.roots)
    real = roots.get(TOOLKIT_BEHIND_LINKS)
    return set() if real in (None, roots.get(TOOLKIT)) else {TOOLKIT_BEHIND_LINKS}


def elsewhere_too(files: RequestFiles, tool: Tool, read: Iterable[str], told: Collection[str]) -> Container[str]:
    """The files below the project, or below a moving root, that another checkout reads under the same absolute path.

    A text names them so, a variable such as CPATH, or a word of the command that refers to no root.

    Args:
        read: the files that the tool said it read, as it spelled them.
        told: see `told_roots`.
    """
    snapshot = files.snapshot
    named = tuple(f"{folder}/" for name, folder in tool.roots if name in told)
    others = tuple(f"{folder}/" for name, folder in moving(tool.roots) if name not in told)
    found = set[str]()
    for spelled in read:
        if not spelled.startswith("/"):
            continue
        path = files.normal(spelled)
        if path.startswith("/") and not path.startswith(others):
            continue  # most headers
        if not snapshot.absolute(path).startswith(named):
            found.add(path)
    return found


def is_outside(path: str, action: Action, tool: Tool) -> bool:
    """Whether a path that a worker asked for is neither the project's nor one of the worker's Python or PYTHONPATH.

    A module may have found it through the project's own folder.
    """
    python = os.path.dirname(dict(tool.roots).get("python", ""))
    return (
        path.startswith("/")
        and "-packages/" not in path
        and not _is_below(path, filter(os.path.isabs, (*action.search, python)))
    )


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def left(files: RequestFiles, roots: Roots, read: Iterable[str]) -> set[str]:
    """The roots through which a file outside of them was read, by a path with `..` in it, and those in which a file
    was read by another path than the root's."""
    found: set[str] = set()
    places = [(root, os.path.realpath(root[1])) for root in roots]  # a link may lead to a toolkit
    tops = tuple(f"{place}/" for _, place in places)
    for spelled in read:
        if not spelled.startswith("/"):
            continue
        real = files.snapshot.absolute(files.normal(spelled))
        if not f"{real}/".startswith(tops) and "/../" not in spelled:  # most headers
            continue
        around = [(root, place) for root, place in places if _is_below(real, (place,))]
        found.update(root[0] for root, place in around if not (_stays(spelled, root[1]) or _stays(spelled, place)))
        above = tuple(root for root, _ in around)
        if "/../" in spelled:
            found.update(name for name, folder in roots if spelled.startswith(f"{folder}/") and _leaves(name, above))
    return found


def _leaves(name: str, above: Roots) -> bool:
    """Whether a path with `..` through a root leads elsewhere in another checkout.

    Args:
        above: the roots that hold the file. Each of another name than this one may lie elsewhere in relation to it,
            unless both names are a number of levels.
    """
    names = {root for root, _ in above}
    return name not in names and not (is_level(name) and any(map(is_level, names)))


def _stays(spelled: str, folder: str) -> bool:
    """Whether a path leads below a folder and out of it at no place: `/p/build/../build/x` names the folder `build` by
    its own name, which another build folder has not."""
    if not _is_below(spelled, (folder,)):
        return False
    depth = 0
    for part in spelled[len(folder) :].split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return False
    return True
