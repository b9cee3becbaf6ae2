"""Digests of the files that an action reads, as far as their text can reach its result: of a content, or of bare forms.

A bare form (`native.bare_text`) is a text without its comments. Knows which of a file's digests an input set holds and
when a file still stands for it; knows no flag (`codegen.steps.text_use`) and no macro (`line_sight`).
"""

from __future__ import annotations

from enum import Enum

from buildd.files.snapshot import Snapshot
from buildd.files.traits import Traits
from codegen.plan import Action, TextUse
from protocol.messages import Digest

_ONE = 64
"""Digits of one digest. A bare form has two: with the line of every token, and without."""


def is_bare(filed: tuple[str, Digest]) -> bool:
    """Whether an input set holds the digests of a file's bare forms."""
    return len(filed[1]) > _ONE


class Stands(Enum):
    """Whether a file is what it was, to an action."""

    YES = "yes"
    MOVED = "its tokens are in other lines"
    NO = "no"


def key_digest(snapshot: Snapshot, action: Action, path: str) -> Digest | None:
    """The digest of a declared input in an action's first-level key; None where there is no such file."""
    # Only the first one is a source: the others are plugins and lists, where slashes begin no comment.
    bare = bare_of(snapshot, action, path) if path == action.inputs[0] else ""
    return Digest(bare[:_ONE]) if bare else snapshot.digest(path)


def filed_digest(snapshot: Snapshot, action: Action, path: str, *, by_content: bool) -> Digest | None:
    """The digest of a discovered input in an input set, or both digests of its bare form; None where there is no file.

    Args:
        by_content: the result shows lines of the text, so that all of it counts.
    """
    bare = "" if by_content else bare_of(snapshot, action, path)
    return Digest(bare) if bare else snapshot.digest(path)


def stands(snapshot: Snapshot, action: Action, path: str, filed: Digest) -> Stands:
    """Whether a file is what an input set holds."""
    if len(filed) == _ONE:
        return Stands.YES if snapshot.digest(path) == filed else Stands.NO
    bare = bare_of(snapshot, action, path)
    if bare[:_ONE] == filed[:_ONE]:
        return Stands.YES
    moved = action.text is TextUse.TOKENS and bare[_ONE:] == filed[_ONE:]
    return Stands.MOVED if moved else Stands.NO


def bare_of(snapshot: Snapshot, action: Action, path: str) -> str:
    """The digests of a file's bare forms; empty where an action's result depends on more of its text."""
    if action.text is TextUse.CONTENT or snapshot.is_produced(path):
        return ""
    fact = snapshot.fact(path)
    return "" if fact is None or (action.older and Traits.VERSIONED in fact.traits) else fact.bare
