"""Include search: whether a compile could find another file in place of one that it used.

Knows search order, not keys. A header that appears earlier on the include path, or a changed answer of `__has_include`,
changes the result though all used files are unchanged. For each used file, every place where the search would have
found another file earlier is a *candidate*. The folders whose listings show that no candidate exists are kept with
their stamps. While those stamps stay the same, nothing has to be searched; when one has changed, the candidates are
computed again and compared. Where the true search order is not known exactly, the answer errs towards "yes", which is
only a miss."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from blake3 import blake3

from buildd.files.snapshot import Snapshot
from buildd.files.traits import CLIMBING, Traits
from buildd.keys.survey_memory import Decisive, Memory, SearchAnswer, Stamped, Surroundings, decisive
from codegen.reach import read_regular
from protocol.messages import Digest

# Any macro with this ending in its name and a literal argument, because libraries wrap __has_include.
_ASKED = re.compile(rb"has_include\w*\s*\(\s*(?:<([^>\n]+)>|\"([^\"\n]+)\")", re.IGNORECASE)
_COMPUTED = re.compile(rb"__has_include(?:_next)?\s*\(\s*[A-Za-z_]")
_REPLACED = re.compile(rb"#\s*define\s+__has_include(?:_next)?\s*\([^\n]*")
"""A replacement for compilers without __has_include, as in CMake's sources."""
_DEFINED = re.compile(rb"#\s*define\s+(\w+)\s*\([^)]*\)[^\n]*__has_include")
_RENAMED = re.compile(
    rb"#\s*define\s+(\w+)[ \t]+(?:[^\n]*[^\w\n])?(?<!defined\()(?<!defined )__has_include(?:_next)?\b(?!\s*\()"
)
"""A macro that only stands for the operator."""


def asked_names(text: bytes) -> tuple[str, ...]:
    """Names that a text asks `__has_include` for, and names with `..` that it includes, as written."""
    text = text.replace(b"\\\n", b"")
    text = text.replace(b"\\\n", b"")
    found = (m for pattern in (_ASKED, CLIMBING) for m in pattern.finditer(text))
    return tuple(sorted({(m.group(1) or m.group(2)).decode(errors="surrogateescape") for m in found}))


def asks_computed(text: bytes) -> bool:
    """Whether a text asks `__has_include` with a name that only the preprocessor knows.

    The definition of a wrapper does not count, but its uses do, if the wrapper's name ends in has_include.
    """
    text = _REPLACED.sub(b"", text.replace(b"\\\n", b""))
    wrappers = _DEFINED.findall(text)
    if any(not name.lower().endswith(b"has_include") for name in (*wrappers, *_RENAMED.findall(text))):
        return True
    return len(_COMPUTED.findall(text)) > len(wrappers)


def python_rivals(path: str) -> tuple[str, ...]:
    """The files that Python would import in place of a module file, or before it.

    These are the package of its name, and the `__init__.py` of each folder above it. In one folder a package comes
    before a module; between folders the first one wins.
    """
    if not path.endswith(".py"):
        return ()
    stem = path[: -len(".py")]
    folder, _, name = stem.rpartition("/")
    rivals = [f"{folder}.py"] if name == "__init__" else [f"{stem}/__init__.py"]
    while folder:
        rivals.append(f"{folder}/__init__.py")
        folder = folder.rpartition("/")[0]
    return tuple(rivals)


def library_rivals(name: str) -> tuple[str, ...]:
    """The names that a linker accepts in place of a library's: it looks for both in each folder."""
    stem, _, ending = name.rpartition(".")
    return (f"{stem}.so", f"{stem}.a") if name.startswith("lib") and ending in ("a", "so") else ()


_NONE: frozenset[str] = frozenset()
_MOST_SURVEYS = 64


