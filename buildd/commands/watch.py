"""`buildd watch`: builds targets of buildd.toml or of another tool now, and again whenever their inputs change."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import time
from argparse import SUPPRESS, BooleanOptionalAction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from buildd.client.after_build import AfterBuild
from buildd.client.perform import stopping_signals
from buildd.client.request import (
    add_output_arguments,
    add_request_arguments,
    project_of,
    request_from,
    store_of,
    with_files,
    with_loudness,
)
from buildd.client.watch_session import Saves, new_name
from buildd.exits import OK, USAGE, Interrupted
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.notifier import Notifier
from buildd.ui.plain import PlainView
from buildd.ui.problems import parser, print_problem
from buildd.ui.rounds import Rounds
from buildd.ui.screen import has_colour, is_terminal, view_for
from buildd.ui.view import JsonView, View, Writer
from codegen.errors import RequestError
from protocol.messages import BuildId, Compared, Done, Event, Mode, Ran, Request, RequestId

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: list[str]) -> int:
    command = parser(
        "watch",
        "Build targets now, and again whenever one of their inputs changes.",
        details="Ctrl-C ends it. Only content counts: touching a file builds nothing.\n"
        "COMMAND runs after the first good build, and after each later one that made something new. If the last run "
        "still goes on then, buildd ends it first: its process group gets SIGTERM, and after ten seconds SIGKILL.\n"
        "With --ninja or --make, the TARGETs are that tool's, and the daemon caches its compiles as in `buildd run`.",
    )
    command.usage = "buildd watch [OPTION...] [TARGET...] [-- COMMAND [ARGUMENT...]]"
    command.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="targets to build (default: those in `default` of `[project]`; without that key, all)",
    )
    add_request_arguments(command, in_process=SUPPRESS)  # --no-daemon has an error message of its own
    add_output_arguments(command)
    command.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="after a failure, go on with everything that does not depend on it",
    )
    other = command.add_mutually_exclusive_group()
    other.add_argument(
        "--ninja", metavar="DIR", default=None, help="run ninja in DIR, a build folder of CMake, Meson ..."
    )
    other.add_argument("--make", metavar="DIR", nargs="?", const=".", default=None, help="run make in DIR (default: .)")
    command.add_argument(
        "--map-paths", action=BooleanOptionalAction, default=None, help="with --ninja or --make: as for `buildd run`"
    )
    command.add_argument(
        "--profile",
        metavar="TARGET",
        action="append",
        default=[],
        help="run this target's kernel on a GPU after each good build: kind gemm or conv2d, or cuda or triton with the "
        "table `measure`; may be repeated",
    )
    command.add_argument(
        "--problem",
        metavar="MxNxK",
        action="append",
        default=[],
        help="with --profile: sizes that a target leaves open",
    )
    command.add_argument(
        "--notify", action="store_true", help="show a desktop notification when a build fails, and when it works again"
    )
    command.add_argument("--no-clear", action="store_true", help="do not clear the terminal before each build")
    own, marker, rest = _divided(arguments)
    options = command.parse_args(own)
    if marker and not rest:
        print_problem("no command to run", command="buildd watch -- ./test", next_step="put a command after --")
        return USAGE
    if options.no_daemon:
        print_problem("watching needs the daemon", next_step="leave out --no-daemon")
        return USAGE
    if options.profile and (options.ninja is not None or options.make is not None):
        print_problem("--profile needs targets of buildd.toml, not of another tool", next_step="leave out --profile")
        return USAGE
    environ = dict(os.environ)
    is_tree = options.ninja is not None or options.make is not None
    if options.map_paths is not None and not is_tree:
        print_problem("--map-paths is for builds of other tools", next_step="write `map_paths = true` into the targets")
        return USAGE
    told = environ if is_tree else with_files(environ, *_project(options))
    told = with_loudness(told, options)
    words = Writer(sys.stderr if options.json else sys.stdout)
    words.colour = has_colour(words.stream, environ)

    def view(build: BuildId) -> View:
        telling = Telling(build=build, refusals=True, commands=is_tree)
        if options.json:
            return PlainView(words, Narrator(telling))
        # The output of a command that still runs would destroy a live region.
        still = {"BUILDD_PROGRESS": "0"} if after is not None and after.is_running else {}
        return view_for(sys.stdout, sys.stderr, json=False, telling=telling, environ={**told, **still})

    in_json = JsonView(Writer(sys.stdout)).event if options.json else lambda event: None
    is_first = True

    def every(event: Event) -> None:
        nonlocal is_first
        in_json(event)
        if is_first and isinstance(event.body, Done):
            is_first = False
            if event.body.code == "unknown-target":  # a slip in the command, not in a file that will be saved
                done = event.body
                raise RequestError(done.code, done.message, file=done.file, next_step=done.next_step)

    name, numbers = new_name(), itertools.count(1)

    def tell(body: Compared | Ran) -> None:
        in_json(Event(request_id=name, sequence=next(numbers), time_ns=time.time_ns(), body=body))

    notifier = Notifier(environ) if options.notify else None
    rounds = Rounds(
        words,
        view,
        clear=is_terminal(words.stream, environ) and not (options.json or options.no_clear),
        partial=is_tree,
        notify=notifier.notify if notifier is not None else None,
        compared=tell,
    )
    after = AfterBuild(rest, dict(os.environ), rounds, tell, 2 if options.json else None) if rest else None
    if notifier is not None and notifier.problem:
        rounds.note(notifier.problem)
    try:
        with stopping_signals(), _saves(options, environ, rounds, after or rounds, every) as saves:
            if after is not None:
                after.call = saves.call
            saves.run()
    except Interrupted as stop:
        return stop.status
    except KeyboardInterrupt:
        rounds.drop()
        if is_terminal(words.stream, environ):
            words.write("\nthe watch has ended\n")  # on a line of its own: the terminal has written ^C
    finally:
        rounds.drop()
        if after is not None:
            after.close()
    return OK  # Ctrl-C is the only way to end it


def _project(options: Namespace) -> tuple[str, str]:
    """As `project_of`, whose error also names the trees of other tools that are there."""
    try:
        return project_of(options.directory, options.file)
    except RequestError as error:
        if not options.file and (trees := _trees_in(options.directory)):
            error.next_step += f"; or run {' or '.join(trees)}"
        raise


def _trees_in(folder: str) -> list[str]:
    """The commands that watch the build trees of a folder."""
    found = []
    for option, files in (("ninja", ("build.ninja",)), ("make", ("GNUmakefile", "makefile", "Makefile"))):
        places = (os.path.join(folder, "build"), folder)
        place = next((place for place in places for name in files if os.path.isfile(os.path.join(place, name))), None)
        if place is not None:
            found.append(f"buildd watch --{option} {shlex.quote(place or '.')}")
    return found


@contextmanager
def _saves(
    options: Namespace,
    environ: dict[str, str],
    rounds: Rounds,
    listener: Rounds | AfterBuild,
    every: Callable[[Event], None],
) -> Iterator[Saves]:
    """The session that watches and builds. Raises RequestError, BuilddError."""
    if options.ninja is None and options.make is None:
        targets = tuple(dict.fromkeys((*options.targets, *options.profile)))
        request = request_from(options, targets, Mode.BUILD, environ)
        if not options.profile:
            yield Saves(request, environ, listener, every)
            return
        from buildd.profiling.measured_watch import MeasuredWatch

        with MeasuredWatch(request, environ, listener, every, options.profile, options.problem) as measured:
            yield measured.saves
        return
    from buildd.trees.tree_tools import tree_of, with_compilers
    from buildd.trees.tree_watch import Rebuilds

    with with_compilers(environ, options.jobs, rounds.note, options.map_paths) as inside:
        tree = tree_of(options.ninja, options.make, options.targets, inside)
        tree.describe()
        if notice := tree.notice():
            rounds.note(notice)
        request = Request(
            request_id=RequestId(""), build_id=BuildId(""), project=tree.folder, file="", store=store_of(environ)
        )
        yield Rebuilds(tree, request, inside, listener, every, jobs=options.jobs)


def _divided(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """buildd's own arguments, whether there is a --, and the command behind it."""
    if "--" not in arguments:
        return arguments, False, []
    index = arguments.index("--")
    return arguments[:index], True, arguments[index + 1 :]
