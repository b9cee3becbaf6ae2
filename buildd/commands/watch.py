"""`buildd watch`: build targets now, and again whenever what they are built of changes."""

from __future__ import annotations

import os
import sys

from buildd.cli import OK, USAGE
from buildd.commands.common import parser, print_problem
from buildd.commands.request import add_request_arguments, request_from
from buildd.commands.saves import Saves
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.plain import PlainView
from buildd.ui.rounds import Rounds
from buildd.ui.screen import has_colour, is_terminal, view_for
from buildd.ui.view import JsonView, View, Writer
from protocol.messages import BuildId, Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "watch",
        "Build targets, and again whenever one of their inputs changes; all default targets when none is named.",
        details="Ctrl-C ends it. Content decides: a file that was only touched builds nothing.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets")
    add_request_arguments(command)
    command.add_argument("-k", "--keep-going", action="store_true", help="after a failure build what does not need it")
    options = command.parse_args(arguments)
    if options.no_daemon:
        print_problem("only a daemon watches", next_step="leave --no-daemon out")
        return USAGE
    environ = dict(os.environ)
    request = request_from(options, tuple(options.targets), Mode.BUILD, environ)
    words = Writer(sys.stderr if options.json else sys.stdout)
    words.colour = has_colour(words.stream, environ)

    def view(build: BuildId) -> View:
        telling = Telling(build=build)
        if options.json:
            return PlainView(words, Narrator(telling))
        return view_for(sys.stdout, sys.stderr, json=False, telling=telling, environ=environ)

    rounds = Rounds(words, view, clear=is_terminal(words.stream, environ) and not options.json)
    every = JsonView(Writer(sys.stdout)).event if options.json else lambda event: None
    try:
        Saves(request, environ, rounds, every).run()
    except KeyboardInterrupt:
        rounds.drop()
    return OK  # Ctrl-C is the only way to end it
