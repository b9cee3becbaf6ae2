"""Whether the tokens of a file may stand in other lines: whether anything in it can see the number of a line.

A file that shows no line in the preprocessed texts of a run (`line_notes`) uses no such macro there: only its
conditions and functions could see a line. Any other file is searched for words.

Knows macros as words (`macro_words`). One call of a function looks like another: where a file of the compile uses
`__builtin_LINE` or `source_location`, or a macro that leads there, outside of a definition, perhaps as a default
argument, every call may see its line.
`codegen.steps.text_use` knows which flags show lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from buildd.files.patient_lock import PatientLock
from buildd.files.snapshot import Snapshot
from buildd.keys.macro_words import Definitions, Macro, Macros, given_macros, joined_text
from buildd.native.bare_text import BareText
from codegen.plan import Action
from protocol.messages import Digest

_BUILTINS = (b"__builtin_LINE", b"__builtin_COLUMN", b"__builtin_source_location", b"source_location")
_SEEING = (b"__LINE__", *_BUILTINS)
_MOST_FILES = 1 << 14


class _Words(NamedTuple):
    """What a file holds outside of definitions."""

    conditions: frozenset[bytes]
    all: frozenset[bytes]
    sets_lines: bool


class _Index:
    """The files that were looked at."""

    def __init__(self) -> None:
        self.macros, self.callers = Macros(_SEEING), Macros(_BUILTINS)
        self.files: dict[Digest, tuple[int, bool]] = {}
        """File -> how many words led to a builtin when it was judged, and whether a function that it declares may see
        the line of its caller, or a definition is written in an unknown way."""
        self.words: dict[Digest, _Words] = {}
        """The files among them whose tokens moved, or may move."""


_index = _Index()
_lock = PatientLock()


def is_blind(
    snapshot: Snapshot,
    bare: BareText,
    action: Action,
    used: Sequence[str],
    moved: Iterable[str],
    silent: Collection[str],
) -> bool:
    """Whether no token of the files that moved can see its line. When in doubt: no.

    Args:
        used: every file that the action reads, declared or discovered.
        moved: those of them whose tokens are in other lines.
        silent: files that show no line in the preprocessed texts of the action's earlier run.
    """
    with _lock.held():
        known = _take_in(snapshot, bare, action, used)
        return known and all(_may_move(snapshot, bare, path, is_silent=path in silent) for path in moved)


def movable(
    snapshot: Snapshot,
    bare: BareText,
    action: Action,
    used: Sequence[str],
    candidates: Iterable[str],
    silent: Collection[str],
) -> frozenset[str]:
    """Those of the candidates for which `is_blind` says yes, each alone or with others.

    Args:
        candidates: some of `used`.
    """
    candidates = tuple(candidates)
    if not candidates:
        return frozenset()  # a toolkit's headers are read for nothing
    with _lock.held():
        if not _take_in(snapshot, bare, action, used):
            return frozenset()
        return frozenset(path for path in candidates if _may_move(snapshot, bare, path, is_silent=path in silent))


def _take_in(snapshot: Snapshot, bare: BareText, action: Action, used: Iterable[str]) -> bool:
    """Read an action's macros and files; False if other files may see lines through one of them."""
    global _index
    if len(_index.files) > _MOST_FILES:
        _index = _Index()
    _add(given_macros(action))
    facts = {path: snapshot.fact(path) for path in used}
    texts: dict[Digest, tuple[bytes, Definitions]] = {}
    # All macros come first: one file may use what another one defines.
    for path, fact in facts.items():
        if fact is None:
            return False
        if fact.digest not in _index.files and fact.digest not in texts:
            text = joined_text(snapshot, bare, path)
            if text is None:
                return False
            texts[fact.digest] = text, Definitions(text)
            _add(texts[fact.digest][1].macros)
    words = _index.callers.seeing
    for path, fact in facts.items():
        assert fact is not None
        known = _index.files.get(fact.digest)
        if known is None or known[0] != len(words):
            text, read = texts.get(fact.digest, (None, None))
            text = text or joined_text(snapshot, bare, path)
            if text is None:
                return False
            read = read or Definitions(text)
            # A feature test names a function without calling it.
            mentions = any(word in text for word in words)
            known = len(words), read.is_unclear or (mentions and not words.isdisjoint(read.words_of_code()))
            _index.files[fact.digest] = known
        if known[1]:
            return False
    return True


def _add(macros: Iterable[Macro]) -> None:
    found = tuple(macros)
    _index.macros.add(found)
    # glibc and CUDA make their attributes with `__##name`, in each file: such words do not count here.
    _index.callers.add(
        replace(macro, pasted=tuple(ends for ends in macro.pasted if len(ends[0]) > len("__"))) for macro in found
    )


def _may_move(snapshot: Snapshot, bare: BareText, path: str, *, is_silent: bool) -> bool:
    words = _words(snapshot, bare, path)
    if words is None:
        return False
    return not _index.macros.is_seeing(words.conditions if is_silent and not words.sets_lines else words.all)


def _words(snapshot: Snapshot, bare: BareText, path: str) -> _Words | None:
    fact = snapshot.fact(path)
    if fact is None:
        return None
    if fact.digest not in _index.words and (text := joined_text(snapshot, bare, path)) is not None:
        read = Definitions(text)
        _index.words[fact.digest] = _Words(read.words_of_conditions(), read.words(), read.sets_lines)
    return _index.words.get(fact.digest)