class Surveyor:
    """Surveys of actions with the same search folders, in one view of the file system.

    Answers about one action's headers are used for the next action too.

    Args:
        snapshot: the file system as this request sees it.
        search: the actions' search folders, each of which may come before the others.
        own_search: folders that the tool itself searches after those, in order.
        memory: answers of other requests.
    """

    def __init__(
        self, snapshot: Snapshot, search: Sequence[str], own_search: Sequence[str], memory: Memory | None = None
    ) -> None:
        self._snapshot = snapshot
        self._memory = memory or Memory()
        self._kind = (snapshot.project, tuple(search), tuple(own_search))
        self._order = list(dict.fromkeys([*search, *own_search]))
        self._own = frozenset(own_search)
        self._named = frozenset(search)
        self._libraries = [folder for folder in search if folder not in self._own]
        self._rivals: dict[tuple[str, ...], dict[str, SearchAnswer]] = {}
        """Folders of the files that may include it -> used path -> answer."""
        self._asked: dict[tuple[str, Digest], SearchAnswer] = {}
        """Answers for files that ask `__has_include`."""
        self._lacking: dict[tuple[str, str], tuple[bool, _Needed]] = {}
        self._changed: dict[Stamped, tuple[str, ...]] = {}
        self._places = self._memory.places(self._own)
        self._surveys: dict[tuple[tuple[str, ...], ...], Surroundings] = {}
        """Surveys by used files, the folders of their includers, and the includers that ask `__has_include`: many
        sources of one project use the same headers."""

    def survey(self, used: Sequence[str], includers: Sequence[str]) -> Surroundings:
        """Compute the candidates of the used files and which of them exist.

        Args:
            used: the files that were read, relative to the project or absolute, sorted.
            includers: declared inputs, which may include the used files.
        """
        # A quoted include is looked for beside the file that includes it before any folder of the search path.
        beside = tuple(dict.fromkeys(folder for path in (*includers, *used) if (folder := self._place(path))))
        asking = tuple(path for path in includers if self._asks(path))
        key = (tuple(used), beside, asking)
        if not self._snapshot.made_none_of(frozenset((*used, *asking))):
            return self._survey(*key)
        known = self._surveys.get(key)
        if known is None:
            if len(self._surveys) >= _MOST_SURVEYS:
                self._surveys.clear()
            known = self._surveys[key] = self._recalled(*key)
        return known

    def _recalled(self, used: tuple[str, ...], beside: tuple[str, ...], asking: tuple[str, ...]) -> Surroundings:
        """The survey that another request made, if it is still valid; otherwise a new one."""
        facts = ((path, self._snapshot.fact(path)) for path in dict.fromkeys((*used, *asking)))
        asks = [f"{path}\0{fact.digest}" for path, fact in facts if fact and fact.has(Traits.HAS_INCLUDE)]
        text = "\0\0".join(("\0".join(used), "\0".join(beside), "\0".join(asks)))
        name = blake3(text.encode(errors="surrogateescape")).digest()
        known = self._memory.get_whole(self._kind, name, self._snapshot)
        if known is None:
            with self._memory.surveyors.held():
                known = self._memory.get_whole(self._kind, name, self._snapshot)
                if known is None:
                    known = self._survey(used, beside, asking)
                    self._memory.put_whole(self._kind, name, known)
        return known

    def _asks(self, path: str) -> bool:
        fact = self._snapshot.fact(path)
        return fact is not None and Traits.HAS_INCLUDE in fact.traits

    def _survey(self, used: Sequence[str], beside: tuple[str, ...], asking: Sequence[str]) -> Surroundings:
        """A new survey; of the lively folders it has the names too, if each answer has them."""
        snapshot = self._snapshot
        needed: dict[str, None] = {}
        asked: dict[str, set[str]] = {}
        present: set[str] = set()
        torn: list[str] = []
        lively = _Lively(self._memory.lively(snapshot))
        known = self._rivals.setdefault(beside, {})
        for path in used:
            answer = known.get(path)
            if answer is None:
                kind = (self._kind, beside)
                answer = self._memory.get(kind, (path, ""), snapshot, self._changed)
                if answer is None:
                    answer = self._answer(self._candidates(path, beside))
                    self._memory.put(kind, (path, ""), snapshot, answer)
                known[path] = answer
            needed.update(dict.fromkeys(answer.needed))
            present.update(answer.present)
            lively.add(answer)
        # The source itself asks too, and clang does not list it.
        for path in dict.fromkeys((*used, *asking)):
            fact = snapshot.fact(path)
            if fact is not None and fact.has(Traits.HAS_INCLUDE):
                answer = self._asked.get((path, fact.digest))
                if answer is None:
                    answer = self._memory.get(self._kind, (path, fact.digest), snapshot, self._changed)
                    if answer is None and (answer := self._answer_asked(path, fact.digest)) is not None:
                        self._memory.put(self._kind, (path, fact.digest), snapshot, answer)
                if answer is None:
                    # The names that it asked for when it was seen are unknown: it counts as a file that just appeared.
                    torn.append(path)
                    needed["."] = None
                    continue
                self._asked[path, fact.digest] = answer
                for folder, names in zip(answer.needed, answer.names, strict=True):
                    asked.setdefault(folder, set()).update(names)
                present.update(answer.present)
                lively.add(answer)
        needed.update(dict.fromkeys(asked))
        return Surroundings(
            tuple((folder, -1 if torn else snapshot.folder_stamp(folder)) for folder in sorted(needed)),
            tuple(sorted((present.difference(used)).union(torn))),
            tuple((folder, frozenset(names)) for folder, names in asked.items()),
            () if torn else lively.known(),
        )

    def _place(self, path: str) -> str:
        """The folder in which a file's quoted includes are searched first; empty for the tool's own files."""
        place = self._places.get(path)
        if place is None:
            own = any(_under(path, folder) for folder in self._own)
            place = self._places[path] = "" if own else os.path.dirname(path) or "."
        return place

    def _candidates(self, path: str, beside: Sequence[str]) -> Iterator[tuple[str, str]]:
        """(folder, name below it) of every file that the search would find in place of a used file."""
        order = self._order
        for position, folder in enumerate(order):
            if not _under(path, folder):
                continue
            rest = path[len(folder) + 1 :] if folder != "." else path
            # The order of the named folders depends on their kinds: each other one counts as earlier.
            before = [other for other in order if other != folder] if folder in self._named else order[:position]
            for earlier in before:
                yield earlier, rest
            for rival in python_rivals(rest):
                for earlier in order[: position + 1]:
                    yield earlier, rival
            for neighbour in beside:
                yield neighbour, rest
        place, _, name = path.rpartition("/")
        if rivals := library_rivals(name):
            # -lx takes the first folder that has either, and there the shared one.
            own = [folder for folder in order if folder in self._own]
            before = own[: own.index(place)] if place in own else []
            for folder in (*self._libraries, *before):
                for rival in rivals:
                    yield folder, rival
            yield place or ".", rivals[0]

    def _answer(self, candidates: Iterable[tuple[str, str]]) -> SearchAnswer:
        """Which candidates exist."""
        needed: _Needed = {}
        present = []
        for folder, rest in candidates:
            head = rest.rpartition("/")[0]
            if head:
                # Most folders do not have the sub-folder at all, which is checked once for all headers in it.
                absent, decided_by = self._lacks(folder, head)
                for each, names in decided_by.items():
                    needed.setdefault(each, set()).update(names)
                if absent:
                    continue
            path = f"{folder}/{rest}" if folder != "." else rest
            if _exists(self._snapshot, folder, rest, needed):
                present.append(path)
        lively = decisive(self._snapshot, self._memory.lively(self._snapshot), needed)
        return SearchAnswer(tuple(needed), tuple(present), lively=lively)

    def _answer_asked(self, path: str, digest: Digest) -> SearchAnswer | None:
        """The candidates that `__has_include` in a file asks for; None where the file no longer has this digest."""
        text = _text(self._snapshot.absolute(path))
        if blake3(text).hexdigest() != digest:
            return None
        needed: _Needed = {}
        present = []
        for asked in asked_names(text):
            top, name = _apart(asked) if asked.startswith("/") else ("", asked)
            for folder in (top,) if top else (os.path.dirname(path) or ".", *self._order):
                candidate = f"{folder}/{name}" if folder != "." else name
                if _exists(self._snapshot, folder, name, needed):
                    present.append(candidate)
        names = tuple(map(frozenset, needed.values()))
        lively = decisive(self._snapshot, self._memory.lively(self._snapshot), needed)
        return SearchAnswer(tuple(needed), tuple(present), names, lively)

    def _lacks(self, folder: str, head: str) -> tuple[bool, _Needed]:
        known = self._lacking.get((folder, head))
        if known is None:
            decided_by: _Needed = {}
            absent = not _exists(self._snapshot, folder, head, decided_by, any_kind=True)
            known = self._lacking[folder, head] = (absent, decided_by)
        return known


