"""`buildd compdb`: writes compile_commands.json for editors, or build.ninja for plain ninja. Compiles nothing."""

from __future__ import annotations

import json
import os
from argparse import SUPPRESS
from pathlib import Path

from buildd.client.request import add_request_arguments, request_from
from buildd.editor.ninja_file import FILE, UP_TO_DATE, list_of, ninja_file, rules
from buildd.exits import DAEMON, OK
from buildd.trees.tree import TreeError, tool_output
from buildd.trees.tree_tools import provide_ninja
from buildd.ui.problems import parser, print_lines, print_problem
from buildd.ui.text import Line, count
from codegen.plan import Action
from protocol.messages import Mode, Request


def run(arguments: list[str]) -> int:
    command = parser(
        "compdb",
        "Write compile_commands.json beside the project file, for clangd to understand all sources, .cu files too.",
        details="nvcc's options become clang's. The file is rewritten only if something changed. -o - prints it.",
    )
    command.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="targets (default: those in `default` of `[project]`; without that key, all)",
    )
    add_request_arguments(command, jobs=SUPPRESS, in_process=SUPPRESS, json=SUPPRESS)
    command.add_argument("-o", "--output", metavar="FILE", default="", help="write to FILE; - is standard output")
    command.add_argument(
        "--compilers", action="store_true", help="write the real compilers' command lines, not clang's"
    )
    ninja = "write build.ninja instead: plain ninja builds the targets without buildd, and knows what buildd has built"
    command.add_argument("--ninja", action="store_true", help=ninja)
    options = command.parse_args(arguments)
    if options.ninja:
        request = request_from(options, tuple(options.targets), Mode.BUILD, dict(os.environ))
        return export_ninja(request, Path(options.output or FILE))
    request = request_from(options, tuple(options.targets), Mode.EXPLAIN, dict(os.environ))
    from buildd.client.in_process import plan_here
    from buildd.editor import compdb

    project = os.path.realpath(request.project)
    found = compdb.entries(plan_here(request), project, compilers=options.compilers)
    if options.output == "-":
        print_lines([Line(json.dumps(found, indent=1))])
        return OK
    path = Path(options.output) if options.output else Path(project, compdb.FILE)
    try:
        written = compdb.write(path, found)
    except OSError as error:
        print_problem(f"cannot write the file: {error.strerror}", file=str(path), next_step="name another file with -o")
        return DAEMON
    what = f"{count(len(found), 'compile')} in {path}"
    print_lines([Line(what if written else f"{what}, unchanged")])
    return OK


def export_ninja(request: Request, name: Path) -> int:
    """Write build.ninja, and have ninja record which outputs are up to date.

    Args:
        name: relative to the project's folder, where ninja is to be run.
    """
    from buildd.client.in_process import found_here
    from buildd.files.atomic_write import replace_file

    plan, found = found_here(request)
    project = Path(os.path.realpath(request.project))
    log = os.path.commonpath([os.path.dirname(a.outputs[0].path) for a in plan.actions if a.outputs] or [""]) or "."
    text, token = ninja_file(plan, request.file, log)
    path = project / name
    try:
        replace_file(path, text.encode(errors="surrogateescape"))
        known = [action for action in plan.actions if action.name in found]
        said = _note(project, path, token, {action: found[action.name] for action in known}) if known else ""
    except OSError as error:
        print_problem(f"cannot write the file: {error.strerror}", file=str(error.filename or path))
        return DAEMON
    left = len(plan.actions) - len(known)
    state = f"{left} not built yet" if left else "ninja has nothing to do"
    print_lines([Line(f"{count(len(plan.actions), 'command')} in {path}: {said or state}")])
    return OK


def _note(project: Path, path: Path, token: str, known: dict[Action, tuple[str, ...]]) -> str:
    """Have ninja record that these are up to date; returns why it could not, or an empty string."""
    environ = dict(os.environ)
    if not provide_ninja(environ):
        return "ninja is not installed, so it does not know what is already built"
    for action, read in known.items():
        if listed := list_of(action):
            (project / listed).write_bytes(rules(action, read).encode(errors="surrogateescape"))
    outputs = [action.outputs[0].path for action in known]
    try:
        tool_output(["ninja", "-f", str(path), *outputs], str(project), {**environ, UP_TO_DATE: token})
    except TreeError as error:
        return f"ninja does not know what is already built: {error.message}"
    return ""
