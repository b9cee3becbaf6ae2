"""The command line as data: each command with its options and arguments, read from its parser.

Completions and the manual page are written from it, so they say what the parsers accept. Knows no command by name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from buildd.ui import problems


class Value(Enum):
    """What a word on the command line names, as far as a shell can complete it."""

    NONE = "none"
    TEXT = "text"
    FILE = "file"
    FOLDER = "folder"
    PROGRAM = "program"
    TARGET = "target"
    BUILD = "build"
    COMMAND = "command"
    """A command with its arguments, to the end of the line."""


_VALUES = {
    "FILE": (Value.FILE,),
    "DIR": (Value.FOLDER,),
    "PATH": (Value.FILE,),
    "PROGRAM": (Value.PROGRAM,),
    "TARGET": (Value.TARGET,),
    "BUILD": (Value.BUILD,),
    "TARGET|FILE|ACTION|BUILD": (Value.TARGET, Value.FILE),
}
"""Name of a value in the help -> what it names."""


@dataclass(frozen=True, slots=True)
class Word:
    """An option, or an argument that is no option."""

    names: tuple[str, ...]
    """Spellings of the option, short ones first; empty for an argument."""
    metavar: str
    """The value's name; empty for an option without one."""
    help: str
    values: tuple[Value, ...]
    choices: tuple[str, ...] = ()
    """All values that are accepted; empty: any."""
    many: bool = False
    """An argument that may be given several times."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    name: str
    """As it is written after `buildd`: "build", "cache gc"."""
    summary: str
    usage: str
    """The line of the help, without "usage: "."""
    details: str
    options: tuple[Word, ...]
    arguments: tuple[Word, ...]
    below: tuple[Command, ...] = ()
    """Actions of the command."""


def described(name: str, summary: str, run: Callable[[list[str]], object]) -> Command:
    """The command that `run` carries out. `run` makes its parser with `problems.parser`, and nothing else first."""
    with problems.asked_for_parser():
        try:
            run(["--help"])
        except problems.ParserMade as made:
            return _command(name, made.parser, summary)
    raise AssertionError(f"buildd {name} has no parser")


def _command(name: str, parser: argparse.ArgumentParser, summary: str = "") -> Command:
    options: list[Word] = []
    arguments: list[Word] = []
    below: list[Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            below += [_command(f"{name} {word}", each, helps.get(word, "")) for word, each in action.choices.items()]
        elif action.help != argparse.SUPPRESS:
            (options if action.option_strings else arguments).append(_word(action))
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    if "COMMAND" in (parser.usage or ""):
        arguments.append(Word((), "COMMAND", "the command to run, with its arguments", (Value.COMMAND,)))
    said = parser.description or ""
    return Command(name, summary or said, usage, parser.epilog or "", tuple(options), tuple(arguments), tuple(below))


def _word(action: argparse.Action) -> Word:
    takes = not action.option_strings or action.nargs != 0
    name = (action.metavar if isinstance(action.metavar, str) else action.dest.upper()) if takes else ""
    choices = tuple(map(str, action.choices)) if action.choices is not None and takes else ()
    if not action.option_strings and action.metavar is None:
        name = action.dest.upper()
    values = _VALUES.get(name, (Value.TEXT,)) if takes else (Value.NONE,)
    names = tuple(sorted(action.option_strings, key=lambda spelled: (spelled.startswith("--"), spelled)))
    return Word(
        names,
        name,
        " ".join((action.help or "").split()).replace("%%", "%"),
        values,
        choices,
        action.nargs in ("*", "+"),
    )
