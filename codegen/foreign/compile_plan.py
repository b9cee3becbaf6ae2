"""Turns one compile of a foreign build into a plan of one action.

Knows how a compile's flags affect its action, not how its tool is described (`called_tool`), nor the syntax of command
lines (`command_line`). Pure, as all of codegen.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from codegen.compilers import checkout_roots, environment_roots, nvcc, temporary_roots
from codegen.compilers.command_parser import (
    HIP_DEVICE_ALONE,
    Compile,
    Family,
    Makes,
    PassThrough,
    Reason,
    language_of,
)
from codegen.compilers.depfile import HeaderFolders
from codegen.flags import inspect
from codegen.flags import words as flag_words
from codegen.foreign.called_tool import Described
from codegen.foreign.command_line import known_name
from codegen.plan import (
    LINKED,
    LISTED,
    RULES,
    Action,
    Argument,
    Discovery,
    Knowledge,
    Output,
    Place,
    Plan,
    Ref,
    Resources,
    Steps,
    TextUse,
)
from codegen.search import folders_in, include_folders, library_folders
from codegen.steps.decomposition import decomposition, hip_decomposition
from codegen.steps.text_use import is_older, text_use
from protocol.messages import Request

DEPENDENCIES = "dependencies"
"""Output that lists the files that the tool read, in its own spelling; see `temporary_roots.listed`."""
_FLAG_VARIABLES = (*nvcc.FLAG_VARIABLES, "HIPCC_COMPILE_FLAGS_APPEND")
_SEARCHED = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
_JOINED = re.compile(r"-(?:isystem-after|isystem|iquote|idirafter|include|imacros|I|L|T)=?(.+)", re.DOTALL)
_RESOURCES = re.compile(r"/lib/clang/[^/]+/include\Z")
_C = ("c", "c-header")
_SYSTEM = ("-isystem", "-idirafter", "--system-include")
_USER = ("-I", "-iquote")
_NAMES_NO_FILE = re.compile(r"-[DU]|--(un)?define-macro|-f(file|debug|macro)-prefix-map=")
_SHOWN = "BUILDD_SHOWN"
"""Variable with what a mapping leaves of folders that the result contains. No tool reads it; keys contain it."""
NVCC = Resources(memory_bytes=700 << 20, wall_s=3.0)
_HIPCC = Resources(memory_bytes=600 << 20, wall_s=3.0)
_CXX = Resources(memory_bytes=300 << 20, wall_s=1.0)


def moving_roots(compile: Compile, described: Described, request: Request) -> temporary_roots.Roots:
    """Return the folders of a compile that may be others in the next build: see `temporary_roots`, `checkout_roots`,
    `environment_roots`."""
    mapped = request.environment.get(temporary_roots.MAP_PATHS, "")
    temporary = temporary_roots.roots_of(compile, request.project, mapped, clang=described.clang)
    run_folder = request.environment.get(checkout_roots.RUN_FOLDER, "")
    flags = (*compile.flags, *_environment_flags(described.environment))
    installed = [folder for _, folder in described.tool.roots] + [*described.standard, *described.libraries]
    clang = described.clang
    checkout = checkout_roots.roots_of(compile, request.project, run_folder, flags, temporary, installed, clang=clang)
    own = (*temporary, *checkout)
    toolkit = _toolkit(compile, described)
    others = [path for path in described.standard if not checkout_roots.is_in(path, toolkit)]
    if not toolkit:
        others += [folder for _, folder in described.tool.roots]
    environments = environment_roots.roots_of(
        compile, request.project, flags, own, [*others, *described.libraries], toolkit=toolkit, clang=clang
    )
    return checkout_roots.sorted_roots((*own, *environments))


def _toolkit(compile: Compile, described: Described) -> str:
    """Return the folder of the toolkit that nvcc belongs to; empty for another tool, and if a script calls nvcc."""
    program = described.program
    is_called = compile.family is Family.NVCC and isinstance(program, Ref) and program.name == "cuda"
    return dict(described.tool.roots)["cuda"] if is_called else ""


def steps_key(compile: Compile, roots: temporary_roots.Roots) -> tuple[Argument, ...]:
    """Return everything that `steps` depends on, other than the tool."""
    return (os.path.splitext(compile.source)[1], *_listing(compile), *_flags(compile, roots))


def _flags(compile: Compile, roots: temporary_roots.Roots) -> tuple[Argument, ...]:
    return (*temporary_roots.mapping(compile.family, roots), *temporary_roots.referring(compile.flags, roots))


def _listing(compile: Compile) -> tuple[str, ...]:
    """Return -MD for a compile with a depfile: nvcc then preprocesses for all architectures first, which changes the
    order of its messages."""
    return ("-MD", "-MF", f"/buildd_probe/{LISTED}") if compile.depfile and compile.family is Family.NVCC else ()


def steps(compile: Compile, described: Described, roots: temporary_roots.Roots, knowledge: Knowledge) -> Steps | str:
    """Return the steps of a compile, or the reason why it runs whole although its tool can run in steps; empty for
    other tools.

    Args:
        roots: see `moving_roots`.

    Raises:
        ProbesNeeded: as `describe`.
    """
    if compile.family not in (Family.NVCC, Family.HIPCC):
        return ""
    if compile.objects:
        return ""
    if compile.makes is Makes.LINKED:
        return "the same command also links"
    if compile.makes is Makes.RULES:
        return "it only lists what a source includes"
    # A build may move an object away and compile the source again with other macros to the same path.
    identity = "\0".join(_macros(compile.flags))
    if not HIP_DEVICE_ALONE.isdisjoint(compile.flags):
        return "it makes device code alone"
    if compile.family is Family.HIPCC:
        return hip_decomposition(
            knowledge,
            described.tool,
            described.program,
            described.environment,
            _flags(compile, roots),
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


def is_for_host(compile: Compile) -> bool:
    """Tell whether nvcc has the host compiler compile a source as it is, without a module of its own."""
    told = any(flag in ("-x", "--x") or flag.startswith(("-x=", "--x=")) for flag in compile.flags)
    return language_of(compile.source) in ("c", "c++") and not told


def _macros(flags: tuple[str, ...]) -> Iterator[str]:
    for before, flag in pairwise(("", *flags)):
        if before in ("-D", "-U", "--define-macro", "--undefine-macro") or re.match(
            r"-[DU].|--(un)?define-macro=", flag
        ):
            yield flag


def plan(
    compile: Compile, described: Described, request: Request, steps: Steps | str = "", roots: temporary_roots.Roots = ()
) -> Plan:
    """Return the plan of a compile. Needs no more probes.

    Args:
        roots: the same as for `steps`.
    """
    nvcc = compile.family is Family.NVCC
    linked = compile.makes is Makes.LINKED
    if linked and described.clang:
        raise PassThrough(Reason.LINK)
    flags = (*compile.flags, *_environment_flags(described.environment))
    effects = inspect(flags)
    environment = described.environment
    # In steps, -g concerns the host compile alone, which writes the mapped paths.
    maps = not nvcc or isinstance(steps, Steps) or is_for_host(compile)
    mapped = maps and temporary_roots.is_mapped(compile.flags, roots, request.project)
    mapped = mapped or checkout_roots.is_mapped(flags, roots)
    # A file in the toolkit is named after the toolkit as a moving root, where it is one.
    tool = msgspec.structs.replace(described.tool, roots=(*roots, *described.tool.roots))
    if toolkit := dict(roots).get(environment_roots.TOOLKIT):
        behind = (environment_roots.TOOLKIT_BEHIND_LINKS, os.path.realpath(toolkit))
        tool = msgspec.structs.replace(tool, name="nvcc", roots=(*tool.roots, behind))
    # nvcc names its module after the source's absolute path and links relocatable device code by it: cwd is in the key.
    # In steps buildd chooses the name, from the stable name of a temporary folder; a result that shows a name which
    # was chosen by a checkout's folder is bound to that folder. A precompiled header contains the path of every
    # included file.
    named = nvcc and (bool(compile.objects) or linked or not is_for_host(compile))
    named_by_path = named and not roots
    # The folder of a result that is bound to it is in the input set, so that a miss can name the other checkout.
    # gcc writes the working folder into what it makes for a link with -flto.
    packed = compile.family is Family.GCC and not described.clang and not roots and checkout_roots.is_packed(flags)
    shows = (effects.path_sensitive or packed) and not mapped and not checkout_roots.always_bound(flags, roots)
    # A path-sensitive key would have the folder of a divided command's objects, which may have another name the next
    # time: such a link has the working folder in PWD.
    sensitive = named_by_path or compile.makes is Makes.HEADER or (shows and not compile.objects)
    if sensitive or (named and not temporary_roots.is_below(request.project, roots)):
        environment = tuple(sorted((*environment, ("PWD", request.project))))
    shown = [checkout_roots.shown_parts(flags, roots)]
    if mapped and effects.path_sensitive:
        shown.append(temporary_roots.named(request.project, roots))  # debug information has it
    if any(shown):
        environment = tuple(sorted((*environment, (_SHOWN, " ".join(filter(None, shown))))))
    if nvcc and isinstance(steps, Steps) and steps.silent and roots:
        steps = "its folder's name changes with every build"
    apart = nvcc or isinstance(steps, Steps)
    listing: tuple[Argument, ...] = ()
    if not isinstance(steps, Steps) and not linked and _listing(compile):
        listing = (*_listing(compile)[:-1], Ref(place=Place.TEMPORARY, suffix=f"/{LISTED}"))
    name = "program" if linked else "rules" if compile.makes is Makes.RULES else "object"
    called = temporary_roots.named(compile.output, roots) if nvcc else compile.output
    if nvcc:
        # One program may contain two objects of one source, and they may differ.
        name += " " + hashlib.blake2b(called.encode(), digest_size=8).hexdigest()
        name += " with its depfile" if compile.depfile else ""
    if compile.depfile and compile.depfile.twice and described.clang and not nvcc:
        raise PassThrough(Reason.UNSUPPORTED_OPTION, "-MD beside -MMD")
    discovery = Discovery.CLANG if described.clang else Discovery.GCC_LINKER if linked else Discovery.GCC
    if compile.objects and not nvcc:
        discovery = Discovery.LINKER  # gcc preprocesses nothing; nvcc compiles a stub
    search = (*include_folders((), flags, dict(described.tool.roots), environment), *described.before)
    if compile.makes is Makes.DEVICE_LINKED:
        search += (".",)  # nvcc has the host compiler search the headers of its stub there
    if linked:
        # The linker may write its output's name into the output.
        name += f" {os.path.basename(called)}"
        name += " with its depfile" if compile.depfile and not nvcc else ""
        # The linker searches the working folder first for files named by a linker script.
        search += (".", *library_folders(flags, environment, dict(described.tool.roots)), *described.libraries)
    lists: tuple[Argument, ...] = ()
    if compile.makes is Makes.RULES and compile.family is Family.GCC:
        if described.clang:
            raise PassThrough(Reason.DEPENDENCIES_ONLY)
        # gcc knows one list alone: the caller's is made of the daemon's, which names every header.
        lists = ("-M", Ref(place=Place.DEPFILE, prefix="-MF"))
    elif described.clang and not nvcc and (compile.depfile or HIP_DEVICE_ALONE.isdisjoint(compile.flags)):
        # clang 21 writes no rules for device code alone, and warns of -MF.
        discovery = Discovery.CLANG_RULES
        lists = ("-MD", Ref(place=Place.DEPFILE, prefix="-MF", suffix=RULES))
    made = (Output(name=name, path=compile.output, executable=linked),) if compile.output else ()
    whole = nvcc and not isinstance(steps, Steps)
    use = text_use(compile.source, flags, clang=described.clang, nvcc_whole=whole)
    action = Action(
        name=compile.output or f"{compile.source}: what it includes",
        kind=os.path.basename(request.command[0]),
        tool=tool.name,
        argv=(
            described.program,
            *(("-ccbin", described.host) if described.host else ()),
            *temporary_roots.mapping(compile.family, roots),
            *temporary_roots.referring(compile.flags if apart and not compile.objects else compile.arguments, roots),
            *listing,
            *lists,
            *((_linker_inputs(nvcc, discovery),) if linked else ()),
            *(("-o", Ref(place=Place.OUTPUT, name=name)) if made else ()),
            *(temporary_roots.referring((compile.source,), roots) if apart and not compile.objects else ()),
        ),
        environment=environment,
        inputs=compile.objects or (compile.source,),
        outputs=(*made, Output(name=DEPENDENCIES, path=f"{compile.output or compile.source}.{DEPENDENCIES}")),
        discovery=discovery,
        search=search,
        path_sensitive=sensitive,
        text=use if compile.makes is Makes.OBJECT else TextUse.CONTENT,
        older=is_older(compile.source, flags),
        steps=steps.name if isinstance(steps, Steps) else "",
        whole=steps if isinstance(steps, str) else "",
        resources=NVCC if nvcc else _HIPCC if compile.family is Family.HIPCC else _CXX,
    )
    stepwise = (steps,) if isinstance(steps, Steps) else ()
    return Plan(targets=(action.name,), actions=(action,), tools=(tool,), steps=stepwise)


def _linker_inputs(nvcc: bool, discovery: Discovery) -> Ref:
    """Return the flag that makes the linker list its inputs."""
    option = "-Xlinker=" if nvcc else "-Wl,"
    suffix = "" if discovery is Discovery.LINKER else LINKED
    return Ref(place=Place.DEPFILE, prefix=f"{option}--dependency-file=", suffix=suffix)


def _environment_flags(environment: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yield the flags that a tool reads from its environment; they act like flags on the command line. The host
    compiler that they name for nvcc is part of the tool."""
    for name, value in environment:
        if name in _FLAG_VARIABLES:
            words = shlex.split(value)
            yield from nvcc.without_host(words)[0] if name in nvcc.FLAG_VARIABLES else words


