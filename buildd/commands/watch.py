"""`buildd watch`: build targets now, and again whenever what they are built of changes; ours or another tool's."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from buildd.cli import OK, USAGE, Interrupted
from buildd.commands.common import parser, print_problem
from buildd.commands.perform import stopping_signals
from buildd.commands.request import add_request_arguments, request_from, store_of
from buildd.commands.saves import Saves, new_name
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.notifier import Notifier
from buildd.ui.plain import PlainView
from buildd.ui.rounds import Rounds
from buildd.ui.screen import has_colour, is_terminal, view_for
from buildd.ui.view import JsonView, View, Writer
from protocol.messages import BuildId, Compared, Event, Mode, Request, RequestId

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: list[str]) -> int:
    command = parser(
        "watch",
        "Build targets, and again whenever one of their inputs changes; all default targets when none is named.",
        details="Ctrl-C ends it. Content decides: a file that was only touched builds nothing.\n"
        "With --ninja or --make, TARGETs are that tool's, and its compilers go through the daemon as in `buildd run`.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets")
    add_request_arguments(command)
    command.add_argument("-k", "--keep-going", action="store_true", help="after a failure build what does not need it")
    other = command.add_mutually_exclusive_group()
    other.add_argument(
        "--ninja", metavar="DIR", default=None, help="a build folder of CMake, Meson ...: run ninja there"
    )
    other.add_argument("--make", metavar="DIR", nargs="?", const=".", default=None, help="a folder with a Makefile")
    command.add_argument(
        "--profile",
        metavar="TARGET",
        action="append",
        default=[],
        help="run this target's kernel (kind gemm or conv2d) on a GPU after each good build; may be repeated",
    )
    command.add_argument(
        "--problem", metavar="MxNxK", action="append", default=[], help="for --profile: sizes that a target leaves open"
    )
    command.add_argument(
        "--notify", action="store_true", help="tell the desktop when a build fails, and when it is mended"
    )
    options = command.parse_args(arguments)
    if options.no_daemon:
        print_problem("only a daemon watches", next_step="leave --no-daemon out")
        return USAGE
    if options.profile and (options.ninja is not None or options.make is not None):
        print_problem("only buildd.toml says what a kernel is to be measured on", next_step="leave --profile out")
        return USAGE
    environ = dict(os.environ)
    words = Writer(sys.stderr if options.json else sys.stdout)
    words.colour = has_colour(words.stream, environ)

    def view(build: BuildId) -> View:
        telling = Telling(build=build)
        if options.json:
            return PlainView(words, Narrator(telling))
        return view_for(sys.stdout, sys.stderr, json=False, telling=telling, environ=environ)

    every = JsonView(Writer(sys.stdout)).event if options.json else lambda event: None
    name, numbers = new_name(), itertools.count(1)

    def compared(body: Compared) -> None:
        every(Event(request_id=name, sequence=next(numbers), time_ns=time.time_ns(), body=body))

    notifier = Notifier(environ) if options.notify else None
    rounds = Rounds(
        words,
        view,
        clear=is_terminal(words.stream, environ) and not options.json,
        partial=options.ninja is not None or options.make is not None,
        notify=notifier.notify if notifier is not None else None,
        compared=compared,
    )
    if notifier is not None and notifier.problem:
        rounds.note(notifier.problem)
    try:
        with stopping_signals(), _saves(options, environ, rounds, every) as saves:
            saves.run()
    except Interrupted as stop:
        rounds.drop()
        return stop.status
    except KeyboardInterrupt:
        rounds.drop()
    return OK  # Ctrl-C is the only way to end it


@contextmanager
def _saves(
    options: Namespace, environ: dict[str, str], rounds: Rounds, every: Callable[[Event], None]
) -> Iterator[Saves]:
    """What watches and builds. Raises RequestError, BuilddError."""
    if options.ninja is None and options.make is None:
        targets = tuple(dict.fromkeys((*options.targets, *options.profile)))
        request = request_from(options, targets, Mode.BUILD, environ)
        if not options.profile:
            yield Saves(request, environ, rounds, every)
            return
        from buildd.commands.measured import Measured

        with Measured(request, environ, rounds, every, options.profile, options.problem) as measured:
            yield measured.saves
        return
    from buildd.commands.rebuilds import Rebuilds
    from buildd.commands.treetools import tree_of, with_compilers

    with with_compilers(environ, options.jobs, rounds.note) as inside:
        tree = tree_of(options.ninja, options.make, options.targets, inside)
        tree.describe()
        if notice := tree.notice():
            rounds.note(notice)
        request = Request(
            request_id=RequestId(""), build_id=BuildId(""), project=tree.folder, file="", store=store_of(environ)
        )
        yield Rebuilds(tree, request, inside, rounds, every, jobs=options.jobs)
