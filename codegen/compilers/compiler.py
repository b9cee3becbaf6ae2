"""Describes a compiler that was found: its files, version, environment and default folders, as a `Tool`.

Knows the parts of nvcc and hipcc, not where these are searched (`toolchain`) and no target. Runs nothing: it asks
compilers through probes.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable

import msgspec

from codegen.compilers import closure, hipcc, nvcc
from codegen.compilers.closure import Environment, is_script, script_files, which
from codegen.compilers.pip_command import install_extra
from codegen.errors import RequestError
from codegen.plan import Frozen, Knowledge, Place, Probe, Ref, Tool, ToolFile
from codegen.search import without_variables
from codegen.variables.environment import tool_environment
from codegen.variables.variable import ToolFamily
from protocol.messages import Request

NO_HIPCC = (
    "install it (Debian: apt install hipcc rocm-device-libs libamdhip64-dev), or set ROCM_PATH, "
    'or hip = "..." under [toolchain] in buildd.toml'
)


def no_nvcc() -> str:
    """Return what to do where there is no nvcc."""
    own = install_extra("cuda")
    return f"install one with `{own}`, or set CUDA_HOME, or cuda = '...' under [toolchain] in buildd.toml"


_GFX = re.compile(r"\bgfx[0-9a-f]+\b")


class SearchPlace(Frozen, frozen=True):
    """A place where a tool may be."""

    source: str
    """"CUDA_HOME", "PATH", "PyPI wheels of ..."."""
    path: str


class Compiler(Frozen, frozen=True):
    """A compiler that was found, with everything needed to call it."""

    tool: Tool
    program: Ref
    """The first word of an action's command line."""
    environment: Environment
    """Environment of every action that calls the compiler."""
    version: str
    archs: tuple[str, ...]
    """Architectures that it compiles for."""
    library_flags: tuple[Ref, ...] = ()
    """-L flags that the compiler needs in addition to its default folders."""
    libraries: tuple[str, ...] = ()
    """Folders that the compiler searches for libraries by default."""
    included: tuple[str, ...] = ()
    """Folders of the toolkit whose headers are no system headers for nvcc."""
    clang: bool = False
    """The preprocessor is clang's (hipcc, or nvcc with -ccbin clang++)."""
    wrapper: str = ""
    """nvcc only: the host compiler, if it is a wrapper."""
    before: tuple[str, ...] = ()
    """Folders that a script in front of the host compiler names with -isystem: see `closure.HostCompiler`."""
    source: str = ""
    """The place where the compiler was found."""
    archs_without_library: tuple[str, ...] = ()
    """hipcc only: architectures that clang knows and its device libraries do not, so no source compiles for them."""


def describe_nvcc(
    found: SearchPlace, request: Request, knowledge: Knowledge, *, host: str, folders: Iterable[str], search_path: str
) -> tuple[Compiler, Probe | None]:
    """Return nvcc with its host compiler, and the probe that lists the includes of its link stub.

    Args:
        found: nvcc's place.
        host: value of -ccbin; if empty, nvcc chooses.
        folders: folders that nvcc searches for a host compiler before the tools' own PATH.
        search_path: the PATH, if nvcc's dry run sets none.
    """
    environment = tool_environment(request.environment, ToolFamily.CUDA, folders=folders)
    variables = dict(environment)
    binding = ("-ccbin", host) if host else ()
    asked = script_files(os.path.abspath(found.path), variables)
    inputs = tuple(dict.fromkeys((*asked, *(os.path.realpath(path) for path in asked))))
    # The output of --dryrun depends on the profile beside each nvcc.
    inputs = tuple(dict.fromkeys((*inputs, *(os.path.join(os.path.dirname(path), "nvcc.profile") for path in inputs))))
    base = (inputs[0], *binding)
    compiling, linking, listing = (
        Probe(argv=(*base, *arguments), environment=environment, files=inputs)
        for arguments in (
            ("--dryrun", "-c", "buildd-probe.cu", "-o", "buildd-probe.o"),
            ("--dryrun", "-shared", "buildd-probe.o", "-o", "buildd-probe.so"),
            ("--list-gpu-code",),
        )
    )
    answers = knowledge.ask(compiling, linking, listing)
    dryrun, link = (nvcc.parse_dryrun(answer.stderr + answer.stdout) for answer in answers[:2])
    here = os.path.normpath(dryrun.variables.get("_HERE_", ""))
    if answers[0].status != 0 or not dryrun.commands or not os.path.isfile(os.path.join(here, "nvcc")):
        said = (answers[0].stderr or answers[0].stdout).strip().splitlines()
        raise RequestError(
            "compiler-not-found",
            f"{found.path} (from {found.source}) does not work: {said[-1] if said else 'it printed nothing'}",
            file=found.path,
            next_step="install a host compiler (Debian: apt install g++)" if "host" in str(said[-1:]) else no_nvcc(),
        )
    root = os.path.dirname(here)
    path = dryrun.variables.get("PATH", search_path)
    files = _toolkit_files(here, dryrun, (*dryrun.commands, *link.commands), path)
    knowledge.foresee(file.path for file in files)
    roots = [("cuda", root), ("project", request.project)]
    real = _program_in(here)
    program = Ref(place=Place.ROOT, name="cuda", suffix=f"/bin/{os.path.basename(real)}")
    if os.path.realpath(inputs[0]) != os.path.realpath(real):
        # A wrapper may add flags or variables, so the wrapper itself must be called.
        roots.append(("nvcc", os.path.dirname(inputs[0])))
        program = Ref(place=Place.ROOT, name="nvcc", suffix="/" + os.path.basename(inputs[0]))
        wrappers = [file for file in asked if os.path.realpath(file) != os.path.realpath(real)]
        files += [ToolFile(role=f"nvcc wrapper {index}", path=file) for index, file in enumerate(wrappers)]
    drivers = [which(command[0], path) for command in (*dryrun.commands, *link.commands)]
    known = {file.path for file in files}
    names = [os.path.abspath(driver) for driver in drivers if driver and os.path.normpath(driver) not in known]
    names = [name for name in dict.fromkeys(names) if os.path.basename(name) != "rm"]
    if not names:
        raise RequestError("compiler-not-found", f"{found.path} --dryrun names no host compiler", next_step=no_nvcc())
    stub = None
    compiler = closure.host_compiler(knowledge, tuple(names), environment, path)
    if command := _stub_command(link, path):
        stub = Probe(argv=command, environment=environment, files=(*inputs, command[0], command[-1]))
    label = f"nvcc -ccbin {host}" if host else "nvcc"
    version = nvcc.version(dryrun)
    tool = Tool(
        name=label,
        files=(*files, *compiler.files),
        facts=(("nvcc", version), ("host compiler", compiler.version)),
        roots=tuple(roots),
        search=tuple(dict.fromkeys((*nvcc.include_folders(dryrun.variables), *compiler.search))),
    )
    described = Compiler(
        tool=tool,
        program=program,
        environment=environment,
        version=version,
        archs=nvcc.parse_codes(answers[2].stdout),
        library_flags=_library_flags(root, dryrun),
        libraries=compiler.libraries,
        included=tuple(
            folder for folder in nvcc.include_folders(dryrun.variables, system=False) if folder not in compiler.search
        ),
        clang=compiler.clang,
        wrapper=compiler.wrapper,
        before=compiler.before,
        source=f"{found.source}: {found.path}",
    )
    return described, stub


