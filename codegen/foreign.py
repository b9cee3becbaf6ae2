"""One compile of a foreign build -> a plan of one action.

Knows how a tool that somebody else's build named is described, not how command lines are spelled (`commandline`). Pure,
as all of codegen: what has to be asked of the tool is a probe. The description of a tool serves all of its compiles.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise

import msgspec

from codegen import closure, hipcc, linking, moved, processor
from codegen.decomposition import decomposition, hip_ahead, hip_decomposition
from codegen.environment import TOOL_PATH, find
from codegen.flags import inspect
from codegen.parsing import Compile, Family, HandThrough, Makes, Reason
from codegen.plan import (
    LINKED,
    Action,
    Argument,
    Discovery,
    Frozen,
    Knowledge,
    Output,
    Place,
    Plan,
    Ref,
    Resources,
    Steps,
    Tool,
)
from codegen.project import Settings
from codegen.search import include_folders, library_folders
from codegen.toolchain import Toolchains
from codegen.variable import Family as Variables
from protocol.messages import Request

MARK = ".buildd-launchers"
"""In every folder of stand-ins: a folder with links to the tools that they stand for, by name."""
DEPENDENCIES = "dependencies"
"""Output that holds the files that the tool read, as it spelled them; see `moved.listed`."""
_FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "HIPCC_COMPILE_FLAGS_APPEND")
_OTHER_CACHES = frozenset({"ccache", "sccache", "distcc", "icecc", "buildd-cc"})
_VARIABLES = {Family.GCC: Variables.HOST, Family.HIPCC: Variables.HIP, Family.NVCC: Variables.CUDA}
_NVCC = Resources(memory_bytes=700 << 20, wall_s=3.0)
_HIPCC = Resources(memory_bytes=600 << 20, wall_s=3.0)
_CXX = Resources(memory_bytes=300 << 20, wall_s=1.0)


class Described(Frozen, frozen=True):
    """A tool as a foreign build calls it, the same for all of its compiles with one environment."""

    tool: Tool
    program: Argument
    environment: tuple[tuple[str, str], ...]
    clang: bool
    host: str
    """nvcc's host compiler where the command names one: the tool behind a stand-in."""
    standard: tuple[str, ...]
    """System folders: what -MMD leaves out."""
    libraries: tuple[str, ...] = ()
    """Folders that are searched for libraries without being told."""


def sent_variables() -> tuple[str, ...]:
    """Names of the variables that a stand-in sends; a star at the end stands for any rest."""
    from codegen.environment import all_variables

    passed = [variable.name for variable in all_variables() if set(_VARIABLES.values()) & set(variable.families)]
    watched = ("PATH", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "CC_PRINT_*", moved.MAP_PATHS, "BUILDD_PRELOAD")
    return tuple(sorted({*passed, *watched}))


def tool_key(compile: Compile, request: Request) -> tuple[object, ...]:
    """What a description depends on, besides the files on disk."""
    offloads = "-fopenmp" in compile.flags
    makes = (compile.makes, offloads) if compile.makes is Makes.LINKED else None
    return (request.command[0], compile.host, makes, compile.native, tuple(sorted(request.environment.items())))


def describe(compile: Compile, request: Request, knowledge: Knowledge) -> Described:
    """The tool of a compile.

    Raises:
        ProbesNeeded: run these, tell `knowledge` the answers, and call again.
        HandThrough: it is not one whose parts are known.
        RequestError: it does not work.
    """
    path = request.command[0]
    if not os.path.isabs(path):
        raise HandThrough(Reason.TOOL, path)
    if os.path.basename(os.path.realpath(path)) in _OTHER_CACHES:
        raise HandThrough(Reason.OTHER_CACHE, os.path.realpath(path))
    variables = {**request.environment, "PATH": without_stand_ins(request.environment.get("PATH", TOOL_PATH))}
    if variables.get("NVCC_CCBIN"):
        variables["NVCC_CCBIN"] = _behind(variables["NVCC_CCBIN"], variables["PATH"])
    match compile.family:
        case Family.GCC:
            return _host(path, compile, variables, knowledge)
        case Family.NVCC:
            return _nvcc(path, compile, request, variables, knowledge)
        case Family.HIPCC:
            return _hipcc(path, compile, request, variables, knowledge)


