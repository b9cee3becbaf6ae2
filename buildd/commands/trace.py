"""`buildd trace BUILD`: writes a finished build's events as a Chrome / Perfetto trace."""

from __future__ import annotations

import sys

from buildd.exits import OK, USAGE
from buildd.ui.problems import parser, print_lines, print_problem
from buildd.ui.text import Line, clean, count
from protocol.messages import CacheHit, Failed, Finished


def run(arguments: list[str]) -> int:
    command = parser("trace", "Write a build's trace for chrome://tracing or https://ui.perfetto.dev.")
    command.add_argument(
        "build",
        metavar="BUILD",
        nargs="?",
        default="",
        help="id of a build as `buildd log` lists it; its first characters are enough (default: the last one that "
        "compiled something)",
    )
    command.add_argument("-o", "--output", metavar="FILE", default="", help="the trace (default: standard output)")
    options = command.parse_args(arguments)
    if not options.output and sys.stdout.isatty():
        print_problem(
            "a trace is JSON for a viewer, and standard output is a terminal",
            next_step="buildd trace -o trace.json, then open the file at https://ui.perfetto.dev",
        )
        return USAGE

    from buildd.commands.log import events_of
    from buildd.ui.trace import chrome_trace

    events = events_of(options.build or _last_that_compiled())
    trace = chrome_trace(events)
    if options.output in ("", "-"):
        sys.stdout.buffer.write(trace + b"\n")
        return OK
    try:
        with open(options.output, "wb") as file:
            file.write(trace)
    except OSError as error:
        print_problem(f"cannot write the trace: {error.strerror}", file=options.output, next_step="name another file")
        return USAGE
    ran = sum(isinstance(event.body, Finished | Failed) for event in events)
    hits = sum(isinstance(event.body, CacheHit) for event in events)
    what = f"{count(ran, 'action')} that ran, {count(hits, 'hit')}"
    print_lines([Line(clean(f"{options.output}: {what}; open it at https://ui.perfetto.dev"))])
    return OK


def _last_that_compiled() -> str:
    """The id of the newest build in which something ran; if there is none, the last build's."""
    from buildd.commands.log import LAST, SEARCHED, open_store

    store = open_store()
    if store is None:
        return LAST
    with store:
        return next((build.request_id for build in store.builds(SEARCHED) if build.summary.misses), LAST)
