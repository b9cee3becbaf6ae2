"""The table of kernels after a build: their resource use, before and now, the worst change first.

Fits the terminal: columns that say nothing are left out, then names are shortened. Knows no build.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buildd.artifacts.occupancy import max_threads, occupancy
from buildd.ui import text
from buildd.ui.kernel_names import demangled, in_short
from buildd.ui.text import Line, Style, clean
from protocol import messages as m

MOST_KERNELS = 24
"""Most rows of a table; more would scroll the errors away."""
_NAME_COLUMNS = 60
_LEAST_NAME = 12
_WANTED_NAME = 32
"""So much room for names is made by leaving out columns that are the same in all rows."""
Pair = tuple[m.Kernel | None, m.Kernel | None]
"""A kernel before and now; None where it did not exist."""


def _percent(kernel: m.Kernel) -> int:
    share = occupancy(kernel)
    return round(100 * share) if share >= 0 else -1


_COLUMNS: tuple[tuple[str, Callable[[m.Kernel], int], str, bool], ...] = (
    ("regs", lambda kernel: kernel.registers, "", True),
    ("scalar", lambda kernel: kernel.scalar_registers, "", False),
    ("occup", _percent, "%", False),
    ("threads", max_threads, "", False),
    ("spill st", lambda kernel: kernel.spill_store_bytes, "", False),
    ("spill ld", lambda kernel: kernel.spill_load_bytes, "", False),
    ("spilled", lambda kernel: kernel.spilled_registers, "", False),
    ("shared", lambda kernel: kernel.shared_bytes, "", False),
    ("stack", lambda kernel: kernel.stack_bytes, "", False),
    ("const", lambda kernel: kernel.constant_bytes, "", False),
)
"""Title, value, unit, and whether it stays if it is 0 in all rows. The last ones are left out first."""


def kernel_table(
    changes: Sequence[Pair], *, whole: bool = False, columns: int = 0, most: int = MOST_KERNELS
) -> list[Line]:
    """The lines of the table.

    Args:
        whole: there is no earlier build, so no kernel is marked as new.
        columns: width that no line exceeds; 0: any.
        most: number of rows.
    """
    ordered = sorted(changes, key=worsened, reverse=True) if not whole else list(changes)
    shown = ordered[:most]
    names = in_short(demangled([(now or before or _NOBODY).name for before, now in shown]))
    cells = [(title, [_cell(pair, value, unit) for pair in shown]) for title, value, unit, _ in _said(shown)]
    marks = ["" if whole or (before and now) else "+ " if now else "- " for before, now in shown]
    archs = [(now or before or _NOBODY).arch for before, now in shown]
    cells.insert(0, ("arch", archs))
    widths = [max(len(title), *(len(cell) for cell in column)) if column else len(title) for title, column in cells]
    longest = max((len(mark) + len(clean(name)) for mark, name in zip(marks, names, strict=True)), default=6)
    name_columns = max(len("kernel"), min(_NAME_COLUMNS, longest))
    for least in (min(name_columns, _WANTED_NAME), _LEAST_NAME):
        while columns and least + _together(widths) > columns:
            dropped = _droppable(cells, equal=least != _LEAST_NAME)
            if dropped is None:
                break
            del cells[dropped], widths[dropped]
    if columns:
        name_columns = max(6, min(name_columns, columns - _together(widths)))
    rows = [["kernel", *(title for title, _ in cells)]]
    for number, (mark, name) in enumerate(zip(marks, names, strict=True)):
        short = mark + text.shortened(clean(name), name_columns - len(mark))
        rows.append([short, *(column[number] for _, column in cells)])
    styles = [Style.FAINT, *(_style_of(before, now) for before, now in shown)]
    lines = []
    for row, style in zip(rows, styles, strict=True):
        line = "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, (name_columns, *widths), strict=True))
        lines.append(Line(line.rstrip()[: columns or None], style))
    if len(changes) > len(shown):
        lines.append(Line(f"  and {len(changes) - len(shown)} more", Style.FAINT))
    if whole and all(now is not None and now.arch.startswith("sm_") and _spills_unknown(now) for _, now in shown):
        lines.append(Line("  spills are known if you compile with -Xptxas=-v", Style.FAINT))
    return lines


_NOBODY = m.Kernel(name="", arch="")


def worsened(pair: Pair) -> tuple[int, ...]:
    """How much worse a kernel is than before: by spills, occupancy, registers, stack; a greater tuple is worse."""
    before, now = pair
    if now is None:
        return (-1,)
    if before is None:
        return (0, 0)
    spills, registers, stack = (
        value(now) - value(before)
        for value in (_spills, lambda k: max(0, k.registers), lambda k: max(0, k.stack_bytes))
    )
    lost = max(0, _percent(before)) - max(0, _percent(now))
    worse = max(spills, lost, registers, stack) > 0
    return (1 if worse else 0, spills, lost, registers, stack)


def _together(widths: Sequence[int]) -> int:
    """Columns of everything but the names."""
    return 2 + sum(width + 2 for width in widths)


def _droppable(cells: Sequence[tuple[str, Sequence[str]]], *, equal: bool) -> int | None:
    """The column to leave out next: the last one, but for architecture, registers and one more.

    Args:
        equal: only a column that is the same in all of several rows.
    """
    for number in range(len(cells) - 1, 1 if equal else 2, -1):
        column = cells[number][1]
        if not equal or (len(column) > 1 and len(set(column)) == 1):
            return number
    return None


def _said(shown: Sequence[Pair]) -> list[tuple[str, Callable[[m.Kernel], int], str, bool]]:
    """The columns in which a kernel has a value that is not 0."""
    kernels = [kernel for pair in shown for kernel in pair if kernel is not None]
    return [
        column
        for column in _COLUMNS
        if any(value > 0 or (column[3] and value == 0) for value in map(column[1], kernels))
    ]


def _cell(pair: Pair, value: Callable[[m.Kernel], int], unit: str) -> str:
    before, now = (-1 if kernel is None else value(kernel) for kernel in pair)
    if min(before, now) >= 0 and before != now:
        return f"{before} -> {now}{unit}"
    return f"{max(before, now)}{unit}" if max(before, now) >= 0 else "-"


def _spills(kernel: m.Kernel) -> int:
    return max(0, kernel.spill_store_bytes) + max(0, kernel.spill_load_bytes) + max(0, kernel.spilled_registers)


def _spills_unknown(kernel: m.Kernel) -> bool:
    return kernel.spill_store_bytes < 0 and kernel.spilled_registers < 0


def _style_of(before: m.Kernel | None, now: m.Kernel | None) -> Style:
    if before is None or now is None:
        return Style.PLAIN
    if _spills(now) > _spills(before) or 0 <= _percent(now) < _percent(before):
        return Style.WARNING
    better = _spills(now) < _spills(before) or _percent(now) > _percent(before) >= 0
    return Style.GOOD if better else Style.PLAIN
