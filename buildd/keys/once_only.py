"""Headers that a compiler may take for one that it has read: inputs that its list of files does not name.

After `#pragma once` or `#import`, gcc skips a header whose content and time of change, in whole seconds, are those of
one that it has read (`has_unique_contents` in gcc's libcpp/files.cc). It lists the first one alone. With a precompiled
header it compares contents with those of the headers in there, whatever their times are. clang skips another name of
the same inode. So a skipped header is an input, and which of two equal headers are one to the compiler is a question
among the inputs (`questions`). Knows the request's files; knows no store.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from blake3 import blake3

from buildd.files.digests import Fact
from buildd.files.snapshot import Snapshot
from buildd.files.traits import Traits
from buildd.keys.checkout_paths import installed_folders
from buildd.keys.precompiled import forced
from buildd.keys.questions import TWINS, path_of
from buildd.keys.request_files import RequestFiles
from codegen.plan import Action, Discovery, Tool
from codegen.reach import read_regular
from protocol.messages import Digest

_MOST = 1 << 15
_FORM = 64
"""Last digits of a filed digest: of a whole content, or of a bare form without lines. Equal contents share them."""
_INCLUDED = re.compile(rb"(?:include|include_next|import)[ \t]*(?:<([^>\n]+)>|\"([^\"\n]+)\")")
_COMPUTED = re.compile(rb"^[ \t]*(?:#|%:)[ \t]*(?:include\w*|import)\b(?![ \t]*[\"<])", re.MULTILINE)
_NOTHING: frozenset[str] = frozenset()
_Place = tuple[str, str]
"""The folder part of a name that is included, and the name in that folder."""


@dataclass(frozen=True, slots=True)
class _Includes:
    """What a text includes, in passages that the preprocessor leaves out, too."""

    names: frozenset[_Place] = frozenset()
    quoted: frozenset[_Place] = frozenset()
    """Those that are looked for beside the text first."""
    computed: bool = False
    """A macro names a file."""


_includes: OrderedDict[Digest, _Includes] = OrderedDict()
"""By the file's digest: all compiles of a project read the same headers."""
_lock = threading.Lock()


def skipped(
    files: RequestFiles, action: Action, tool: Tool, used: Sequence[str], *, precompiled: bool = False
) -> list[str]:
    """The headers that the compiler may have skipped, and so did not list; perhaps more.

    Headers that came with the tool or the system are left out: nobody edits them.

    Args:
        used: the undeclared files that the tool read.
        precompiled: a precompiled header may have been used. Nobody knows what it holds: every header counts that is to
            be read once.
    """
    if not action.discovery.is_clang and action.discovery not in (Discovery.GCC, Discovery.GCC_LINKER):
        return []
    snapshot = files.snapshot
    facts = {path: fact for path in (*action.inputs, *used) if (fact := _fact(snapshot, path)) is not None}
    installed = installed_folders(tool)
    own = {path: fact for path, fact in facts.items() if not path.startswith(installed)}
    imports = any(Traits.IMPORT in fact.traits for fact in own.values())
    once = {path: fact for path, fact in facts.items() if imports or fact.has(Traits.ONCE)}
    if not once and not precompiled:
        return []
    digests = {fact.digest for fact in once.values()}
    sizes = {fact.stamp.size for fact in once.values()}
    # The names of files in the list may lead up, as in ../include/x.h; those of the search are absolute there.
    listed = {files.normal(snapshot.absolute(path)) for path in facts}
    found: dict[str, None] = {}
    for path in _candidates(files, action, tool, own, once):
        if path in facts:
            continue
        stamp = snapshot.files.stamp(snapshot.absolute(path))
        if stamp is None or not (precompiled or stamp.size in sizes):
            continue
        fact = _fact(snapshot, path)
        if fact is None or not (
            fact.digest in digests or (precompiled and (imports or fact.traits & (Traits.ONCE | Traits.IMPORT)))
        ):
            continue
        normal = files.normal(snapshot.absolute(path))
        if normal not in listed and not normal.startswith(installed):
            found[normal] = None
    return list(found)


def questions(
    snapshot: Snapshot, action: Action, tool: Tool, filed: Sequence[tuple[str, Digest]], skipped: Iterable[str]
) -> dict[str, Digest]:
    """A question with its answer for each group of files that may be one to the compiler.

    Args:
        filed: the paths of an input set with their digests, in its order.
        skipped: those that `skipped` has found.
    """
    alone, installed = frozenset(skipped), installed_folders(tool)
    groups = {form: paths for form, paths in _groups(filed).items() if len(paths) > 1 or paths[0] in alone}
    if not groups:
        return {}
    read = (*(path for path, _ in filed), *action.inputs)
    imports = any(
        fact is not None and Traits.IMPORT in fact.traits for fact in (_fact(snapshot, path) for path in read)
    )

    def is_once(path: str) -> bool:
        fact = _fact(snapshot, path)
        return imports or (fact is not None and Traits.ONCE in fact.traits)

    return {
        form + TWINS: _answer(snapshot, action, paths)
        for form, paths in groups.items()
        if not alone.isdisjoint(paths)
        or (any(map(is_once, paths)) and not all(path.startswith(installed) for path in paths))
    }


@dataclass(frozen=True, slots=True)
class Twins:
    """The files of an input set that may be one to the compiler."""

    paths: frozenset[str] = frozenset()
    difference: str = ""
    """Why the input set does not match: the compiler would choose otherwise now. Empty if it would not."""


