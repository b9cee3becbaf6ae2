"""`buildd trace BUILD`: writes a finished build's events as a Chrome / Perfetto trace."""

from __future__ import annotations

import sys

from buildd.exits import OK, USAGE
from buildd.ui.problems import parser, print_problem


def run(arguments: list[str]) -> int:
    command = parser("trace", "Write a build's trace for chrome://tracing or https://ui.perfetto.dev.")
    command.add_argument(
        "build",
        metavar="BUILD",
        nargs="?",
        default="last",
        help="id of a build as `buildd log` lists it; its first characters are enough (default: the last one)",
    )
    command.add_argument("-o", "--output", metavar="FILE", default="-", help="the trace (default: standard output)")
    options = command.parse_args(arguments)

    from buildd.commands.log import events_of
    from buildd.ui.trace import chrome_trace

    trace = chrome_trace(events_of(options.build))
    if options.output == "-":
        sys.stdout.buffer.write(trace + b"\n")
        return OK
    try:
        with open(options.output, "wb") as file:
            file.write(trace)
    except OSError as error:
        print_problem(f"cannot write the trace: {error.strerror}", file=options.output, next_step="name another file")
        return USAGE
    return OK
