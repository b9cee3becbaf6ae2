"""`buildd build`: build targets of a project through the daemon and show the progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from buildd.client.otel import wants_spans
from buildd.client.perform import carry_out, status_of
from buildd.client.request import (
    add_output_arguments,
    add_request_arguments,
    project_of,
    request_from,
    with_files,
    with_loudness,
)
from buildd.exits import FAILED, OK, USAGE
from buildd.profiling.devices import driver_program
from buildd.ui.narrator import Telling
from buildd.ui.problems import parser, print_lines, print_problem
from buildd.ui.screen import view_for
from buildd.ui.text import Line, clean
from buildd.ui.view import Several, View, Writer
from protocol.messages import Event, Explained, Mode, RequestId

if TYPE_CHECKING:
    from argparse import Namespace


def run(arguments: list[str]) -> int:
    command = parser(
        "build",
        "Build targets of buildd.toml; without names, its default targets.",
        details="With --json each line is one protocol.messages.Event; protocol/SPEC.md describes its fields.",
    )
    command.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="targets to build (default: those in `default` of `[project]`; without that key, all)",
    )
    add_request_arguments(command)
    add_output_arguments(command)
    command.add_argument("-n", "--dry-run", action="store_true", help="run nothing; name the actions that would run")
    command.add_argument(
        "-k",
        "--keep-going",
        action="store_true",
        help="after a failure, go on with everything that does not depend on it",
    )
    command.add_argument(
        "--recache", action="store_true", help="run every action again and overwrite its stored result"
    )
    command.add_argument("--explain", action="store_true", help="say for each action why it hit or ran")
    command.add_argument(
        "--kernels", action="store_true", help="show registers, spills and occupancy of every kernel at the end"
    )
    command.add_argument("--open", action="store_true", help="show the build in a browser (extra `ui`)")
    command.add_argument("--trace", metavar="FILE", default="", help="write a Chrome / Perfetto trace of the build")
    command.add_argument("--list", action="store_true", help="build nothing; list the targets of the project")
    options = command.parse_args(arguments)
    if options.list:
        return list_targets(*project_of(options.directory, options.file))
    return perform(options, Mode.EXPLAIN if options.dry_run else Mode.BUILD)


def list_targets(project: str, file: str) -> int:
    """Print name and kind of each target, in the order of the project file. Raises RequestError."""
    from codegen.project.toml_file import read_toml

    _, tables = read_toml(os.path.join(project, file), file)
    targets = tables.get("target", {})
    rows = [(name, str(table.get("kind", ""))) for name, table in targets.items() if isinstance(table, dict)]
    width = max((len(name) for name, _ in rows), default=0)
    print_lines([Line(clean(f"{name:<{width}}  {kind}")) for name, kind in rows])
    return OK


def perform(options: Namespace, mode: Mode) -> int:
    """Carry out the request that `options` describe; return the exit status."""
    environ = dict(os.environ)
    request = request_from(options, tuple(options.targets), mode, environ)
    dry, reasons, kernels = (getattr(options, name, False) for name in ("dry_run", "explain", "kernels"))
    if mode is Mode.BUILD and (reasons or kernels):
        request = msgspec.structs.replace(request, known=RequestId(""))  # else an unchanged tree tells of no action
    telling = Telling(reasons=reasons, mode=mode, build=request.build_id, runs_alone=dry)
    told = with_loudness(with_files(environ, request.project, request.file), options)
    trace = getattr(options, "trace", "")
    watched: list[Watched] = []
    if getattr(options, "open", False):
        from buildd.commands.ui import open_build

        open_build(request.request_id)

    def views() -> View:
        several: list[View] = []
        if trace:
            from buildd.ui.trace import TraceView

            several.append(TraceView(trace))
        if mode is Mode.BUILD and wants_spans(environ):
            from buildd.web import spans

            title = f"buildd build {' '.join(options.targets)}".rstrip()
            several.append(spans.SpanView(environ, title, request.build_id))
        several.append(view_for(sys.stdout, sys.stderr, json=options.json, telling=telling, environ=told))
        if kernels and not options.json:  # JSON has them in its events
            from buildd.ui.kernels_view import KernelsView

            several.append(KernelsView(Writer(sys.stdout)))
        watched.append(Watched(several))
        return watched[-1]

    try:
        view = views()
    except OSError as error:
        print_problem(f"cannot write the trace: {error.strerror}", file=trace, next_step="name another file")
        return USAGE
    if mode is Mode.BUILD and driver_program(environ):
        from buildd.profiling.first_measurement import carry_out_measured  # on machines with a GPU

        done = carry_out_measured(request, view, views, options, environ)
    else:
        done = carry_out(request, view, no_daemon=options.no_daemon, environ=environ)
    status = status_of(done)
    return FAILED if mode is Mode.PROVE and status == OK and watched[-1].would_run else status


class Watched(Several):
    """Several views; notes whether an event named an action that would still run."""

    def __init__(self, views: Iterable[View]) -> None:
        super().__init__(views)
        self.would_run = False

    def event(self, event: Event) -> None:
        if isinstance(event.body, Explained) and event.body.would_run:
            self.would_run = True
        super().event(event)
