"""An action as it is executed: references resolved, the variables of the discovery added.

Pure. Knows the job's private folder by name only.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

import msgspec

from buildd.processes.launch import Launch
from codegen.plan import Action, Argument, Discovery, Place, Ref, Tool

DEPFILE = ".inputs.d"
"""Name of the depfile, beside the outputs, whose names never begin in this way."""


def output_path(private: str, action: Action, name: str) -> str:
    """The place where an action's output is written before it is published. It has its own file name: some tools derive
    other names from it."""
    names = {output.name: output.path.rpartition("/")[2] for output in action.outputs}
    # One folder is enough unless two outputs have the same file name: making folders takes most of a quick job's time.
    apart = len(set(names.values())) < len(names) or DEPFILE in names.values()
    return f"{private}/{name}/{names[name]}" if apart else f"{private}/{names[name]}"


def launch_of(
    action: Action,
    tool: Tool,
    *,
    project: str,
    private: str,
    where: Callable[[str], str],
    umask: int = 0o022,
    quiet: bool = False,
    preload: str = "",
) -> Launch:
    """The launch that the runner gets.

    Args:
        action: the action that runs.
        tool: its tool, for the roots.
        project: the folder that it runs in.
        private: the job's own folder; it and the outputs' folders exist. Also for temporary files.
        where: path of a file that another action made.
        umask: the client's.
        quiet: see `Launch`.
        preload: path of a library that the dynamic linker puts before the tool's own.
    """
    roots = dict(tool.roots)

    def made(path: str) -> str:
        # As short as possible: nvcc hands link inputs to a shell, which would read a $ in the project's own path.
        place = where(path)
        if action.apart:
            return place
        inside = place.removeprefix(f"{project}/")
        return place if inside.startswith(("-", "@")) else inside

    def resolve(argument: Argument) -> str:
        if isinstance(argument, str):
            return argument
        return argument.prefix + _value(argument, action, roots, private, made) + argument.suffix

    environment = dict(action.environment)
    environment["TMPDIR"] = private
    if preload:
        environment.setdefault("LD_PRELOAD", preload)
    match action.discovery:
        case Discovery.GCC | Discovery.GCC_LINKER:
            # gcc splits the value at the first space and appends; see its invoke.texi, SUNPRO_DEPENDENCIES.
            environment["SUNPRO_DEPENDENCIES"] = f"{private}/{DEPFILE} inputs"
        case Discovery.CLANG | Discovery.CLANG_RULES:
            environment["CC_PRINT_HEADERS"] = "1"
            environment["CC_PRINT_HEADERS_FILE"] = f"{private}/{DEPFILE}"
        case _:
            pass
    return Launch(
        argv=tuple(resolve(argument) for argument in action.argv),
        cwd=private if action.apart else project,
        environment=tuple(sorted(environment.items())),
        payload=action.payload,
        timeout_s=action.timeout_s,
        umask=umask,
        quiet=quiet,
    )


def _value(ref: Ref, action: Action, roots: Mapping[str, str], private: str, where: Callable[[str], str]) -> str:
    match ref.place:
        case Place.OUTPUT:
            return output_path(private, action, ref.name)
        case Place.INPUT:
            return where(ref.name)
        case Place.TEMPORARY:
            return private
        case Place.ROOT:
            return roots[ref.name]
        case Place.DEPFILE:
            return f"{private}/{DEPFILE}"


def shown(action: Action, tool: Tool, *, project: str) -> str:
    """One shell line that repeats the action by hand, with outputs at their final place.

    A worker that reads what to do from its standard input is repeated by a build of its target.
    """
    if action.payload:
        return f"cd {shlex.quote(project)} && buildd build {shlex.quote(action.name.partition('/')[0])}"
    argv = tuple(argument for argument in action.argv if not _lists_inputs(argument))
    plain = plain_arguments(msgspec.structs.replace(action, argv=argv), tool)
    return f"cd {shlex.quote(project)} && {shlex.join(plain)}"


def _lists_inputs(argument: Argument) -> bool:
    """Whether an argument only has the linker list its inputs for buildd."""
    return isinstance(argument, Ref) and argument.place is Place.DEPFILE and "--dependency-file" in argument.prefix


def plain_arguments(action: Action, tool: Tool) -> list[str]:
    """The action's command line as a user would type it in the project's folder, with outputs at their final place."""
    roots = dict(tool.roots)
    outputs = {output.name: output.path for output in action.outputs}

    def resolve(argument: Argument) -> str:
        if isinstance(argument, str):
            return argument
        match argument.place:
            case Place.OUTPUT:
                value = outputs[argument.name]
            case Place.INPUT:
                value = argument.name
            case Place.ROOT:
                value = roots[argument.name]
            case Place.TEMPORARY | Place.DEPFILE:
                value = f"/tmp/{DEPFILE}"
        return argument.prefix + value + argument.suffix

    return [resolve(argument) for argument in action.argv]
