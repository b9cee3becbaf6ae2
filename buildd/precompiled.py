"""Precompiled headers, which compilers take in place of a header without a word, and list nowhere.

gcc looks for NAME.gch in each folder where it looks for what it includes first; clang for that of its first -include.
So all that could be taken is part of a compile's key, and those that are not there are looked for again each time. What
is in one cannot be looked at (`traits`: the clock, files that no compiler lists), so a result is only kept where it was
made through us, of sources that were looked at. Knows no compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from buildd.files import Snapshot
from buildd.store import Store
from codegen.flags import words
from codegen.plan import Action, Discovery
from protocol.messages import Digest

_KNOWN = b"precompiled header"
_ENDINGS = {
    Discovery.GCC: (".gch",),
    Discovery.GCC_LINKER: (".gch",),
    Discovery.CLANG: (".gch", ".pch"),
}
_IMPLICIT = ("stdc-predef.h", "cuda_runtime.h")
"""What gcc includes by itself before all else, and what nvcc has it include."""
_DIRECTIVE = re.compile(
    rb"(?:#|%:|\?\?=)(?:[ \t]|\\\n|/\*.*?\*/)*"
    rb"(?:(?P<open>if)|(?P<close>endif)|(?:include(?:_next)?|import)(?:[ \t]|\\\n|/\*.*?\*/)*"
    rb"(?:<(?P<angled>[^>\n]+)>|\"(?P<quoted>[^\"\n]+)\"|(?P<computed>\w+)))",
    re.DOTALL,
)
_COMMENT = re.compile(rb"/\*.*?\*/|//[^\n]*", re.DOTALL)
_FORCED = re.compile(r"(-include|-imacros|--?pre-include|--?imacros|--include)(=?)(.*)", re.DOTALL)
_SURE = 3
"""So many includes outside of all conditions are taken for the first one: what looks like a comment may be none."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What could be taken in place of a header by one compile."""

    present: tuple[tuple[str, Digest | None], ...] = ()
    """Path -> content digest; None for a folder of several."""
    absent: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    """Where one is there: all headers of those names. The compiler takes the first of either kind, and says nothing."""
    computed: bool = False
    """What is included first only the preprocessor knows."""

    def names(self) -> Iterator[str]:
        """Their names without folders."""
        return (os.path.basename(path) for path in (*self.absent, *self.headers, *(path for path, _ in self.present)))


class Places:
    """Where the compiles of one request could find something: each place is looked at once.

    Args:
        folders: is given the stamps of those that decide what is not there.
    """

    def __init__(self, snapshot: Snapshot, folders: dict[str, int]) -> None:
        self.snapshot = snapshot
        self._folders = folders
        self._known: dict[tuple[str, str], tuple[str, bool]] = {}

    def of(self, folder: str, name: str) -> tuple[str, bool]:
        """The path that a name has from a folder, and whether something is there."""
        known = self._known.get((folder, name))
        if known is None:
            path = os.path.normpath(os.path.join(folder, name))
            _watch(os.path.dirname(path) or ".", self.snapshot, self._folders)
            known = self._known[folder, name] = path, self.has(path)
        return known

    def has(self, path: str) -> bool:
        """Whether something is there, by the listing of its folder."""
        folder, name = os.path.split(path)
        names = self.snapshot.listing(folder or ".")
        if names is not None:
            return name in names
        # A folder that must not be listed may be searched all the same.
        return self.snapshot.folder_stamp(folder or ".") != 0 and os.path.lexists(self.snapshot.absolute(path))


def candidates(action: Action, own_search: Iterable[str], places: Places) -> Candidates:
    """What an action could take in place of a header.

    Args:
        own_search: folders that the tool searches by itself.
    """
    snapshot = places.snapshot
    endings = _ENDINGS.get(action.discovery, ())
    source = action.inputs[0] if action.inputs else ""
    if not endings or not source or snapshot.is_aside(source):
        return Candidates()
    names = dict.fromkeys((*forced(action), *_first(_text(snapshot.absolute(source))), *_IMPLICIT))
    beside = os.path.dirname(source) or "."
    present: dict[str, Digest | None] = {}
    absent: dict[str, None] = {}
    files = [name + ending for name in names if name for ending in endings]
    for folder in dict.fromkeys((beside, ".", *action.search, *own_search)):
        for file in files:
            path, there = places.of(folder, file)
            if there or snapshot.is_produced(path):
                present[path] = snapshot.digest(path)
            else:
                absent[path] = None
    headers: list[str] = []
    for path in (*present, *absent) if present else ():
        header = os.path.splitext(path)[0]
        if places.has(header) or snapshot.is_produced(header):
            headers.append(header)
        else:
            absent[header] = None
    return Candidates(tuple(present.items()), tuple(absent), tuple(dict.fromkeys(headers)), "" in names)


def remember(store: Store, digest: Digest) -> None:
    """Note that a stored result is this precompiled header. Raises StoreError."""
    if not is_known(store, digest):
        store.remember_action(_name(digest), _KNOWN)


def is_known(store: Store, digest: Digest) -> bool:
    """Whether a precompiled header was a result that could be stored."""
    return store.recall_action(_name(digest)) == _KNOWN


def forced(action: Action) -> Iterator[str]:
    """Files that the command line includes before the source."""
    waiting = False
    for word in words(argument for argument in action.argv if isinstance(argument, str)):
        match = None if waiting else _FORCED.fullmatch(word)
        if waiting:
            yield word
        elif match and match[3]:
            yield match[3]
        waiting = match is not None and not match[3]


def _first(text: bytes) -> Iterator[str]:
    """What a source may include first, perhaps more; empty for what only the preprocessor knows."""
    for kind in (text, _COMMENT.sub(b" ", text)):
        depth = sure = 0
        for match in _DIRECTIVE.finditer(kind):
            if match["open"] or match["close"]:
                depth = max(0, depth + (1 if match["open"] else -1))
                continue
            if match["computed"] is None or sure == 0:
                yield (match["angled"] or match["quoted"] or b"").decode(errors="surrogateescape")
            sure += depth == 0
            if sure == _SURE:
                break


def _watch(folder: str, snapshot: Snapshot, folders: dict[str, int]) -> None:
    """Note a folder's stamp, or that of the nearest one above it that is there."""
    while folder not in folders:
        folders[folder] = snapshot.folder_stamp(folder)
        if folders[folder] != 0 or folder in (".", "/"):
            return
        folder = os.path.dirname(folder) or "."


def _text(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _name(digest: Digest) -> Digest:
    return Digest(blake3(b"precompiled header\0" + digest.encode()).hexdigest())
