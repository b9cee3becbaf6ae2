"""What commands share: how they parse, how they say that something is wrong.

Knows no command. Cheap to import: argparse only inside `parser`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from buildd.ui.text import Line


def parser(command: str, summary: str, *, details: str = "") -> ArgumentParser:
    """The argument parser of `buildd COMMAND`. Abbreviated options are refused: scripts outlive option lists."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    class Formatter(RawDescriptionHelpFormatter):
        # argparse makes one for every argument that it is told of, and without a width each asks shutil, whose import
        # costs more than all of argparse.
        def __init__(self, prog: str) -> None:
            super().__init__(prog, width=_columns() - 2)

    return ArgumentParser(
        prog=f"buildd {command}",
        description=summary,
        epilog=details or None,
        allow_abbrev=False,
        formatter_class=Formatter,
    )


def _columns() -> int:
    """As `shutil.get_terminal_size`: $COLUMNS, else what the terminal says, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def is_on(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable of ours says yes. Unset, empty, 0, false, no and off do not."""
    return environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def print_problem(message: str, *, file: str = "", command: str = "", next_step: str = "") -> None:
    """The one shape of an error, on stderr."""
    from buildd.ui.narrator import problem_lines

    print_lines(problem_lines(message, file=file, command=command, next_step=next_step), to_stderr=True)


def print_note(text: str) -> None:
    """One line on stderr about what happens instead of what was asked."""
    from buildd.ui.text import Line, Style

    print_lines([Line(text, Style.WARNING)], to_stderr=True)


def print_lines(lines: Iterable[Line], *, to_stderr: bool = False) -> None:
    """Styled lines for people. A reader that went away is no error."""
    from buildd.ui.screen import has_colour
    from buildd.ui.view import Writer

    stream = sys.stderr if to_stderr else sys.stdout
    Writer(stream, colour=has_colour(stream, os.environ)).lines(lines)
