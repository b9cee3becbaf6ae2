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
    (("command", "payload", "output ", "format"), MissKind.COMMAND),
    ("variable ", MissKind.VARIABLE),
    ("tool ", MissKind.TOOL),
    (("folder ", "search folder "), MissKind.FOLDER),
    ("asked ", MissKind.ASKED),
)


def kind_of(reasons: Iterable[str]) -> MissKind:
    """The kind of a miss's first reason."""
    first = next(iter(reasons), "")
    found = (kind for beginning, kind in _BEGINNINGS if first.startswith(beginning))
    return next(found, MissKind.NOT_STORED)