def _host(path: str, compile: Compile, variables: Mapping[str, str], knowledge: Knowledge) -> Described:
    if closure.is_script(path):
        raise HandThrough(Reason.WRAPPER, path)
    environment = _environment(variables, Variables.HOST, (os.path.dirname(path),))
    compiler = closure.host_compiler(knowledge, (path,), environment, dict(environment)["PATH"])
    files, search = compiler.files, compiler.search
    facts = [("compiler", compiler.version), ("path", path)]
    if compile.makes is Makes.HEADER and compiler.clang:
        raise HandThrough(Reason.LANGUAGE, "clang's precompiled headers hold the times of what they include")
    if compile.makes is Makes.LINKED:
        linker = linking.describe(knowledge, path, compiler, environment, compile.flags)
        files, search = (*files, *linker.files), tuple(dict.fromkeys((*search, *linker.search)))
    if compile.native:
        facts.append((" ".join(compile.native), processor.meaning(knowledge, path, environment, compile.native)))
    tool = Tool(name=os.path.basename(path), files=files, facts=tuple(facts), search=search)
    return Described(
        tool=tool, program=path, environment=environment, clang=compiler.clang, host="", standard=compiler.search
    )


def _nvcc(
    path: str, compile: Compile, request: Request, variables: Mapping[str, str], knowledge: Knowledge
) -> Described:
    host = _behind(compile.host, variables["PATH"]) if compile.host else ""
    asked = msgspec.structs.replace(request, environment=dict(variables), interpreter="")
    toolchains = Toolchains(asked, Settings(cuda=_root_of(path), host_compiler=host), knowledge)
    compiler = toolchains.cuda()
    # Where the probes found the host compiler, the compile has to find it too.
    folders = dict(compiler.environment)["PATH"].split(os.pathsep)
    tool = msgspec.structs.replace(compiler.tool, roots=_without_project(compiler.tool), name=f"nvcc {path}")
    return Described(
        tool=tool,
        program=compiler.program,
        environment=_environment(variables, Variables.CUDA, folders),
        clang=compiler.clang,
        host=host,
        standard=tool.search,
        libraries=compiler.libraries,
    )


def _hipcc(
    path: str, compile: Compile, request: Request, variables: Mapping[str, str], knowledge: Knowledge
) -> Described:
    asked = msgspec.structs.replace(request, environment=dict(variables), interpreter="")
    toolchains = Toolchains(asked, Settings(hip=_root_of(path)), knowledge)
    environment = _environment(variables, Variables.HIP, ())
    question, _ = hipcc.probes(path, environment)
    flags: tuple[str, ...] = ()
    # A dry run takes three starts of clang: the one for the steps tells of hipcc, too, or runs beside one that does.
    steps = hip_ahead(path, environment, compile.flags, os.path.splitext(compile.source)[1])
    if compile.makes is Makes.OBJECT:
        knowledge.ask_ahead(steps)
    # The libraries of LLVM are most of what has to be read: that can be done meanwhile.
    likely = closure.libraries(knowledge, hipcc.likely_programs(question.files), environment)
    knowledge.foresee(file.path for file in likely)
    if compile.makes is Makes.OBJECT and hipcc.tells_its_parts(compile.flags, environment):
        steps = msgspec.structs.replace(steps, files=question.files)
        if hipcc.calls_clang(knowledge.ask(steps)[0]):
            question, flags = steps, compile.flags
    # Which platform hipcc takes by itself depends on what it finds: nvcc, perhaps.
    if not hipcc.calls_clang(knowledge.ask(question)[0]):
        toolchains.hip()  # says so where it does not work at all
        raise HandThrough(Reason.ENVIRONMENT, "hipcc calls no clang here; HIP_PLATFORM=amd makes it")
    compiler = toolchains.hip_compiling(environment, question, flags)
    tool = msgspec.structs.replace(compiler.tool, roots=_without_project(compiler.tool), name=f"hipcc {path}")
    return Described(
        tool=tool,
        program=compiler.program,
        environment=environment,
        clang=True,
        host="",
        standard=tool.search,
    )


def moving_roots(compile: Compile, described: Described, request: Request) -> moved.Roots:
    """Folders of a compile that have another name each time; see `moved`. Not of nvcc's where it has to run whole."""
    mapped = request.environment.get(moved.MAP_PATHS, "")
    return moved.roots_of(compile, request.project, mapped, clang=described.clang)