_Needed = dict[str, set[str]]
"""Folder -> the names in it that decided something."""


class _Lively:
    """What decided several answers together, in each folder that changes often."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._known: dict[str, Decisive | None] = {folder: Decisive(folder, _NONE, frozenset()) for folder in folders}

    def add(self, answer: SearchAnswer) -> None:
        for folder, known in self._known.items():
            if known is not None and folder in answer.needed:
                more = next((each for each in answer.lively if each.folder == folder), None)
                self._known[folder] = more and Decisive(folder, known.names | more.names, known.there | more.there)

    def known(self) -> tuple[Decisive, ...]:
        """Of each folder of which all answers know it."""
        return tuple(each for each in self._known.values() if each is not None and each.names)


def _under(path: str, folder: str) -> bool:
    if folder == ".":
        return not path.startswith("/")
    return path.startswith(folder) and path[len(folder) : len(folder) + 1] == "/"


def _exists(snapshot: Snapshot, folder: str, rest: str, needed: _Needed, *, any_kind: bool = False) -> bool:
    """Whether folder/rest exists; notes the folders whose listings decide that, and the names in them that do."""
    at = folder
    parts = rest.split("/")
    for part in parts:
        if part in ("", "."):
            continue
        if part == "..":
            is_above = at in (".", "..") or at.endswith("/..")
            at = os.path.normpath(f"{at}/..") if is_above else os.path.dirname(at) or "."
            continue
        names = snapshot.listing(at)
        if names is None:
            _note_absent(snapshot, at, needed)
            return False
        needed.setdefault(at, set()).add(part)
        if part not in names:
            return False
        at = f"{at}/{part}" if at != "." else part
    return any_kind or _is_file(snapshot, at, needed)


def _apart(path: str) -> tuple[str, str]:
    """The deepest folder above an absolute path that is there now, and the rest of the path."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder, path[len(folder) :].lstrip("/")


