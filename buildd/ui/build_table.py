"""The table of past builds that `buildd log` prints: one line a build, in the width of the terminal.

Knows no store: it is given the builds. In a pipe nothing is shortened but long commands.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from buildd.shims.run_log import OngoingRun
from buildd.store.build_log import Build
from buildd.ui import text
from buildd.ui.text import Line, Style
from protocol.messages import Outcome

_COMMAND_COLUMNS = 40
"""A command in a pipe has so many."""
_LEAST_COMMAND, _LEAST_NAME = 16, 8
"""Columns for a command, or for the first letters of one where the terminal is narrow."""
_LEAST_FOLDER = 10
"""Less of a folder's path says nothing."""
_ID_COLUMNS = 8
"""An id has so many on a terminal without room for all of it: `buildd log` takes the first characters of one."""
_STYLES = {Outcome.BUILT: Style.PLAIN, Outcome.CANCELLED: Style.FAINT}


@dataclass(frozen=True, slots=True)
class _Row:
    build: str
    started_ns: int
    outcome: str
    wall_s: float
    figures: str
    command: str
    project: str
    style: Style = Style.PLAIN


def running_lines(runs: Iterable[OngoingRun], columns: int = 0) -> list[Line]:
    """One line for each `buildd run` that goes on, newest first."""
    now_ns = time.time_ns()
    rows = [
        _Row(
            text.clean(run.build_id),
            run.started_ns,
            "running",
            (now_ns - run.started_ns) / 1e9,
            "",
            text.clean(f"run -- {run.command}"),
            text.clean(run.project),
        )
        for run in runs
    ]
    return _lines(rows[::-1], columns)


def build_lines(builds: Iterable[Build], columns: int = 0) -> list[Line]:
    """One line a build, newest first.

    Args:
        columns: width that no line exceeds; 0: any.
    """
    return _lines([_row(build) for build in builds], columns) or [Line("no builds yet")]


def _row(build: Build) -> _Row:
    figures = build.summary
    what = f"{text.count(figures.hits, 'hit')}, {max(0, figures.misses - figures.failures)} compiled"
    if figures.failures:
        what += f", {figures.failures} failed"
    return _Row(
        text.clean(build.build_id),
        build.started_ns,
        build.outcome.value,
        figures.wall_s,
        what,
        text.clean(f"run -- {figures.command}" if figures.command else " ".join(build.targets) or "-"),
        text.clean(build.project),
        _STYLES.get(build.outcome, Style.ERROR),
    )


def _lines(rows: Sequence[_Row], columns: int) -> list[Line]:
    if not columns:
        return [
            Line("  ".join(filter(None, (*_head(row), _command(row, _COMMAND_COLUMNS), row.project))), row.style)
            for row in rows
        ]
    lines = []
    for cells, row in zip(_fitting(rows, columns), rows, strict=True):
        head = "  ".join(cells)
        room = max(0, columns - len(head) - 2)
        left = room - len(row.command) - 2
        folder = text.shortened(row.project, left) if left >= min(_LEAST_FOLDER, len(row.project)) else ""
        tail = f"{row.command}  {folder}" if folder else _command(row, room)
        lines.append(Line(f"{head}  {tail}"[:columns].rstrip(), row.style))
    return lines


def _head(row: _Row) -> tuple[str, ...]:
    return (
        row.build,
        _when(row, "%Y-%m-%d %H:%M:%S"),
        f"{row.outcome:<9}",
        f"{text.duration(row.wall_s):>9}",
        row.figures,
    )


def _fitting(rows: Sequence[_Row], columns: int) -> list[tuple[str, ...]]:
    """The cells before the command: the fullest that leave room for some of it."""
    named = [row.build[:_ID_COLUMNS] for row in rows]
    whens = [_when(row, "%m-%d %H:%M") for row in rows]
    outcomes, walls = [row.outcome for row in rows], [text.duration(row.wall_s) for row in rows]
    figures = [row.figures for row in rows]
    today = time.strftime("%m-%d")
    brief = [_when(row, "%H:%M" if _when(row, "%m-%d") == today else "%m-%d") for row in rows]
    ways: tuple[tuple[int, tuple[list[str], ...]], ...] = (
        (_LEAST_COMMAND, tuple(map(list, zip(*map(_head, rows), strict=True)))),
        (_LEAST_COMMAND, (named, whens, outcomes, walls, figures)),
        (_LEAST_COMMAND, (named, whens, outcomes, figures)),
        (_LEAST_NAME, (named, whens, outcomes, figures)),
        (_LEAST_NAME, (named, brief, outcomes, figures)),
        (0, (named, brief, outcomes, figures)),
        (0, (named, brief, outcomes)),
    )
    for least, way in ways:
        widths = [max(map(len, column), default=0) for column in way]
        if way is ways[-1][1] or sum(widths) + 2 * len(widths) + least <= columns:
            if not least:
                widths[-1] = min(1, widths[-1])  # not aligned: the shorter lines have room for a command then
            kept = [(column, width) for column, width in zip(way, widths, strict=True) if width]
            break
    return [tuple(column[number].ljust(width) for column, width in kept) for number in range(len(rows))]


def _when(row: _Row, form: str) -> str:
    return time.strftime(form, time.localtime(row.started_ns / 1e9))


def _command(row: _Row, room: int) -> str:
    """The command in so many columns, cut at its end: what it calls says most."""
    return row.command if len(row.command) <= room else f"{row.command[: max(0, room - 1)]}\u2026"