def steps_key(compile: Compile, roots: moved.Roots) -> tuple[Argument, ...]:
    """What `steps` depend on, besides the tool."""
    return (os.path.splitext(compile.source)[1], *_listing(compile), *_flags(compile, roots))


def _flags(compile: Compile, roots: moved.Roots) -> tuple[Argument, ...]:
    return (*moved.referring(compile.flags, roots), *moved.mapping(compile.family, roots))


def _listing(compile: Compile) -> tuple[str, ...]:
    """With a depfile nvcc preprocesses for all architectures first, and so says things in another order."""
    return ("-MD", "-MF", "/buildd_probe/listed.d") if compile.depfile and compile.family is Family.NVCC else ()


def steps(compile: Compile, described: Described, roots: moved.Roots, knowledge: Knowledge) -> Steps | str:
    """How a compile is carried out step by step, or why not though others with its tool are; empty for other tools.

    Args:
        roots: see `moving_roots`.

    Raises:
        ProbesNeeded: as `describe`.
    """
    if compile.family not in (Family.NVCC, Family.HIPCC):
        return ""
    if compile.makes is Makes.LINKED:
        return "it links in the same command"
    # An object may be moved away and the next one made in its place, with other macros.
    identity = "\0".join(_macros(compile.flags))
    if compile.family is Family.HIPCC:
        return hip_decomposition(
            knowledge,
            described.tool,
            described.program,
            described.environment,
            compile.flags,
            extension=os.path.splitext(compile.source)[1],
            identity=identity,
        )
    return decomposition(
        knowledge,
        described.tool,
        described.program,
        described.environment,
        (*(("-ccbin", described.host) if described.host else ()), *_listing(compile), *_flags(compile, roots)),
        extension=os.path.splitext(compile.source)[1],
        clang=described.clang,
        identity=identity,
    )


def _macros(flags: tuple[str, ...]) -> Iterator[str]:
    for before, flag in pairwise(("", *flags)):
        if before in ("-D", "-U", "--define-macro", "--undefine-macro") or re.match(
            r"-[DU].|--(un)?define-macro=", flag
        ):
            yield flag


def plan(
    compile: Compile, described: Described, request: Request, steps: Steps | str = "", roots: moved.Roots = ()
) -> Plan:
    """The plan of a compile, and nothing to ask any more.

    Args:
        roots: as `steps` were asked with.
    """
    nvcc = compile.family is Family.NVCC
    linked = compile.makes is Makes.LINKED
    if linked and described.clang:
        raise HandThrough(Reason.LINK)
    flags = (*compile.flags, *_environment_flags(described.environment))
    effects = inspect(flags)
    environment = described.environment
    mapped = not nvcc and moved.is_mapped(compile.flags, roots, request.project)
    tool = msgspec.structs.replace(described.tool, roots=(*described.tool.roots, *roots))
    # nvcc names its module after the source's absolute path, which links relocatable device code: cwd is in the key.
    # In steps its name is ours, and made of what a moving folder is called every time.
    # A precompiled header holds every path by which something was included.
    named_by_path = nvcc and not roots
    sensitive = named_by_path or compile.makes is Makes.HEADER or (effects.path_sensitive and not mapped)
    if sensitive or (nvcc and not moved.is_below(request.project, roots)):
        environment = tuple(sorted((*environment, ("PWD", request.project))))
    if isinstance(steps, Steps) and steps.silent and roots:
        steps = "its folder has another name each time"
    apart = nvcc or isinstance(steps, Steps)
    listing: tuple[Argument, ...] = ()
    if not isinstance(steps, Steps) and not linked and _listing(compile):
        listing = (*_listing(compile)[:-1], Ref(place=Place.TEMPORARY, suffix="/listed.d"))
    name = "program" if linked else "object"
    if nvcc:
        # Two objects of one source in one program need not be one object of two names.
        name += " " + hashlib.blake2b(moved.named(compile.output, roots).encode(), digest_size=8).hexdigest()
        name += " and its depfile" if compile.depfile else ""
    discovery = Discovery.CLANG if described.clang else Discovery.GCC_LINKER if linked else Discovery.GCC
    search = include_folders((), flags, dict(described.tool.roots))
    if linked:
        # The linker may write down what its output is called.
        name += f" {os.path.basename(compile.output)}"
        # What a linker script names is looked for in the working folder first.
        search += (".", *library_folders(flags, environment, dict(described.tool.roots)), *described.libraries)
    action = Action(
        name=compile.output,
        kind=os.path.basename(request.command[0]),
        tool=described.tool.name,
        argv=(
            described.program,
            *(("-ccbin", described.host) if described.host else ()),
            *moved.referring(compile.flags if apart else compile.arguments, roots),
            *moved.mapping(compile.family, roots),
            *listing,
            *((_linker_inputs(nvcc),) if linked else ()),
            "-o",
            Ref(place=Place.OUTPUT, name=name),
            *(moved.referring((compile.source,), roots) if apart else ()),
        ),
        environment=environment,
        inputs=(compile.source,),
        outputs=(
            Output(name=name, path=compile.output, executable=linked),
            Output(name=DEPENDENCIES, path=f"{compile.output}.{DEPENDENCIES}"),
        ),
        discovery=discovery,
        search=search,
        path_sensitive=sensitive,
        steps=steps.name if isinstance(steps, Steps) else "",
        whole=steps if isinstance(steps, str) else "",
        resources=_NVCC if nvcc else _HIPCC if compile.family is Family.HIPCC else _CXX,
    )
    stepwise = (steps,) if isinstance(steps, Steps) else ()
    return Plan(targets=(compile.output,), actions=(action,), tools=(tool,), steps=stepwise)