def named_files(compile: Compile, request: Request) -> Iterator[str]:
    """Yield every word of a command that could name a file or folder that the tool reads; many do not."""
    variables = request.environment
    set_flags = (word for name in _FLAG_VARIABLES for word in shlex.split(variables.get(name, "")))
    words = flag_words((*compile.arguments, *set_flags))
    yield from (compile.host, variables.get("NVCC_CCBIN", ""))
    for name in _SEARCHED:
        yield from variables.get(name, "").split(os.pathsep)
    for word in words:
        if not word.startswith("-"):
            yield word
        elif not _NAMES_NO_FILE.match(word):
            joined = _JOINED.fullmatch(word)
            yield from (joined[1] if joined else "", word.partition("=")[2])


def _is_c(compile: Compile, program: Argument) -> bool:
    """Tell whether gcc or clang takes a source for C."""
    for before, flag in pairwise(("", *compile.flags)):
        if before == "-x" or (flag.startswith("-x") and flag != "-x"):
            return flag.removeprefix("-x") in _C
    return language_of(compile.source) in _C and not known_name(os.path.basename(str(program))).endswith("++")


def header_folders(compile: Compile, described: Described) -> HeaderFolders:
    """Return the folders that decide which headers -MMD leaves out, in the compiler's spelling, each with a final
    slash."""
    flags = (*compile.flags, *_environment_flags(described.environment))
    is_c = compile.family is Family.GCC and _is_c(compile, described.program)
    variable = "C_INCLUDE_PATH" if is_c else "CPLUS_INCLUDE_PATH"
    named = _with_short_names([*_folders_of(_SYSTEM, flags), *folders_in(described.environment, variable)])
    # -MMD leaves out its lists for sanitizers too.
    named += [f"{folder.removesuffix('/include')}/share" for folder in described.standard if _RESOURCES.search(folder)]
    system = _ended(*named, *described.standard)
    users = folders_in(described.environment, "CPATH")
    user = _ended(*_with_short_names([*_folders_of(_USER, flags), *users]))
    return HeaderFolders(system, tuple(folder for folder in user if folder.startswith(system)))


def _folders_of(options: Sequence[str], flags: Iterable[str]) -> Iterator[str]:
    """Yield the folders that these options name, in the same word or in the next one."""
    waiting = False
    for flag in flags:
        option = next((each for each in options if flag.startswith(each)), "")
        if waiting:
            yield flag
        elif flag != option and option:
            yield flag.removeprefix(option).removeprefix("=")
        waiting = flag in options and not waiting


def _with_short_names(folders: list[str]) -> list[str]:
    """Add the names that gcc writes for folders with `..` in their name, and gcc and clang without the first `./`."""
    return [*folders, *(os.path.normpath(folder) for folder in folders if folder.startswith(("/", "./")))]


def _ended(*folders: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{folder.rstrip('/')}/" for folder in folders if folder))
