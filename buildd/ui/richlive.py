"""The only module that imports rich: the live region as rich sees it.

Knows no build. rich measures the terminal, hides the cursor and takes the region away again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, ConsoleDimensions, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from buildd.ui.text import Line, Style

_STYLES = {
    Style.PLAIN: "",
    Style.HEADING: "bold",
    Style.GOOD: "green",
    Style.FAINT: "dim",
    Style.WARNING: "yellow",
    Style.ERROR: "bold red",
}


class Written:
    """Text that goes out as it is: rich would look at every character of 10 MB to wrap it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class _Terminal(Console):
    """rich measures standard input, output and error; the region may stand on another terminal than those."""

    @property
    def size(self) -> ConsoleDimensions:
        try:
            columns, rows = os.get_terminal_size(self.file.fileno())
        except (OSError, ValueError):
            columns, rows = 0, 0
        return ConsoleDimensions(columns or 80, rows or 24)

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        raise AttributeError("a terminal has the size that it has")


def live_on(stream: TextIO, colour: bool, region: Callable[[int, int], list[Line]]) -> Live:
    """A live region on `stream` that shows what `region(columns, rows)` says; refreshed by the caller.

    Args:
        stream: a terminal.
        colour: whether styles are shown.
        region: lines no wider than `columns`, at most `rows` of them.
    """
    console = _Terminal(
        file=stream,
        force_terminal=True,
        force_interactive=True,
        legacy_windows=False,
        no_color=not colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
    )

    def render() -> Group:
        # One column less: some terminals wrap as soon as the last one is written to.
        columns, rows = console.size
        lines = region(max(1, columns - 1), max(1, rows - 1))
        return Group(*(Text(line.text, style=_STYLES[line.style], no_wrap=True, overflow="crop") for line in lines))

    return Live(
        console=console,
        get_renderable=render,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    )
