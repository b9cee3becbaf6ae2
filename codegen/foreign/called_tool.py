"""Describes a tool that a foreign build calls: the real tool behind a shim, its files, environment and default folders.

One description serves all compiles of a tool with one environment. Knows no compile's plan and no syntax of command
lines (`command_line`). Pure, as all of codegen: it asks tools through probes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from codegen.compilers import (
    checkout_roots,
    clang_cuda,
    clang_hip,
    closure,
    hipcc,
    linking,
    native_gpus,
    nvcc,
    processor,
    temporary_roots,
)
from codegen.compilers.closure import Environment
from codegen.compilers.command_parser import LINKS, Compile, Family, Makes, PassThrough, Reason
from codegen.compilers.compiler import Compiler, SearchPlace, describe_hipcc
from codegen.compilers.toolchain import Toolchains
from codegen.foreign.command_line import NVCC_ADDS, family_of
from codegen.plan import Argument, Frozen, Knowledge, Tool
from codegen.project.project_file import ProjectSettings
from codegen.steps.decomposition import hip_ahead
from codegen.variables.environment import TOOL_PATH, find
from codegen.variables.variable import ToolFamily
from protocol.messages import Request

MARK = ".buildd-launchers"
"""Name of a folder inside every folder of shims, with a link to each shim's real tool, by name."""
_RUN_PATH = "LD_RUN_PATH"
_OTHERS = frozenset({"distcc", "icecc", "buildd-cc"})
"""Programs that stand before a compiler under its name and do more than cache: they run as without buildd."""
_FOLDERS = (temporary_roots.MAP_PATHS, checkout_roots.RUN_FOLDER)
"""Variables that concern paths in results, not the tool."""
_NOTES = ("BUILDD_PROVE", "BUILDD_RECORD", "BUILDD_RECORD_ROOT")
"""Variables by which somebody asks for notes about a call."""
_VARIABLES = {Family.GCC: ToolFamily.HOST, Family.HIPCC: ToolFamily.HIP, Family.NVCC: ToolFamily.CUDA}


class Described(Frozen, frozen=True):
    """Description of a foreign build's tool, the same for all of its compiles with one environment."""

    tool: Tool
    program: Argument
    environment: tuple[tuple[str, str], ...]
    clang: bool
    host: str
    """The host compiler that the command names for nvcc: the tool behind a shim."""
    standard: tuple[str, ...]
    """System folders, whose headers -MMD leaves out."""
    before: tuple[str, ...] = ()
    """Folders that a script in front of nvcc's host compiler names with -isystem: see `closure.HostCompiler`."""
    libraries: tuple[str, ...] = ()
    """Folders that the tool searches for libraries by default."""
    gpus: tuple[str, ...] = ()
    """Options in the place of nvcc's -arch=native; empty if the command keeps it."""


def sent_variables() -> tuple[str, ...]:
    """Return the names of the variables that a shim sends; a star at the end matches any suffix."""
    from codegen.variables.environment import all_variables

    passed = [variable.name for variable in all_variables() if set(_VARIABLES.values()) & set(variable.families)]
    watched = (
        "PATH",
        "DEPENDENCIES_OUTPUT",
        "SUNPRO_DEPENDENCIES",
        "CC_PRINT_*",
        *_FOLDERS,
        *_NOTES,
        "BUILDD_PRELOAD",
        native_gpus.VISIBLE,
        *NVCC_ADDS,
    )
    return tuple(sorted({*passed, *watched}))


def tool_key(compile: Compile, request: Request) -> tuple[object, ...]:
    """Return everything that a description depends on, other than the files on disk."""
    offloads = any("-fopenmp" in flag for flag in compile.flags)
    makes = (compile.makes, offloads)
    parts = (request.project, *compile.flags) if compile.cuda or _is_clang(request.command[0], compile) else ()
    libraries = (request.project, *linking.named_libraries(compile.flags)) if compile.objects else ()
    gpus = native_gpus.identity() if compile.native and compile.family is Family.NVCC else ""
    left_out = {*_FOLDERS, *_NOTES} if gpus else {*_FOLDERS, *_NOTES, native_gpus.VISIBLE}
    variables = sorted(pair for pair in request.environment.items() if pair[0] not in left_out)
    hosts = (compile.host, *nvcc.hosts_set(request.environment)) if compile.family is Family.NVCC else ()
    relative = any(host and not os.path.isabs(host) for host in hosts)
    return (
        request.command[0],
        compile.host,
        request.project if relative else "",
        compile.parts,
        makes,
        compile.native,
        gpus,
        libraries,
        parts,
        callers_path(request),
        tuple(variables),
    )


