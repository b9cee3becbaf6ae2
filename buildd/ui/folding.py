"""Folds template backtraces: shows the first and last levels of each; the log has the rest.

Understands gcc's and nvcc's. Sees lines in order, and does not know which job printed them.
"""

from __future__ import annotations

import re

MOST_LEVELS = 3
"""A backtrace of at most so many levels is shown whole."""

# a.h:12:5:   required from ‘void f(T) [with T = int]’
_GCC = re.compile(r"\S[^:]*:\d+:(?:\d+:)? +(?:recursively )?required (?:from|by) (?!here)")
#             instantiation of "void f(T) [with T=int]" at line 12 of a.h
_EDG = re.compile(r" {6,}\S.* at line \d+(?: of .+)?$")


class Folding:
    """The output of one job, line by line.

    Args:
        where: the command that shows all of it.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._shape: re.Pattern[str] | None = None
        self._levels: list[str] = []

    def feed(self, line: str) -> list[str]:
        """The lines to show now that this one has come; it may have to wait for the next one."""
        shape = _shape_of(line)
        if shape is not None and shape is self._shape:
            self._levels.append(line)
            return []
        shown = self.rest()
        if shape is None:
            return [*shown, line]
        self._shape, self._levels = shape, [line]
        return shown

    def rest(self) -> list[str]:
        """The lines still waiting, after the last line."""
        levels, self._levels, self._shape = self._levels, [], None
        if len(levels) <= MOST_LEVELS:
            return levels
        indent = levels[0][: len(levels[0]) - len(levels[0].lstrip())] or "    "
        return [levels[0], f"{indent}({len(levels) - 2} more levels between: {self._where})", levels[-1]]


def _shape_of(line: str) -> re.Pattern[str] | None:
    if " at line " in line and _EDG.match(line):
        return _EDG
    return _GCC if "required " in line and _GCC.match(line) else None