def with_link_stub(compiler: Compiler, stub: Probe, knowledge: Knowledge) -> Compiler:
    """Return nvcc for linking relocatable device code. The toolkit headers of its link stub are part of the tool,
    because the linker's dependency file does not list them."""
    (answer,) = knowledge.ask(stub)
    files = closure.Files(compiler.tool.files)
    for path in re.findall(r"(/(?:[^\s\\]|\\ )+)", answer.stdout):
        path = os.path.normpath(path.replace("\\ ", " "))
        if os.path.isfile(path):
            files.add(f"device link {os.path.basename(path)}", path)
    tool = msgspec.structs.replace(compiler.tool, name=compiler.tool.name + " device link", files=files.all())
    return msgspec.structs.replace(compiler, tool=tool)


def describe_hipcc(
    found: SearchPlace,
    request: Request,
    knowledge: Knowledge,
    *,
    search_path: str,
    called_in: Environment = (),
    seen: tuple[Probe, ...] = (),
    flags: tuple[str, ...] = (),
) -> Compiler:
    """Return hipcc for AMD.

    Args:
        found: hipcc's place.
        search_path: the PATH on which the programs of the dry run are found.
        called_in, seen, flags: see `Toolchains.hip_compiling`; empty for buildd's own targets, which also link, and
            which name architectures.
    """
    environment = called_in or hipcc.for_amd(tool_environment(request.environment, ToolFamily.HIP))
    path = os.path.abspath(found.path)
    probes = seen or hipcc.probes(path, environment)
    answers = knowledge.ask(*probes)
    commands = [hipcc.clang_commands(answer.stderr + answer.stdout) for answer in answers]
    passes = [command for command in commands[0] if "-cc1" in command]
    if not passes:
        said = (answers[0].stderr or answers[0].stdout).strip().splitlines()
        raise RequestError(
            "compiler-not-found",
            f"{found.path} (from {found.source}) does not work: {said[-1] if said else 'it printed nothing'}",
            file=found.path,
            next_step=NO_HIPCC,
        )
    clang = passes[0][0]
    files = closure.Files()
    for command in itertools.chain.from_iterable(commands):
        if program := which(command[0], search_path):
            files.add(os.path.basename(program), program)
    for index, file in enumerate(probes[0].files):
        name = os.path.basename(file)
        files.add(name if index == 0 else f"{os.path.basename(path)} {name}", file)
    files.extend(closure.libraries(knowledge, files.paths(), environment))
    libraries = hipcc.bitcode(passes)
    for file in (*libraries, *hipcc.version_files(os.path.dirname(os.path.dirname(path)))):
        files.add(os.path.basename(file), file)
    cpus = Probe(
        argv=(clang, "--target=amdgcn", "--print-supported-cpus"),
        environment=environment,
        files=(clang,),
    )
    listed = () if called_in else knowledge.ask(cpus)
    known = tuple(sorted({arch for cpu in listed for arch in _GFX.findall(cpu.stdout + cpu.stderr)}))
    archs = hipcc.with_library(known, libraries)
    root = os.path.dirname(os.path.dirname(path))
    heading = (answers[0].stderr + answers[0].stdout).splitlines()
    version = next((line.strip() for line in heading if "clang version" in line), "")
    flags = (*flags, *hipcc.flags_in(environment, hipcc.COMPILE_FLAGS))
    search = dict.fromkeys(folder for command in passes for folder in hipcc.own_search(command, flags))
    return Compiler(
        tool=Tool(
            name="hipcc",
            files=files.all(),
            facts=(("clang", version),),
            roots=(("hip", root), ("project", request.project)),
            search=without_variables(search, environment),
        ),
        program=Ref(place=Place.ROOT, name="hip", suffix="/bin/" + os.path.basename(path)),
        environment=environment,
        version=version,
        archs=archs,
        clang=True,
        source=f"{found.source}: {found.path}",
        archs_without_library=tuple(arch for arch in known if arch not in archs),
    )


