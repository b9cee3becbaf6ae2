"""`buildd explain TARGET|FILE`: per action "hit", or the reasons why it would run. Runs nothing."""

from __future__ import annotations

import os
import sys
import tomllib

from buildd.commands.common import parser
from buildd.commands.perform import carry_out, status_of
from buildd.commands.request import add_request_arguments, project_of, request_from
from buildd.ui.narrator import Telling
from buildd.ui.screen import view_for
from protocol.messages import Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "explain",
        "Say for each action whether it would hit, or which inputs, flags, variables and tools make it run.",
        details="A FILE restricts the answer to the actions that name it.",
    )
    command.add_argument("what", metavar="TARGET|FILE", nargs="?", default="", help="default: all default targets")
    add_request_arguments(command)
    options = command.parse_args(arguments)
    environ = dict(os.environ)
    project, file = project_of(options.directory, options.file)
    names = target_names(os.path.join(project, file))
    only = ""
    targets: tuple[str, ...] = (options.what,) if options.what else ()
    if options.what and options.what not in names and os.path.lexists(options.what):
        only, targets = relative_to(project, options.what), names
    request = request_from(options, targets, Mode.EXPLAIN, environ)
    telling = Telling(mode=Mode.EXPLAIN, only=only, build=request.build_id)
    view = view_for(sys.stdout, sys.stderr, json=options.json, telling=telling, environ=environ)
    return status_of(carry_out(request, view, no_daemon=options.no_daemon, environ=environ))


def target_names(path: str) -> tuple[str, ...]:
    """The names of all targets in a project file; none where it cannot be read (the answer then says why)."""
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return ()
    targets = table.get("target", {})
    return tuple(targets) if isinstance(targets, dict) else ()


def relative_to(project: str, path: str) -> str:
    """How plans name a file: relative inside the project, absolute outside."""
    absolute = os.path.abspath(path)
    inside = os.path.relpath(absolute, project)
    return absolute if inside.startswith("..") else inside