def describe(compile: Compile, request: Request, knowledge: Knowledge) -> Described:
    """Return the description of a compile's tool.

    Raises:
        ProbesNeeded: run these probes, add their answers to `knowledge`, and call again.
        PassThrough: the tool's parts are not known.
        RequestError: the tool does not work.
    """
    path = request.command[0]
    if not os.path.isabs(path):
        raise PassThrough(Reason.TOOL, path)
    variables = {**request.environment, "PATH": without_shims(callers_path(request))}
    path = _behind_cache(path, variables["PATH"])
    if variables.get("NVCC_CCBIN"):
        variables["NVCC_CCBIN"] = _named_host(variables["NVCC_CCBIN"], variables["PATH"], request.project)
    match compile.family:
        case Family.GCC:
            return _host(path, compile, variables, knowledge)
        case Family.NVCC:
            return _nvcc(path, compile, request, variables, knowledge)
        case Family.HIPCC if _is_clang(path, compile):
            return _clang_for_hip(path, compile, request, variables, knowledge)
        case Family.HIPCC:
            return _hipcc(path, compile, request, variables, knowledge)


def settled(compile: Compile, described: Described) -> Compile:
    """Return a compile with the names of this machine's GPUs in the place of nvcc's -arch=native."""
    if not described.gpus:
        return compile
    arguments, flags = (native_gpus.replaced(words, described.gpus) for words in (compile.arguments, compile.flags))
    return msgspec.structs.replace(compile, arguments=arguments, flags=flags)


def _host(path: str, compile: Compile, variables: Mapping[str, str], knowledge: Knowledge) -> Described:
    if closure.is_script(path):
        raise PassThrough(Reason.WRAPPER, path)
    if "-no-canonical-prefixes" not in compile.flags:
        path = _in_usr(path)
    environment = _environment(_read_by(compile, variables), ToolFamily.HOST, (os.path.dirname(path),))
    programs = dict(environment)["PATH"]
    compiler = closure.host_compiler(knowledge, (path,), environment, programs, options=compile.parts)
    if compiler.wrapper:
        raise PassThrough(Reason.WRAPPER, compiler.wrapper)
    if compiler.clang and compile.parts:
        raise PassThrough(Reason.UNSUPPORTED_OPTION, compile.parts[0])
    if compile.makes in LINKS and (script := closure.scripted_linker(compiler.files)):
        raise PassThrough(Reason.WRAPPER, script)
    files, search = compiler.files, compiler.search
    facts = [("compiler", compiler.version), ("path", path)]
    if compile.makes is Makes.HEADER and compiler.clang:
        raise PassThrough(
            Reason.LANGUAGE, "clang's precompiled headers contain the modification times of their includes"
        )
    if compile.makes is Makes.LINKED:
        linker = linking.describe(knowledge, path, compiler, environment, compile.flags)
        files, search = (*files, *linker.files), tuple(dict.fromkeys((*search, *linker.search)))
    if compile.native:
        facts.append((" ".join(compile.native), processor.meaning(knowledge, path, environment, compile.native)))
    standard = compiler.search
    if compile.cuda:
        if not compiler.clang:
            raise PassThrough(Reason.LANGUAGE, "CUDA by gcc")
        toolkit = clang_cuda.describe(knowledge, path, compile.flags, environment)
        files, search = (*files, *toolkit.files), tuple(dict.fromkeys((*search, *toolkit.search)))
        standard = tuple(dict.fromkeys((*standard, *toolkit.search)))
    tool = Tool(name=os.path.basename(path), files=files, facts=tuple(facts), search=search)
    return Described(tool=tool, program=path, environment=environment, clang=compiler.clang, host="", standard=standard)


def _in_usr(path: str) -> str:
    """Return /usr/bin/gcc for /bin/gcc, if /bin is a link to /usr/bin: gcc and clang find their parts behind links."""
    return f"/usr{path}" if path.startswith("/bin/") and os.path.realpath("/bin") == "/usr/bin" else path


