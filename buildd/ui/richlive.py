"""The only module that imports rich: the live region, drawn by rich.

Knows no build. rich measures the terminal, hides the cursor and removes the region at the end.
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
    """Text written unchanged: to wrap it, rich would look at every character of 10 MB."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class _Terminal(Console):
    """A console that measures the region's own terminal; rich measures standard input, output and error."""

    measured: ConsoleDimensions | None = None
    """The size for one drawing: the region is removed and drawn with the same one."""

    def look(self) -> ConsoleDimensions:
        """Look at the terminal's size."""
        try:
            columns, rows = os.get_terminal_size(self.file.fileno())
        except (OSError, ValueError):
            columns, rows = 0, 0
        self.measured = ConsoleDimensions(columns or 80, rows or 24)
        return self.measured

    @property
    def size(self) -> ConsoleDimensions:
        return self.measured or self.look()

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        raise AttributeError("the size of a terminal cannot be set")


class Region(Live):
    """A live region whose lines may be wrapped when the terminal becomes narrower."""

    lengths: tuple[int, ...] = ()
    """Lengths of the lines as they were drawn last."""
    drawn_columns: int = 0

    def print_above(self, text: str) -> None:
        """Print above the region, and draw the region of now: rich alone draws the last one once more, in which a job
        still runs that the text says has ended."""
        self._live_render.set_renderable(self.renderable)
        self.console.print(Written(text), crop=False, end="")

    def settle(self) -> None:
        """Remove the rows that a narrower terminal has made of the region's lines: rich knows of one row a line.

        Call before each refresh. Terminals wrap lines anew when their width changes; xterm and Linux's console do not.
        """
        columns = self.console.look().width if isinstance(self.console, _Terminal) else 80
        was, self.drawn_columns = self.drawn_columns, columns
        if columns >= was or "XTERM_VERSION" in os.environ or os.environ.get("TERM") == "linux":
            return
        more = sum(-(-max(1, length) // columns) - 1 for length in self.lengths)
        if more > 0:
            self.console.file.write("\r\x1b[2K" + "\x1b[1A\x1b[2K" * more)


def live_on(stream: TextIO, colour: bool, region: Callable[[int, int], list[Line]]) -> Region:
    """A live region on `stream` that shows the lines of `region(columns, rows)`; the caller refreshes it.

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

    made: list[Region] = []

    def render() -> Group:
        # One column less: some terminals wrap as soon as the last one is written to.
        columns, rows = console.size
        lines = region(max(1, columns - 1), max(1, rows - 1))
        if made:  # rich asks once while it makes the region
            made[0].lengths = tuple(len(line.text) for line in lines)
        return Group(*(Text(line.text, style=_STYLES[line.style], no_wrap=True, overflow="crop") for line in lines))

    live = Region(
        console=console,
        get_renderable=render,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    )
    made.append(live)
    return live
