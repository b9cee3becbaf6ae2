"""Which folders a compile can see, and whether it sees the clock: whether a text uses `__FILE__` or `__DATE__`, or a
macro that leads to it.

A header's `#define CHECK(x) ... __FILE__` shows nothing where nobody uses the macro, and where a text uses it, it shows
the path of that text. Knows macros as words (`macro_words`); knows nothing of `__builtin_FILE` and `source_location`,
which the compiler proper reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping

from buildd.files.patient_lock import PatientLock
from buildd.files.snapshot import Snapshot
from buildd.keys.macro_words import Definitions, Macros, given_macros, joined_text
from buildd.native.bare_text import BareText
from codegen.compilers.temporary_roots import Roots
from codegen.plan import Action
from protocol.messages import Digest

_SOURCE = b"__BASE_FILE__"
"""The path of the source, in whatever file it stands."""
_SEEING = (b"__FILE__", _SOURCE, b"__FILE_NAME__")
_CLOCK = (b"__DATE__", b"__TIME__")
_TYPE_NAMES = (b"__PRETTY_FUNCTION__", b"__FUNCSIG__")
"""With these clang shows the path of a lambda, or of a type without a name, that a template was given."""
_ASSERTS = re.compile(rb"assert(_perror)?")
"""Macros with which an object shows a path as it is."""
_ALWAYS = (
    b"auto bool char class const constexpr double false float inline int long noexcept nullptr short signed static std"
    b" struct true unsigned void volatile _Bool _Complex _Noreturn __null"
).split()
"""Words of macros that the compiler or its own headers define."""
_MOST_FILES = 400
"""More files are not searched: the search would take longer than what it could save."""
_MOST_KNOWN = 1 << 13


class _Index:
    """The files that were looked at."""

    def __init__(self) -> None:
        self.all_words = set(_ALWAYS)
        """Words of all files, of macros on command lines, and of the compiler's own macros."""
        self.macros, self.sources, self.clock, self.types = (
            Macros(words, self.all_words) for words in (_SEEING, (_SOURCE,), _CLOCK, _TYPE_NAMES)
        )
        self.words: dict[Digest, frozenset[bytes]] = {}
        """File -> its words outside of definitions."""


_index = _Index()
_lock = PatientLock()


def seen_roots(
    snapshot: Snapshot, bare: BareText, action: Action, files: Mapping[str, Collection[str]], roots: Roots
) -> set[str]:
    """The roots whose folder a file may show in another way than as it is. When in doubt: all that hold a file.

    Args:
        files: the files that the action reads, but the compiler's own -> how the tool spelled them.
    """
    above, holding = _above(snapshot, files, roots), holding_roots(snapshot, files, roots)
    if not holding or len(files) > _MOST_FILES:
        return holding
    with _lock.held():
        used = _all_words(snapshot, bare, action, files)
        found: set[str] = set()
        for path, words in used.items():
            if words is None or _index.sources.is_seeing(words):
                return holding
            # A macro's arguments stand in the file that uses it: C 2018, 5.1.1.2.
            if _index.macros.is_seeing(words):
                found |= above[path]
        return found


def sees_clock(snapshot: Snapshot, bare: BareText, action: Action, files: Collection[str]) -> bool:
    """Whether a file may use `__DATE__` or `__TIME__`, and does not only define a macro that nobody uses. When in doubt
    it may.

    Args:
        files: the files that the action reads, but the compiler's own.
    """
    return _is_used(snapshot, bare, action, files, lambda: _index.clock)


def sees_types(snapshot: Snapshot, bare: BareText, action: Action, files: Collection[str]) -> bool:
    """Whether a file may use `__PRETTY_FUNCTION__` otherwise than in an assertion, whose path the object shows. When in
    doubt it may.

    Args:
        files: the files that the action reads, but the compiler's own.
    """
    return _is_used(snapshot, bare, action, files, lambda: _index.types)


def _is_used(
    snapshot: Snapshot, bare: BareText, action: Action, files: Collection[str], macros: Callable[[], Macros]
) -> bool:
    if len(files) > _MOST_FILES:
        return True
    with _lock.held():
        used = _all_words(snapshot, bare, action, files)
        return any(words is None or macros().is_seeing(words) for words in used.values())


def _all_words(
    snapshot: Snapshot, bare: BareText, action: Action, files: Collection[str]
) -> dict[str, frozenset[bytes] | None]:
    """`_words` of each file. All files come first: a later one may define what an earlier one uses."""
    global _index
    if len(_index.words) > _MOST_KNOWN:
        _index = _Index()
    given = tuple(given_macros(action))
    _index.all_words.update(*(macro.words for macro in given))
    for macros in (_index.macros, _index.sources, _index.types, _index.clock):
        macros.add(given)
    return {path: _words(snapshot, bare, path) for path in files}


def holding_roots(snapshot: Snapshot, files: Mapping[str, Collection[str]], roots: Roots) -> set[str]:
    """The roots that hold one of the files, or through which one is read. No file shows the path of another root."""
    return set[str]().union(*_above(snapshot, files, roots).values())


def _above(snapshot: Snapshot, files: Mapping[str, Collection[str]], roots: Roots) -> dict[str, set[str]]:
    """File -> the roots that its path, or one of its spellings, leads into."""
    found = {}
    for path, spellings in files.items():
        ways = {
            way for spelled in (snapshot.absolute(path), *spellings) for way in (spelled, os.path.normpath(spelled))
        }
        found[path] = {name for name, folder in roots if any(way.startswith(f"{folder}/") for way in ways)}
    return found


def _words(snapshot: Snapshot, bare: BareText, path: str) -> frozenset[bytes] | None:
    """The words of a file outside of definitions, whose macros are in the index then; None where they are not known."""
    fact = None if snapshot.is_produced(path) else snapshot.fact(path)
    known = None if fact is None else _index.words.get(fact.digest)
    if known is not None or fact is None:
        return known
    text = joined_text(snapshot, bare, path)
    if text is None:
        return None
    read = Definitions(text)
    if read.is_unclear:
        return None
    shown = [macro for macro in read.macros if not _ASSERTS.fullmatch(macro.name)]
    _index.macros.add(shown)
    _index.sources.add(shown)
    _index.types.add(shown)
    _index.clock.add(read.macros)
    known = _index.words[fact.digest] = read.words()
    _index.all_words.update(known, *(macro.words for macro in read.macros))
    return known
