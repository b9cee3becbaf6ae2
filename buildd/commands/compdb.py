"""`buildd compdb`: compile_commands.json for editors. Compiles nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

from buildd.cli import DAEMON, OK
from buildd.commands.common import parser, print_lines, print_problem
from buildd.commands.request import add_request_arguments, request_from
from buildd.ui.text import Line, count
from protocol.messages import Mode


def run(arguments: list[str]) -> int:
    command = parser(
        "compdb",
        "Write compile_commands.json beside the project file: clangd then understands the targets' sources, .cu too.",
        details="nvcc's options are put into clang's words. Not rewritten where nothing changed. -o - prints it.",
    )
    command.add_argument("targets", metavar="TARGET", nargs="*", help="names of targets (default: the default ones)")
    add_request_arguments(command)
    command.add_argument("-o", "--output", metavar="FILE", default="", help="another file; - is standard output")
    command.add_argument("--compilers", action="store_true", help="the real compilers' command lines, not clang's")
    options = command.parse_args(arguments)
    request = request_from(options, tuple(options.targets), Mode.EXPLAIN, dict(os.environ))
    from buildd import compdb
    from buildd.here import plan_here

    project = os.path.realpath(request.project)
    found = compdb.entries(plan_here(request), project, compilers=options.compilers)
    if options.output == "-":
        print_lines([Line(json.dumps(found, indent=1))])
        return OK
    path = Path(options.output) if options.output else Path(project, compdb.FILE)
    try:
        written = compdb.write(path, found)
    except OSError as error:
        print_problem(f"cannot be written: {error.strerror}", file=str(path), next_step="name another file with -o")
        return DAEMON
    what = f"{count(len(found), 'compile')} in {path}"
    print_lines([Line(what if written else f"{what}, as before")])
    return OK