def _nvcc(
    path: str, compile: Compile, request: Request, variables: Mapping[str, str], knowledge: Knowledge
) -> Described:
    host = _named_host(compile.host, variables["PATH"], request.project) if compile.host else ""
    asked = msgspec.structs.replace(request, environment=dict(variables), interpreter="")
    toolchains = Toolchains(asked, ProjectSettings(host_compiler=host), knowledge)
    compiler = toolchains.cuda_at(path)
    if compiler.program.name != "cuda" and not closure.handed_to(path):
        # It may read any variable; only its caller has them all.
        raise PassThrough(Reason.WRAPPER, path)
    if compiler.wrapper:
        # It reads variables and files that nobody here knows, in each step that calls it.
        raise PassThrough(Reason.HOST_WRAPPER, compiler.wrapper)
    if compile.makes in LINKS and (script := closure.scripted_linker(compiler.tool.files)):
        raise PassThrough(Reason.HOST_WRAPPER, script)
    # The compile must find the host compiler in the same place as the probes.
    folders = dict(compiler.environment)["PATH"].split(os.pathsep)
    tool = msgspec.structs.replace(compiler.tool, roots=_without_project(compiler.tool), name=f"nvcc {path}")
    environment = _environment(_read_by(compile, variables), ToolFamily.CUDA, folders)
    if compile.makes is Makes.LINKED:
        specs = linking.openmp(compile.flags, compiler.libraries)
        tool = msgspec.structs.replace(tool, files=(*tool.files, *specs))
    if compile.objects:
        archives = linking.device_archives(compile.flags, request.project, dict(tool.roots)["cuda"])
        tool = msgspec.structs.replace(tool, files=(*tool.files, *archives))
    gpus: tuple[str, ...] | None = ()
    if compile.native:
        nvcc = os.path.join(dict(tool.roots)["cuda"], "bin", os.path.basename(compiler.program.suffix))
        gpus = native_gpus.meaning(knowledge, nvcc, environment, variables.get(native_gpus.VISIBLE))
    if gpus is None:
        # nvcc takes its default and warns, also if GPUs appear before it runs.
        environment = tuple(sorted((*environment, (native_gpus.VISIBLE, ""))))
    return Described(
        tool=tool,
        program=compiler.program,
        environment=environment,
        clang=compiler.clang,
        host=host,
        standard=tuple(folder for folder in tool.search if folder not in compiler.included),
        before=compiler.before,
        libraries=compiler.libraries,
        gpus=gpus or (),
    )


def _hipcc(
    path: str, compile: Compile, request: Request, variables: Mapping[str, str], knowledge: Knowledge
) -> Described:
    asked = msgspec.structs.replace(request, environment=dict(variables), interpreter="")
    toolchains = Toolchains(asked, ProjectSettings(hip=_root_of(path)), knowledge)
    environment = _environment(variables, ToolFamily.HIP, ())
    question, _ = hipcc.probes(path, environment)
    flags: tuple[str, ...] = ()
    # A dry run starts clang three times. The dry run for the steps also describes hipcc, or runs beside the one that
    # does.
    steps = hip_ahead(path, environment, compile.flags, os.path.splitext(compile.source)[1])
    if compile.makes is Makes.OBJECT:
        knowledge.ask_ahead(steps)
    # LLVM's libraries are most of the bytes to digest: that can happen meanwhile.
    likely = closure.libraries(knowledge, hipcc.likely_programs(question.files), environment)
    knowledge.foresee(file.path for file in likely)
    if compile.makes is Makes.OBJECT and hipcc.tells_its_parts(compile.flags, environment):
        steps = msgspec.structs.replace(steps, files=question.files)
        if hipcc.calls_clang(knowledge.ask(steps)[0]):
            question, flags = steps, compile.flags
    # hipcc chooses its platform by the compilers that it finds, which may include nvcc.
    if not hipcc.calls_clang(knowledge.ask(question)[0]):
        toolchains.hip()  # raises RequestError if hipcc does not work at all
        raise PassThrough(Reason.ENVIRONMENT, "hipcc does not call clang here; set HIP_PLATFORM=amd")
    compiler = toolchains.hip_compiling(environment, question, flags)
    return _described_hip(compiler, f"hipcc {path}", environment)


def _is_clang(path: str, compile: Compile) -> bool:
    """Tell whether a command calls clang for HIP, without hipcc."""
    return compile.family is Family.HIPCC and family_of(os.path.basename(path)) is not Family.HIPCC


def _clang_for_hip(
    path: str, compile: Compile, request: Request, variables: Mapping[str, str], knowledge: Knowledge
) -> Described:
    if closure.is_script(path):
        raise PassThrough(Reason.WRAPPER, path)
    _root_of(path)
    environment = _environment(variables, ToolFamily.HIP, (os.path.dirname(path),))
    question = hip_ahead(path, environment, compile.flags, os.path.splitext(compile.source)[1])
    question = msgspec.structs.replace(question, files=clang_hip.files(path, compile.flags, environment))
    if not hipcc.calls_clang(knowledge.ask(question)[0]):
        raise PassThrough(Reason.LANGUAGE, f"{path} does not compile HIP with these options")
    compiler = describe_hipcc(
        SearchPlace(source="command", path=path),
        msgspec.structs.replace(request, environment=dict(variables), interpreter=""),
        knowledge,
        search_path=dict(environment)["PATH"],
        called_in=environment,
        seen=(question,),
        flags=compile.flags,
    )
    return _described_hip(compiler, f"{os.path.basename(path)} {path}", environment)