def describe_archiver(path: str, request: Request, knowledge: Knowledge) -> Compiler:
    """Return the `ar` at a path."""
    environment = tool_environment(request.environment, ToolFamily.CUDA)
    files = (ToolFile(role="ar", path=path), *closure.libraries(knowledge, (path,), environment))
    tool = Tool(name="ar", files=files, roots=(("ar", os.path.dirname(path)),))
    program = Ref(place=Place.ROOT, name="ar", suffix="/ar")
    return Compiler(tool=tool, program=program, environment=environment, version="", archs=())


def _toolkit_files(here: str, dryrun: nvcc.Dryrun, commands: tuple[tuple[str, ...], ...], path: str) -> list[ToolFile]:
    """Return nvcc's own parts: the toolkit programs that its steps call, and the files other than headers that these
    read."""
    root = os.path.dirname(here)
    found: dict[str, str] = {}
    for name in (os.path.basename(_program_in(here)), "nvcc.profile", "crt/link.stub", "crt/prelink.stub"):
        found[os.path.join(here, name)] = name
    cicc = os.path.normpath(os.path.join(dryrun.variables.get("CICC_PATH", root), "cicc"))
    found[cicc] = "cicc"
    for name in ("cudafe++", "ptxas", "fatbinary", "nvlink", "bin2c"):
        found.setdefault(os.path.join(here, name), name)
    # A conda environment holds the host compiler beside nvcc.
    hosts = {os.path.normpath(which(command[0], path)) for command in commands if nvcc.calls_host(command)}
    for command in commands:
        program = os.path.normpath(which(command[0], path))
        if program.startswith(root + os.sep) and program not in hosts:
            found.setdefault(program, os.path.basename(program))
    libdevice = os.path.normpath(dryrun.variables.get("NVVMIR_LIBRARY_DIR", os.path.join(root, "nvvm", "libdevice")))
    for folder, pattern in ((libdevice, r".*\.bc"), (os.path.join(root, "nvvm", "lib64"), r"libnvvm\.so.*")):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if re.fullmatch(pattern, name):
                found.setdefault(os.path.join(folder, name), name)
    for name in sorted(os.listdir(os.path.join(root, "lib"))) if os.path.isdir(os.path.join(root, "lib")) else []:
        if name.startswith("libnvvm.so"):
            found.setdefault(os.path.join(root, "lib", name), name)
    return [ToolFile(role=role, path=file) for file, role in found.items() if os.path.isfile(file)]


def _program_in(here: str) -> str:
    """Return nvcc itself, in its folder. nixpkgs' makeWrapper puts a script in its place and moves it aside."""
    path, aside = (os.path.join(here, name) for name in ("nvcc", ".nvcc-wrapped"))
    return aside if is_script(path) and os.path.isfile(aside) else path


def _stub_command(link: nvcc.Dryrun, path: str) -> tuple[str, ...]:
    """Return the command that lists the includes of nvcc's link stub, made from the command that compiles the stub."""
    for command in link.commands:
        stub = next((argument for argument in command if argument.endswith("link.stub")), "")
        if stub and "-c" in command and "-o" in command:
            output = command.index("-o")
            kept = [item for index, item in enumerate(command[1:], 1) if index not in (output, output + 1)]
            # -MG: the files that nvlink and fatbinary would write do not exist.
            options = [item for item in kept if item not in ("-c", stub)]
            return (which(command[0], path), "-M", "-MG", *options, stub)
    return ()


def _library_flags(root: str, dryrun: nvcc.Dryrun) -> tuple[Ref, ...]:
    """Return -L for the wheels' lib folder: nvcc.profile names lib64, which they do not have."""
    named = [os.path.normpath(folder) for folder in re.findall(r'-L([^"]+)', dryrun.variables.get("LIBRARIES", ""))]
    if any(os.path.isdir(folder) for folder in named) or not os.path.isdir(os.path.join(root, "lib")):
        return ()
    return (Ref(place=Place.ROOT, name="cuda", prefix="-L", suffix="/lib"),)
