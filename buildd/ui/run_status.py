"""The words of a status line below a foreign build: what is done, what runs and for how long, what waits and for what.

Knows figures, no daemon and no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buildd.ui.progress_words import counted, timed
from buildd.ui.text import clean, shortened

_PREFIX = "buildd: "
_MOST_NAMED = 4
_MOST_NAME = 32


@dataclass(frozen=True, slots=True)
class RunningCompile:
    name: str
    elapsed_s: float
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One moment of a build."""

    done: int = 0
    hits: int = 0
    running: Sequence[RunningCompile] = ()
    """The one that has run longest is the first."""
    waiting: int = 0
    waiting_for: str = ""
    """In words, as the daemon says it: "cpu: all 2 are taken"."""


def words(status: RunStatus, columns: int) -> str:
    """One line of at most so many columns; empty if nothing was compiled and nothing is."""
    if not (status.done or status.running or status.waiting):
        return ""
    done = counted(status.done - status.hits, 0, status.hits) if status.done else ""
    resource = status.waiting_for.partition(":")[0]
    waits = f"{status.waiting} waiting" if status.waiting else ""
    for prefix, tail in ((_PREFIX, f"{waits} for {resource}" if waits and resource else waits), ("", waits)):
        for named in range(min(len(status.running), _MOST_NAMED), -1, -1):
            line = prefix + "; ".join(filter(None, (done, _running(status.running, named), tail)))
            if len(line) <= columns and (named or not status.running or not prefix):
                return line
    return shortened(done or waits, columns)


def _running(running: Sequence[RunningCompile], shown: int) -> str:
    if not shown:
        return f"{len(running)} running" if running else ""
    named = ", ".join(_timed(each) for each in running[:shown])
    more = len(running) - shown
    return f"{named} and {more} more" if more else named


def _timed(compile: RunningCompile) -> str:
    return f"{shortened(clean(compile.name), _MOST_NAME)} {timed(compile.elapsed_s, compile.expected_s)}"
