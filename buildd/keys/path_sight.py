"""Whether a compile can see the path of a file: whether a text uses `__FILE__`, or a macro that leads to it.

A header's `#define CHECK(x) ... __FILE__` shows nothing where nobody uses the macro. Knows macros as words
(`macro_words`); knows nothing of `__builtin_FILE` and `source_location`, which the compiler proper reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from buildd.files.patient_lock import PatientLock
from buildd.files.snapshot import Snapshot
from buildd.keys.macro_words import Definitions, Macros, given_macros, joined_text
from buildd.native.bare_text import BareText
from codegen.plan import Action
from protocol.messages import Digest

_SEEING = (b"__FILE__", b"__BASE_FILE__", b"__FILE_NAME__")
_ASSERTS = re.compile(rb"assert(_perror)?")
"""Macros with which an object shows a path as it is."""
_MOST_FILES = 400
"""More files are not searched: the search would take longer than what it could save."""
_MOST_KNOWN = 1 << 13


class _Index:
    """The files that were looked at."""

    def __init__(self) -> None:
        self.macros = Macros(_SEEING)
        self.words: dict[Digest, frozenset[bytes]] = {}
        """File -> its words outside of definitions."""


_index = _Index()
_lock = PatientLock()


def is_blind(snapshot: Snapshot, bare: BareText, action: Action, paths: Collection[str]) -> bool:
    """Whether no file uses a macro that leads to a path. When in doubt: no.

    Args:
        paths: the files that the action reads, but the compiler's own.
    """
    global _index
    if len(paths) > _MOST_FILES:
        return False
    with _lock.held():
        if len(_index.words) > _MOST_KNOWN:
            _index = _Index()
        _index.macros.add(given_macros(action))
        found = [_words(snapshot, bare, path) for path in paths]
        return not any(words is None or _index.macros.is_seeing(words) for words in found)


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
    _index.macros.add(macro for macro in read.macros if not _ASSERTS.fullmatch(macro.name))
    known = _index.words[fact.digest] = read.words()
    return known