def _described_hip(compiler: Compiler, name: str, environment: Environment) -> Described:
    tool = msgspec.structs.replace(compiler.tool, roots=_without_project(compiler.tool), name=name)
    return Described(
        tool=tool,
        program=compiler.program,
        environment=environment,
        clang=True,
        host="",
        standard=tool.search,
    )


def _read_by(compile: Compile, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables without the one that linkers alone read, for a command that does not link. LIBRARY_PATH
    stays: gcc reads specs there, and clang device code for OpenMP."""
    return variables if compile.makes in LINKS else {n: v for n, v in variables.items() if n != _RUN_PATH}


def _environment(
    variables: Mapping[str, str], family: ToolFamily, folders: tuple[str, ...] | list[str]
) -> tuple[tuple[str, str], ...]:
    """Return the tool's whole environment. Unlike for buildd's own targets, the language is the caller's, who reads the
    messages."""
    chosen = {}
    for name, value in variables.items():
        row = find(name)
        if row is not None and family in row.families:
            chosen[name] = value
    # nvcc's folders have the caller's among them.
    theirs = (
        () if family is ToolFamily.CUDA else closure.callers_folders(variables["PATH"], (), closure.BINUTILS, TOOL_PATH)
    )
    chosen["PATH"] = ":".join(dict.fromkeys((*theirs, *folders, *TOOL_PATH.split(":"))))
    return tuple(sorted(chosen.items()))


def _without_project(tool: Tool) -> tuple[tuple[str, str], ...]:
    return tuple(root for root in tool.roots if root[0] != "project")


def _root_of(path: str) -> str:
    if os.path.basename(os.path.dirname(path)) != "bin":
        raise PassThrough(Reason.TOOL, path)
    return os.path.dirname(os.path.dirname(path))


def callers_path(request: Request) -> str:
    """Return the caller's PATH with absolute names of folders: the daemon and its probes run elsewhere.

    The working folder itself stays as it is: nobody fills it with a compiler's programs.
    """
    folders = request.environment.get("PATH", TOOL_PATH).split(os.pathsep)
    is_here = ("", ".", "./")
    return os.pathsep.join(each if each in is_here else os.path.join(request.project, each) for each in folders)


def without_shims(path: str) -> str:
    """Return a PATH without the folders of shims."""
    folders = [folder for folder in path.split(os.pathsep) if folder and not _is_marked(folder)]
    return os.pathsep.join(folders)


def _is_marked(folder: str) -> bool:
    return os.path.isdir(os.path.join(folder, MARK))


def _named_host(host: str, path: str, folder: str) -> str:
    """Return the value of -ccbin as the probes and steps can use it, wherever they run.

    Args:
        path, folder: PATH and the working folder of the caller.
    """
    there = os.path.normpath(os.path.join(folder, host))
    if "/" in host:
        host = there if not os.path.isabs(host) else host
    elif os.path.lexists(there):
        raise PassThrough(Reason.TOOL, f"-ccbin {host} may mean {there}")
    return _behind_cache(_behind(host, path), path)


def _behind_cache(program: str, path: str) -> str:
    """Return the compiler behind another cache's link of its name, as that cache would find it; any other program
    unchanged."""
    if closure.is_other_cache(program):
        found = closure.which_compiler(os.path.basename(program), path)
        if not found:
            raise PassThrough(Reason.OTHER_CACHE, os.path.realpath(program))
        return os.path.abspath(found)
    if os.path.basename(os.path.realpath(program)) in _OTHERS:
        raise PassThrough(Reason.OTHER_CACHE, os.path.realpath(program))
    return program


def _behind(program: str, path: str) -> str:
    """Return the real tool of a shim; any other program unchanged."""
    folder, name = os.path.split(program)
    if not folder or not _is_marked(folder):
        if os.path.isdir(program) and _is_marked(program):
            raise PassThrough(Reason.TOOL, program)
        return program
    try:
        return os.readlink(os.path.join(folder, MARK, name))
    except OSError:
        found = closure.which(name, path)
        if not found:
            raise PassThrough(Reason.TOOL, program) from None
        return found
