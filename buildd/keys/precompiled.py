"""Precompiled headers: compilers read one silently in place of a header, and list it nowhere.

gcc looks for NAME.gch in each folder in which it searches the first included header; clang does so for its first
-include. Therefore all candidates are part of a compile's key, and missing ones are looked for again each time. The
content of a precompiled header cannot be searched for `traits` (the clock, files that no compiler lists), so a result
is stored only if buildd made the precompiled header from sources that it searched. Knows no compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from blake3 import blake3

from buildd.files.snapshot import Snapshot
from buildd.store.store import Store
from codegen.flags import words
from codegen.plan import Action, Discovery, Tool
from codegen.reach import read_regular
from protocol.messages import Digest

_KNOWN = b"precompiled header"
_ENDINGS = {
    Discovery.GCC: (".gch",),
    Discovery.GCC_LINKER: (".gch",),
    Discovery.CLANG: (".gch", ".pch"),
    Discovery.CLANG_RULES: (".gch", ".pch"),
}
_IMPLICIT = ("stdc-predef.h", "cuda_runtime.h")
"""The headers that gcc includes by itself before all others, and that nvcc makes it include."""
_DIRECTIVE = re.compile(
    rb"(?:#|%:|\?\?=)(?:[ \t]|\\\n|/\*.*?\*/)*"
    rb"(?:(?P<open>if(?:def[ \t]+(?P<guard>[A-Za-z]\w*)(?=[ \t]*(?:\r?\n|/[*/])))?)|"
    rb"(?P<other>el(?:se|if))|(?P<close>endif)|(?:include(?:_next)?|import)(?:[ \t]|\\\n|/\*.*?\*/)*"
    rb"(?:<(?P<angled>[^>\n]+)>|\"(?P<quoted>[^\"\n]+)\"|(?P<computed>\w+)))",
    re.DOTALL,
)
_BEFORE = re.compile(rb"(?:\s|/\*.*?\*/)*", re.DOTALL)
_COMMENT = re.compile(rb"/\*.*?\*/|//[^\n]*", re.DOTALL)
_FORCED = re.compile(r"(-include|-imacros|--?pre-include|--?imacros|--include)(=?)(.*)", re.DOTALL)
_SURE = 3
"""How many unconditional includes are taken as possibly the first: text that looks like a comment may be none."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The precompiled headers that one compile could read in place of a header."""

    present: tuple[tuple[str, Digest | None], ...] = ()
    """Path -> content digest; None for a folder of several precompiled headers."""
    absent: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    """If one is present: all headers of those names. The compiler silently takes the first of either kind."""
    computed: bool = False
    """Only the preprocessor knows the name of the first include."""
    guards: tuple[bytes, ...] = ()
    """Names behind #ifdef that keep it from being so, if no header defines one (`defines`)."""

    def names(self) -> Iterator[str]:
        """The names of all candidates without folders."""
        return (os.path.basename(path) for path in (*self.absent, *self.headers, *(path for path, _ in self.present)))


class Places:
    """The places where the compiles of one request look for candidates; each is looked at once.

    Args:
        folders: receives the stamps of the folders whose listings were used.
    """

    def __init__(self, snapshot: Snapshot, folders: dict[str, int]) -> None:
        self.snapshot = snapshot
        self._folders = folders
        self._known: dict[tuple[str, str], tuple[str, bool]] = {}
        self._real: dict[tuple[str, str], str] = {}

    def of(self, folder: str, name: str) -> tuple[str, bool]:
        """The path of a name in a folder, and whether something exists there."""
        known = self._known.get((folder, name))
        if known is None:
            # A dozen names in each folder: only their last part differs.
            inner, _, last = name.rpartition("/")
            inner = inner or ("/" if name.startswith("/") else "")
            where = self._real.get((folder, inner))
            if where is None:
                where = self._real[folder, inner] = os.path.normpath(os.path.join(folder, inner))
                _watch(where, self.snapshot, self._folders)
            path = last if where == "." else os.path.join(where, last)
            known = self._known[folder, name] = path, self._is_in(where, last)
        return known

    def has(self, path: str) -> bool:
        """Whether a path exists, according to the listing of its folder."""
        folder, name = os.path.split(path)
        return self._is_in(folder or ".", name)

    def _is_in(self, folder: str, name: str) -> bool:
        names = self.snapshot.listing(folder)
        if names is not None:
            return name in names
        # A folder that may not be listed may still be searched.
        path = os.path.join(self.snapshot.absolute(folder), name)
        return self.snapshot.folder_stamp(folder) != 0 and os.path.lexists(path)


