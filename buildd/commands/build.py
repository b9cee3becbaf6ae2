"""`buildd build`: targets of a project, built through the daemon and shown as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from buildd.cli import FAILED, OK, USAGE
from buildd.commands.common import parser, print_problem
from buildd.commands.perform import carry_out, status_of
from buildd.commands.request import add_request_arguments, request_from
from buildd.devices import driver_program
from buildd.ui.narrator import Telling
from buildd.ui.screen import view_for
from buildd.ui.view import Several, View
from protocol.messages import Event, Explained, Mode

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: list[str]) -> int:
    command = parser(
        "build",
        "Build targets of buildd.toml; all of its default ones when none is named.",
        details="--json prints the fields of protocol.messages.Event; protocol/SPEC.md describes each.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets")
    add_request_arguments(command)
    command.add_argument("-k", "--keep-going", action="store_true", help="after a failure build what does not need it")
    command.add_argument("--recache", action="store_true", help="run every action again and overwrite its entry")
    command.add_argument("--explain", action="store_true", help="say for each action why it hit or ran")
    command.add_argument("--trace", metavar="FILE", default="", help="write a Chrome / Perfetto trace")
    return perform(command.parse_args(arguments), Mode.BUILD)


def perform(options: Namespace, mode: Mode) -> int:
    """Make the request that `options` ask for, have it done, and return the exit status."""
    environ = dict(os.environ)
    request = request_from(options, tuple(options.targets), mode, environ)
    telling = Telling(reasons=getattr(options, "explain", False), mode=mode, build=request.build_id)
    trace = getattr(options, "trace", "")
    watched: list[Watched] = []

    def views() -> View:
        several: list[View] = []
        if trace:
            from buildd.ui.trace import TraceView

            several.append(TraceView(trace))
        several.append(view_for(sys.stdout, sys.stderr, json=options.json, telling=telling, environ=environ))
        watched.append(Watched(several))
        return watched[-1]

    try:
        view = views()
    except OSError as error:
        print_problem(f"no trace can be written: {error.strerror}", file=trace, next_step="name another file")
        return USAGE
    if mode is Mode.BUILD and driver_program(environ):
        from buildd.commands.measured_first import carry_out_measured  # on machines with a GPU

        done = carry_out_measured(request, view, views, options, environ)
    else:
        done = carry_out(request, view, no_daemon=options.no_daemon, environ=environ)
    status = status_of(done)
    return FAILED if mode is Mode.PROVE and status == OK and watched[-1].would_run else status


class Watched(Several):
    """Several views, and whether anything was said that would still run."""

    def __init__(self, views: Iterable[View]) -> None:
        super().__init__(views)
        self.would_run = False

    def event(self, event: Event) -> None:
        if isinstance(event.body, Explained) and event.body.would_run:
            self.would_run = True
        super().event(event)