def twins(
    snapshot: Snapshot, action: Action, filed: Sequence[tuple[str, Digest]], asked: Mapping[str, Digest]
) -> Twins:
    """The files that an input set's questions are about, and whether an answer is another one now.

    Args:
        filed: as `questions`.
        asked: questions of the input set with their answers.
    """
    wanted = {path_of(question): answer for question, answer in asked.items() if question.endswith(TWINS)}
    if not wanted:
        return Twins()
    groups = {form: paths for form, paths in _groups(filed).items() if form in wanted}
    differing = (paths for form, paths in groups.items() if _answer(snapshot, action, paths) != wanted[form])
    why = next((f"input {paths[-1]}: no longer one with {paths[0]}, or one with it now" for paths in differing), "")
    return Twins(frozenset(path for paths in groups.values() for path in paths), why)


def _groups(filed: Iterable[tuple[str, Digest]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for path, digest in filed:
        groups.setdefault(digest[-_FORM:], []).append(path)
    return groups


def _answer(snapshot: Snapshot, action: Action, paths: Iterable[str]) -> Digest:
    """The contents of a group's files, and which of them are one to the compiler."""
    numbers: dict[object, int] = {}
    said = [str(action.discovery.is_clang)]  # two compilers may have read the same files
    for path in paths:
        fact = snapshot.fact(path)
        one: object = path
        if fact is not None and action.discovery.is_clang:
            one = fact.stamp.device, fact.stamp.inode
        elif fact is not None:
            one = fact.digest, fact.stamp.mtime_ns // 1_000_000_000
        said.append(f"{snapshot.digest(path)} {numbers.setdefault(one, len(numbers))}")
    return Digest(hashlib.sha256("\n".join(said).encode()).hexdigest())


def _fact(snapshot: Snapshot, path: str) -> Fact | None:
    return None if snapshot.is_produced(path) else snapshot.fact(path)


def _candidates(
    files: RequestFiles, action: Action, tool: Tool, own: Mapping[str, Fact], once: Iterable[str]
) -> Iterator[str]:
    """The files to which an include could lead.

    Args:
        own: the project's texts that were read.
        once: files that are read once. Where a macro names a file, their names count in each folder.
    """
    everywhere: set[_Place] = {_split(name) for name in forced(action, tool)}
    beside: dict[str, set[_Place]] = {}
    computed = False
    for path, fact in own.items():
        includes = _includes_in(files.snapshot.absolute(path), fact)
        computed = computed or includes.computed
        everywhere |= includes.names
        beside.setdefault(os.path.dirname(path) or ".", set()).update(includes.quoted)
    if computed:
        places = {("", os.path.basename(path)) for path in once}
        everywhere |= places
        for several in beside.values():
            several |= places
    heads = _by_head(everywhere)
    for folder in dict.fromkeys(_real(files, each) for each in (".", *action.search)):
        yield from _below(files, folder, heads)
    for folder, several in beside.items():
        yield from _below(files, _real(files, folder), _by_head(several))


def _real(files: RequestFiles, folder: str) -> str:
    return files.searched(files.snapshot.absolute(folder))


def _by_head(places: Iterable[_Place]) -> dict[str, set[str]]:
    heads: dict[str, set[str]] = {}
    for head, name in places:
        heads.setdefault(head, set()).add(name)
    return heads


def _below(files: RequestFiles, folder: str, heads: Mapping[str, set[str]]) -> Iterator[str]:
    """Those files below a folder that are there."""
    listing = files.snapshot.listing
    above = listing(folder) or ()
    for head, names in heads.items():
        place = folder
        if ".." in head or head.startswith("/"):
            place = _climbed(files, folder, head)
        elif head:
            if head.partition("/")[0] not in above:
                continue
            place = head if folder == "." else f"{folder}/{head}"
        for name in names & (listing(place) or _NOTHING):
            yield name if place == "." else f"{place}/{name}"


def _climbed(files: RequestFiles, folder: str, head: str) -> str:
    """The folder at `folder`/`head`, where the head leads up or is absolute.

    Args:
        folder: a real path, so that the first steps up need no look.
    """
    while head == ".." or head.startswith("../"):
        above, slash, _ = (files.snapshot.project if folder == "." else folder).rpartition("/")
        folder, head = above or slash or ".", head[3:]
    if ".." in head or head.startswith("/"):
        return files.searched(os.path.join(files.snapshot.absolute(folder), head))
    return (head if folder == "." else f"{folder}/{head}") if head else folder


def _split(name: str) -> _Place:
    head, tail = os.path.split(name)
    if head and (plain := os.path.normpath(head)).count("..") == head.count(".."):
        return plain, tail
    return head, tail  # up from a folder that may be a link


def _includes_in(path: str, fact: Fact) -> _Includes:
    with _lock:
        known = _includes.get(fact.digest)
    if known is None:
        try:
            content = read_regular(path)
        except OSError:
            return _Includes()
        if blake3(content).hexdigest() != fact.digest:
            return _Includes()  # it has changed: the result is not stored, or not found again
        content = content.replace(b"\\\n", b"")
        found = _INCLUDED.findall(content)
        quoted = frozenset(_split(os.fsdecode(name)) for _, name in found if name)
        angled = frozenset(_split(os.fsdecode(name)) for name, _ in found if name)
        known = _Includes(quoted | angled, quoted, _COMPUTED.search(content) is not None)
        with _lock:
            _includes[fact.digest] = known
            while len(_includes) > _MOST:
                _includes.popitem(last=False)
    return known