def _is_file(snapshot: Snapshot, path: str, needed: _Needed, depth: int = 8) -> bool:
    """Whether a listed name is a file; for a link, its target and the target's folder decide."""
    target = _target(snapshot, path)
    if not target:
        return not os.path.isdir(snapshot.absolute(path))
    folder, _, name = target.rpartition("/")
    folder = folder or ("/" if target.startswith("/") else ".")
    names = snapshot.listing(folder)
    if names is None:
        _note_absent(snapshot, folder, needed)
        return False
    needed.setdefault(folder, set()).add(name)
    return depth > 0 and name in names and _is_file(snapshot, f"{folder}/{name}", needed, depth - 1)


def _target(snapshot: Snapshot, path: str) -> str:
    """Where a link leads; empty if it is no link."""
    place = os.path.dirname(path)
    try:
        target = os.readlink(snapshot.absolute(path))
    except OSError:
        return ""
    if target.startswith(".."):
        # Its folder may have been found through a link, and `..` leads up from where that ends.
        place = os.path.realpath(snapshot.absolute(place))
    return os.path.normpath(os.path.join(place, target)).removeprefix(f"{snapshot.project}/")


def _note_absent(snapshot: Snapshot, folder: str, needed: _Needed, depth: int = 8) -> None:
    """Note the nearest existing folder above a missing one, where it would appear, also at the end of a link."""
    name = ""
    while folder not in ("/", "", ".") and snapshot.listing(folder) is None:
        folder, name = os.path.dirname(folder) or ("/" if folder.startswith("/") else "."), os.path.basename(folder)
    needed.setdefault(folder or ".", set()).add(name)
    if depth > 0 and name and (target := _target(snapshot, f"{folder}/{name}" if folder not in ("", ".") else name)):
        _note_absent(snapshot, target, needed, depth - 1)


def look_above(snapshot: Snapshot, folder: str) -> None:
    """List a folder, and where it is missing the folder where it would appear."""
    if snapshot.listing(folder) is None:
        _note_absent(snapshot, folder, {})


def _text(path: str) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""
