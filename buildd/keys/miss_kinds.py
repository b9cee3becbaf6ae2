"""Sorts the reasons of misses into few kinds, for counts and summaries. Pure: reasons as `lookup` words them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class MissKind(Enum):
    """What made a look-up miss; statistics count misses under these names."""

    NEW = "new"
    """Nothing of that name was built in this folder before."""
    INPUT = "input"
    """A source, a header, or a file that the search finds first."""
    COMMAND = "command"
    VARIABLE = "variable"
    LOCALE = "locale"
    """LANG or an LC_ variable: it chooses the language of messages, which are part of a result."""
    TOOL = "tool"
    FOLDER = "folder"
    """The result holds for another folder, or a link leads elsewhere."""
    NOT_STORED = "not-stored"
    """The result is no longer in the store, or may not be stored."""
    ASKED = "asked"
    """The user asked for it."""


_BEGINNINGS = (
    ("never built", MissKind.NEW),
    (("input ", "precompiled header ", "header beside "), MissKind.INPUT),
    (("command", "payload", "output ", "depfile", "format"), MissKind.COMMAND),
    ("tool ", MissKind.TOOL),
    ("variable ", MissKind.VARIABLE),
    ("locale", MissKind.LOCALE),
    (("folder ", "search", "no longer searched"), MissKind.FOLDER),
    ("asked ", MissKind.ASKED),
)
"""In their order: an edit comes before a variable, which the user may not even know."""


def kind_of(reasons: Iterable[str]) -> MissKind:
    """The kind of a miss: of its reasons, the one that says most."""
    told = tuple(reasons)
    for beginnings, kind in _BEGINNINGS:
        if any(reason.startswith(beginnings) for reason in told):
            return kind
    return MissKind.NOT_STORED