def _linker_inputs(nvcc: bool) -> Ref:
    """Has the linker say what it reads."""
    option = "-Xlinker=" if nvcc else "-Wl,"
    return Ref(place=Place.DEPFILE, prefix=f"{option}--dependency-file=", suffix=LINKED)


def _environment_flags(environment: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Flags that a tool takes from its environment: they do what all flags do."""
    for name, value in environment:
        if name in _FLAG_VARIABLES:
            yield from shlex.split(value)


def system_folders(compile: Compile, described: Described) -> tuple[str, ...]:
    """Folders whose headers -MMD leaves out, as the compiler spells them, each with its final slash."""
    named: list[str] = []
    waiting = False
    for flag in (*compile.flags, *_environment_flags(described.environment)):
        if waiting:
            named.append(flag)
        elif flag.startswith("-isystem") and len(flag) > len("-isystem"):
            named.append(flag.removeprefix("-isystem").removeprefix("="))
        waiting = flag in ("-isystem", "--system-include") and not waiting
    return tuple(f"{folder.rstrip('/')}/" for folder in (*named, *described.standard) if folder)


def _environment(
    variables: Mapping[str, str], family: Variables, folders: tuple[str, ...] | list[str]
) -> tuple[tuple[str, str], ...]:
    """The tool's whole environment. Unlike for our own targets the language is the caller's: it reads the messages."""
    chosen = {}
    for name, value in variables.items():
        row = find(name)
        if row is not None and family in row.families:
            chosen[name] = value
    chosen["PATH"] = ":".join(dict.fromkeys((*folders, *TOOL_PATH.split(":"))))
    return tuple(sorted(chosen.items()))


def _without_project(tool: Tool) -> tuple[tuple[str, str], ...]:
    return tuple(root for root in tool.roots if root[0] != "project")


def _root_of(path: str) -> str:
    if os.path.basename(os.path.dirname(path)) != "bin":
        raise HandThrough(Reason.TOOL, path)
    return os.path.dirname(os.path.dirname(path))


def without_stand_ins(path: str) -> str:
    """A PATH without the folders of stand-ins."""
    folders = [folder for folder in path.split(os.pathsep) if folder and not _is_marked(folder)]
    return os.pathsep.join(folders)


def _is_marked(folder: str) -> bool:
    return os.path.isdir(os.path.join(folder, MARK))


def _behind(program: str, path: str) -> str:
    """The tool that a stand-in stands for; any other program as it is."""
    folder, name = os.path.split(program)
    if not folder or not _is_marked(folder):
        if os.path.isdir(program) and _is_marked(program):
            raise HandThrough(Reason.TOOL, program)
        return program
    try:
        return os.readlink(os.path.join(folder, MARK, name))
    except OSError:
        found = closure.which(name, path)
        if not found:
            raise HandThrough(Reason.TOOL, program) from None
        return found
