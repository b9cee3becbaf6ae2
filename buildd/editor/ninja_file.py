"""Writes a plan as build.ninja: plain ninja then builds the targets without buildd, and knows their headers. PURE.

A command is the action's own, with the action's whole environment and nothing else, so ninja makes the same files. Each
command first tests a variable that only `commands.compdb` sets: if it is set, the outputs exist already, and the
command only touches them. So ninja, in any version, writes buildd's results into its own log. Runs nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from blake3 import blake3

from buildd.builds.command import DEPFILE, plain_arguments
from codegen.errors import RequestError
from codegen.plan import Action, Discovery, Plan, Tool

FILE = "build.ninja"
UP_TO_DATE = "BUILDD_UP_TO_DATE"
"""The variable: the outputs are up to date if it has the file's own token."""
_RULES = """\
# Made by `buildd compdb --ninja` from {file}. Run it again when that file changes.
ninja_required_version = 1.10
builddir = {folder}
rule plain
  command = $run
  description = $action
rule reads
  command = $run
  description = $action
  depfile = $list
  deps = gcc
"""
_SPECIAL = re.compile(r"[.\[*^$\\#]")
"""Characters that a sed expression has to escape."""
_ESCAPE = r"\\\g<0>"
_READING = (Discovery.GCC, Discovery.CLANG, Discovery.LINKER)


def ninja_file(plan: Plan, file: str, folder: str) -> tuple[str, str]:
    """Make the file's text and its token.

    Args:
        file: the project file, to name it.
        folder: for ninja's log, relative to the project.

    Raises: RequestError if an action needs buildd.
    """
    tools = {tool.name: tool for tool in plan.tools}
    token = blake3(repr([(a.argv, a.environment, a.inputs, a.outputs) for a in plan.actions]).encode()).hexdigest()[:16]
    edges = [_edge(action, tools[action.tool], token) for action in plan.actions]
    return "\n".join((_RULES.format(file=file, folder=_escaped(folder)), *edges)), token


def list_of(action: Action) -> str:
    """The depfile of an action's command; empty if it reads nothing but its inputs."""
    return f"{action.outputs[0].path}.d" if action.discovery in _READING else ""


def rules(action: Action, read: Iterable[str]) -> str:
    """The depfile's content, as the command would write it."""
    escaped = (path.replace("\\", "\\\\").replace(" ", "\\ ").replace("#", "\\#").replace("$", "$$") for path in read)
    return f"{action.outputs[0].path}: " + " \\\n ".join(escaped) + "\n"


def _edge(action: Action, tool: Tool, token: str) -> str:
    if action.payload or action.apart or action.discovery is Discovery.REPORTED or not action.outputs:
        raise RequestError(
            "bad-target",
            f"{action.name} cannot be built without buildd",
            next_step=f"name the compiled targets to write, without {action.name.partition('/')[0]}",
        )
    outputs = [output.path for output in action.outputs]
    listed = list_of(action)
    if " " in listed or "\n" in "".join(outputs):
        raise RequestError(
            "bad-target",
            f"{outputs[0]} has a space in its name, and depfiles cannot name it",
            next_step="rename the source or its folder, or build with buildd",
        )
    environment = dict(action.environment)
    arguments = [
        argument.replace(f"/tmp/{DEPFILE}", listed) if listed else argument
        for argument in plain_arguments(action, tool)
    ]
    before = after = ""
    if action.discovery is Discovery.GCC:
        environment["SUNPRO_DEPENDENCIES"] = f"{listed} {outputs[0]}"
        environment["TMPDIR"] = aside = f"{outputs[0]}.tmp"
        before = f"rm -rf {shlex.quote(listed)} {shlex.quote(aside)} && mkdir {shlex.quote(aside)} && "  # appended to
        # Drop the compiler's temporary files: they are gone when ninja looks.
        script = f"s#{_SPECIAL.sub(_ESCAPE, aside)}/[^ ]*##g"
        after = f" && sed -i {shlex.quote(script)} {shlex.quote(listed)} && rm -r {shlex.quote(aside)}"
    elif action.discovery is Discovery.CLANG:
        environment["CC_PRINT_HEADERS"] = "1"
        environment["CC_PRINT_HEADERS_FILE"] = headers = f"{outputs[0]}.headers"
        before = f"rm -f {shlex.quote(headers)} && "
        # From one name a line to a make rule.
        script = r"s/[\\ #]/\\&/g; s/$/ \\/"
        after = (
            f" && {{ echo 'out: \\'; sed {shlex.quote(script)} {shlex.quote(headers)}; echo; }} > {shlex.quote(listed)}"
        )
    run = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in sorted(environment.items())), *arguments])
    made = " ".join(map(shlex.quote, outputs))
    question = f'if [ "${UP_TO_DATE}" = {token} ]; then touch -c {made}; else {before}{run}{after}; fi'
    if "\n" in question:
        raise RequestError(
            "bad-target", f"{action.name} has a line break in its command", next_step="remove it from the flags"
        )
    lines = [
        f"build {' '.join(map(_escaped, outputs))}: {'reads' if listed else 'plain'} "
        + " ".join(map(_escaped, action.inputs)),
        f"  run = {question.replace('$', '$$')}",
        f"  action = {action.name.replace('$', '$$')}",
    ]
    if listed:
        lines.append(f"  list = {listed.replace('$', '$$')}")
    return "\n".join(lines) + "\n"


def _escaped(path: str) -> str:
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