def candidates(action: Action, tool: Tool, places: Places) -> Candidates:
    """The precompiled headers that an action could read in place of a header."""
    snapshot = places.snapshot
    endings = _ENDINGS.get(action.discovery, ())
    source = action.inputs[0] if action.inputs else ""
    if not endings or not source or snapshot.is_aside(source):
        return Candidates()
    text = _text(snapshot.absolute(source))
    given = tuple(forced(action, tool))
    guards: dict[bytes, None] = {}

    def is_undefined(guard: bytes) -> bool:
        if given or action.discovery.is_clang or not _is_undefined(guard, text, action):
            return False
        guards[guard] = None
        return True

    names = dict.fromkeys((*given, *_first(text, is_undefined), *_IMPLICIT))
    beside = os.path.dirname(source) or "."
    present: dict[str, Digest | None] = {}
    absent: dict[str, None] = {}
    # gcc empties the precompiled header that it makes before it looks for one.
    made = () if action.discovery.is_clang else [_place(snapshot, output.path) for output in action.outputs]
    files = [name + ending for name in names if name for ending in endings]
    for folder in dict.fromkeys((beside, ".", *action.search, *tool.search)):
        for file in files:
            path, there = places.of(folder, file)
            if made and _place(snapshot, path) in made:
                continue
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
    found = tuple(present.items()), tuple(absent), tuple(dict.fromkeys(headers))
    return Candidates(*found, "" in names, tuple(guards))


def defines(snapshot: Snapshot, used: Iterable[str], guards: Sequence[bytes]) -> bool:
    """Whether one of these files may define one of these names."""
    if not guards:
        return False
    names = _definition(b"|".join(map(re.escape, guards)))
    return any(names.search(_text(snapshot.absolute(path))) for path in used)


def remember(store: Store, digest: Digest) -> None:
    """Note that a stored result is this precompiled header. Raises StoreError."""
    if not is_known(store, digest):
        store.remember_action(_name(digest), _KNOWN)


def is_known(store: Store, digest: Digest) -> bool:
    """Whether a precompiled header was made through buildd, as a result that could be stored."""
    return store.recall_action(_name(digest)) == _KNOWN


def forced(action: Action, tool: Tool) -> Iterator[str]:
    """Files that the command line includes before the source."""
    waiting, folders = False, dict(tool.roots)
    spelled = (
        argument if isinstance(argument, str) else f"{argument.prefix}{folders[argument.name]}{argument.suffix}"
        for argument in action.argv
        if isinstance(argument, str) or argument.name in folders
    )
    for word in words(spelled):
        match = None if waiting else _FORCED.fullmatch(word)
        if waiting:
            yield word
        elif match and match[3]:
            yield from (match[3], match[2] + match[3])  # gcc's -include=p.h means the file =p.h
        waiting = match is not None and not match[3]


def _first(text: bytes, is_undefined: Callable[[bytes], bool]) -> Iterator[str]:
    """The headers that a source may include first, perhaps more; empty for a name that only the preprocessor knows.

    Args:
        is_undefined: whether a name behind #ifdef is surely no macro: SQLite's sources have such an include first.
    """
    for kind in (text, _COMMENT.sub(b" ", text)):
        guards: list[bytes] = []
        sure = 0
        for match in _DIRECTIVE.finditer(kind):
            if match["open"]:
                guards.append(match["guard"] or b"")
                continue
            if match["other"] or match["close"]:
                del guards[-1:]
                guards += [b""] if match["other"] else []
                continue
            if match["computed"] is not None and (
                sure
                or not _BEFORE.fullmatch(kind, kind.rfind(b"\n", 0, match.start()) + 1, match.start())
                or any(guard and is_undefined(guard) for guard in guards)
            ):
                continue  # not the first include, words of a comment, or a branch that is not taken
            yield (match["angled"] or match["quoted"] or b"").decode(errors="surrogateescape")
            sure += not guards
            if sure == _SURE:
                break


def _is_undefined(guard: bytes, text: bytes, action: Action) -> bool:
    """Whether neither the compiler, nor a flag, nor the text of a source defines a name before the first include."""
    name = guard.decode(errors="replace")
    if name.startswith("_") or name.islower():  # as __linux__, _GNU_SOURCE and linux
        return False
    words = [word if isinstance(word, str) else word.prefix + word.suffix for word in action.argv]
    words += [value for _, value in action.environment]
    if any(name in word or word.startswith("@") for word in words):
        return False
    return _definition(re.escape(guard)).search(text) is None


def _definition(names: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"define(?:\s|\\\r?\n|/\*.*?\*/)+(?:%b)\b" % names, re.DOTALL)


def _place(snapshot: Snapshot, path: str) -> str:
    return os.path.normpath(snapshot.absolute(path))


def _watch(folder: str, snapshot: Snapshot, folders: dict[str, int]) -> None:
    """Note the stamp of a folder, or of the nearest existing folder above it."""
    while folder not in folders:
        folders[folder] = snapshot.folder_stamp(folder)
        if folders[folder] != 0 or folder in (".", "/"):
            return
        folder = os.path.dirname(folder) or "."


def _text(path: str) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""


def _name(digest: Digest) -> Digest:
    return Digest(blake3(b"precompiled header\0" + digest.encode()).hexdigest())
