"""Backtraces of templates, folded: of the steps that led to one only its ends are shown, the rest stands in the log.

Understands gcc's and nvcc's. Knows lines in their order; not whose they are.
"""

from __future__ import annotations

import re

MOST_STEPS = 3
"""Of one backtrace are shown whole."""

# a.h:12:5:   required from ‘void f(T) [with T = int]’
_GCC = re.compile(r"\S[^:]*:\d+:(?:\d+:)? +(?:recursively )?required (?:from|by) (?!here)")
#             instantiation of "void f(T) [with T=int]" at line 12 of a.h
_EDG = re.compile(r" {6,}\S.* at line \d+(?: of .+)?$")


class Folding:
    """The output of one job, line by line.

    Args:
        where: how to see all of it, for people.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._shape: re.Pattern[str] | None = None
        self._steps: list[str] = []

    def feed(self, line: str) -> list[str]:
        """The lines to show now that this one has come; it may have to wait for the next."""
        shape = _shape_of(line)
        if shape is not None and shape is self._shape:
            self._steps.append(line)
            return []
        shown = self.rest()
        if shape is None:
            return [*shown, line]
        self._shape, self._steps = shape, [line]
        return shown

    def rest(self) -> list[str]:
        """The lines that still wait: no further one comes."""
        steps, self._steps, self._shape = self._steps, [], None
        if len(steps) <= MOST_STEPS:
            return steps
        indent = steps[0][: len(steps[0]) - len(steps[0].lstrip())] or "    "
        return [steps[0], f"{indent}({len(steps) - 2} more steps between: {self._where})", steps[-1]]


def _shape_of(line: str) -> re.Pattern[str] | None:
    if " at line " in line and _EDG.match(line):
        return _EDG
    return _GCC if "required " in line and _GCC.match(line) else None
