"""`buildd compdb`: compile_commands.json for editors, build.ninja for plain ninja. Compiles nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

from buildd.cli import DAEMON, OK
from buildd.commands.common import parser, print_lines, print_problem
from buildd.commands.request import add_request_arguments, request_from
from buildd.commands.treetools import provide_ninja
from buildd.ninjafile import FILE, UP_TO_DATE, list_of, ninja_file, rules
from buildd.trees import TreeError, asked
from buildd.ui.text import Line, count
from codegen.plan import Action
from protocol.messages import Mode, Request


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
    ninja = "build.ninja instead: plain ninja builds the targets without buildd, and knows of what buildd has built"
    command.add_argument("--ninja", action="store_true", help=ninja)
    options = command.parse_args(arguments)
    if options.ninja:
        request = request_from(options, tuple(options.targets), Mode.BUILD, dict(os.environ))
        return export_ninja(request, Path(options.output or FILE))
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


def export_ninja(request: Request, name: Path) -> int:
    """Write build.ninja, and have ninja note what there is.

    Args:
        name: relative to the project's folder, in which ninja is to be called.
    """
    from buildd.here import found_here
    from buildd.placing import replace_file

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
        print_problem(f"cannot be written: {error.strerror}", file=str(error.filename or path))
        return DAEMON
    left = len(plan.actions) - len(known)
    state = f"{left} of them are not built yet" if left else "ninja finds nothing to do"
    print_lines([Line(f"{count(len(plan.actions), 'command')} in {path}: {said or state}")])
    return OK


def _note(project: Path, path: Path, token: str, known: dict[Action, tuple[str, ...]]) -> str:
    """Have ninja write down that these are up to date; why that cannot be, or nothing."""
    environ = dict(os.environ)
    if not provide_ninja(environ):
        return "there is no ninja to tell what is built already"
    for action, read in known.items():
        if listed := list_of(action):
            (project / listed).write_bytes(rules(action, read).encode(errors="surrogateescape"))
    outputs = [action.outputs[0].path for action in known]
    try:
        asked(["ninja", "-f", str(path), *outputs], str(project), {**environ, UP_TO_DATE: token})
    except TreeError as error:
        return f"ninja was not told what is built already: {error.message}"
    return ""
