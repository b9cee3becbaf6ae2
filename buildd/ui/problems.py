"""Shared by all commands: the argument parser and the layout of errors and notes.

Knows no command. Cheap to import: argparse only inside `parser`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from buildd.exits import USAGE

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from buildd.ui.text import Line


SILENCE_S = 1.0
"""What takes longer is spoken of."""


class ParserMade(Exception):
    """Carries the parser of a command that was called to describe itself."""

    def __init__(self, parser: ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


_asked: list[bool] = []
"""Not empty: parsers are not used, but shown to the caller."""


@contextmanager
def asked_for_parser() -> Iterator[None]:
    """Inside the context a command raises `ParserMade` where it would parse its arguments."""
    _asked.append(True)
    try:
        yield
    finally:
        _asked.pop()


def parser(command: str, summary: str, *, details: str = "") -> ArgumentParser:
    """The argument parser of `buildd COMMAND`. Refuses abbreviated options: scripts outlive option lists."""
    from argparse import SUPPRESS, Action, ArgumentParser, RawDescriptionHelpFormatter

    class Formatter(RawDescriptionHelpFormatter):
        # argparse makes a formatter for every argument, and each one without a width asks shutil, whose import
        # costs more than all of argparse.
        def __init__(self, prog: str) -> None:
            super().__init__(prog, width=_columns() - 2)

        def add_usage(self, usage: str | None, *others: Any, **named: Any) -> None:
            # argparse wraps no usage that a command words itself, and no raw description: a terminal would break words.
            super().add_usage(usage and _wrapped(usage, self._width - len("usage: "), hang=7), *others, **named)

        def add_text(self, text: str | None) -> None:
            super().add_text(text and _wrapped(text, self._width))

    class Coloured(Action):
        def __call__(self, parser: ArgumentParser, options: Namespace, value: object, name: str | None = None) -> None:
            os.environ["BUILDD_COLOR"] = str(value)

    class Parser(ArgumentParser):
        def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
            if _asked:
                raise ParserMade(self)
            return super().parse_known_args(args, namespace)

        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            print_problem(message + _meant(self, message), next_step=f"{self.prog} --help says more")
            raise SystemExit(USAGE)

    made = Parser(
        prog=f"buildd {command}",
        description=summary,
        epilog=details or None,
        allow_abbrev=False,
        formatter_class=Formatter,
    )
    when = ("auto", "always", "never")
    made.add_argument(
        "--color", metavar="WHEN", choices=when, action=Coloured, default=SUPPRESS, help="auto, always or never"
    )
    return made


def _wrapped(text: str, width: int, hang: int = 0) -> str:
    """Lines of at most this width. What is in brackets stays together.

    Args:
        hang: how far the rest of a longer line is indented, beyond its own beginning.
    """
    import re
    from textwrap import fill

    joined = re.sub(r"\[[^][]*\]", lambda found: found[0].replace(" ", "\0"), text)
    return "\n".join(
        fill(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()) + hang), break_on_hyphens=False)
        for line in joined.splitlines()
    ).replace("\0", " ")


def _meant(parser: ArgumentParser, message: str) -> str:
    """The option or action that the user probably meant, behind argparse's message about an unknown one."""
    import difflib
    import re

    options = [option for action in parser._actions for option in action.option_strings]
    words = [word for action in parser._actions for word in action.choices or () if not action.option_strings]
    if match := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
        near = difflib.get_close_matches(match[1], options, n=1)
    elif match := re.search(r"invalid choice: '([^']*)'", message):
        near = difflib.get_close_matches(match[1], words, n=1)
    else:
        return ""
    return f"; did you mean {near[0]}?" if near else ""


def _columns() -> int:
    """As `shutil.get_terminal_size`: $COLUMNS, else the terminal's width, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def is_on(environ: Mapping[str, str], name: str) -> bool:
    """Whether one of buildd's variables is on: not unset, empty, 0, false, no or off."""
    return environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def print_problem(message: str, *, file: str = "", command: str = "", next_step: str = "") -> None:
    """Print an error on stderr, in the layout of all errors."""
    from buildd.ui.layout import problem_lines

    print_lines(problem_lines(message, file=file, command=command, next_step=next_step), to_stderr=True)


def print_note(text: str) -> None:
    """Print one line on stderr about something that the user did not ask for; on a terminal broken between words."""
    from buildd.ui.screen import screen_size
    from buildd.ui.text import Line, Style, broken

    columns, _ = screen_size(sys.stderr)
    print_lines([Line(line, Style.WARNING) for line in broken(text, columns)], to_stderr=True)


@contextmanager
def told_if_slow(words: str) -> Iterator[None]:
    """Print what happens inside the context if that takes longer than `SILENCE_S` and somebody sits at a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    import threading

    timer = threading.Timer(SILENCE_S, print_note, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_lines(lines: Iterable[Line], *, to_stderr: bool = False) -> None:
    """Print styled lines for people. A reader that went away is no error."""
    from buildd.ui.screen import has_colour
    from buildd.ui.view import Writer

    stream = sys.stderr if to_stderr else sys.stdout
    Writer(stream, colour=has_colour(stream, os.environ)).lines(lines)
