"""Finds nvcc, hipcc, CUTLASS and the host's tools for one request, and describes each as a `Tool`.

Order: buildd.toml, CUDA_HOME / CUDA_PATH or ROCM_PATH / HIP_PATH of the request, its PATH, then the PyPI wheels of the
request's interpreter and of the running one. Knows no target. Runs nothing: what must be asked of a tool is a probe.
"""

from __future__ import annotations

import itertools
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from codegen import closure, hipcc, interpreters, nvcc
from codegen.closure import Environment, script_files, which
from codegen.environment import TOOL_PATH, tool_environment
from codegen.plan import Frozen, Knowledge, Place, Probe, Ref, RequestError, Tool, ToolFile
from codegen.project import Settings
from codegen.variable import Family
from protocol.messages import Request

_NO_NVCC = (
    "install one with `pip install buildd[cuda]`, or set CUDA_HOME, or cuda = '...' under [toolchain] in buildd.toml"
)
_NO_HIPCC = (
    "install it (Debian: apt install hipcc rocm-device-libs libamdhip64-dev), or set ROCM_PATH, "
    'or hip = "..." under [toolchain] in buildd.toml'
)
_NO_CUTLASS = (
    "install it with `pip install buildd[cuda]` (nvidia-cutlass), or set CUTLASS_PATH, "
    'or cutlass = "..." under [toolchain] in buildd.toml'
)

_GFX = re.compile(r"\bgfx[0-9a-f]+\b")


class Candidate(Frozen, frozen=True):
    """A place that was looked at."""

    source: str
    """"CUDA_HOME", "PATH", "PyPI wheels of ..."."""
    path: str


class Compiler(Frozen, frozen=True):
    """A compiler that was found."""

    tool: Tool
    program: Ref
    """How an action calls it."""
    environment: Environment
    """Of every action that calls it."""
    version: str
    archs: tuple[str, ...]
    """Architectures that it compiles for."""
    library_flags: tuple[Ref, ...] = ()
    """-L that it does not know by itself."""
    libraries: tuple[str, ...] = ()
    """Folders that it searches for libraries by itself."""
    clang: bool = False
    """The preprocessor is clang's (hipcc, or nvcc with -ccbin clang++)."""
    source: str = ""
    """Where it was found."""


@dataclass(slots=True)
class Toolchains:
    """Finds each tool once for a request.

    Every method raises ProbesNeeded when something has to be asked first, and RequestError when there is none.
    """

    request: Request
    settings: Settings
    knowledge: Knowledge
    notices: list[str] = field(default_factory=list)
    _cuda: dict[str, Compiler] = field(default_factory=dict)
    _stubs: dict[str, Probe] = field(default_factory=dict)
    _hip: Compiler | None = None
    _sites: tuple[str, ...] | None = None

    @property
    def path(self) -> str:
        return self.request.environment.get("PATH", os.defpath)

    def cuda(self, host: str = "") -> Compiler:
        """nvcc with its host compiler.

        Args:
            host: for -ccbin, in place of the project's; empty means the project's, else nvcc's own choice.
        """
        host = host or self.settings.host_compiler
        if host not in self._cuda:
            self._cuda[host] = self._describe_nvcc(host)
        return self._cuda[host]

    def device_linker(self, host: str = "") -> Compiler:
        """nvcc for linking relocatable device code: its stub is compiled with toolkit headers, which are then part of
        the tool, because the linker's dependency file does not list them."""
        compiler = self.cuda(host)
        stub = self._stubs.get(host or self.settings.host_compiler)
        if stub is None:
            return compiler
        (answer,) = self.knowledge.ask(stub)
        files = closure.Files(compiler.tool.files)
        for path in re.findall(r"(/(?:[^\s\\]|\\ )+)", answer.stdout):
            path = os.path.normpath(path.replace("\\ ", " "))
            if os.path.isfile(path):
                files.add(f"device link {os.path.basename(path)}", path)
        tool = msgspec.structs.replace(compiler.tool, name=compiler.tool.name + " device link", files=files.all())
        return msgspec.structs.replace(compiler, tool=tool)

    def hip(self) -> Compiler:
        """hipcc for AMD."""
        if self._hip is None:
            self._hip = self._describe_hipcc()
        return self._hip

    def hip_compiling(self, environment: Environment, asked: Probe, flags: tuple[str, ...]) -> Compiler:
        """hipcc for AMD as a foreign build calls it to compile: nothing else is asked of it.

        Args:
            environment: in which it was seen to call clang.
            asked: the dry run that showed it.
            flags: of a compile, that are in it.
        """
        return self._describe_hipcc(environment, (asked,), flags)

    def cutlass(self) -> str:
        """Root of CUTLASS, the folder that holds include/cutlass."""
        candidates: list[Candidate] = []
        if self.settings.cutlass:
            candidates.append(Candidate(source="[toolchain] cutlass", path=self.settings.cutlass))
        else:
            for name in ("CUTLASS_PATH", "CUTLASS_DIR"):
                if value := self.request.environment.get(name):
                    candidates.append(Candidate(source=name, path=value))
            for site in self.site_packages():
                path = os.path.join(site, "cutlass_library", "source")
                candidates.append(Candidate(source=f"PyPI wheel in {site}", path=path))
        for candidate in candidates:
            if os.path.isfile(os.path.join(candidate.path, "include", "cutlass", "cutlass.h")):
                return os.path.normpath(candidate.path)
        raise _not_found("CUTLASS", candidates, _NO_CUTLASS)

    def program(self, name: str) -> str:
        """Absolute path of a host program such as ar, on the request's PATH."""
        found = which(name, self.path)
        if not found:
            raise RequestError(
                "compiler-not-found",
                f"there is no {name} on the PATH ({self.path})",
                next_step="install the compiler and binutils (Debian: apt install g++)",
            )
        return os.path.abspath(found)

    def archiver(self) -> Compiler:
        """`ar`."""
        path = self.program("ar")
        environment = tool_environment(self.request.environment, Family.CUDA)
        files = (ToolFile(role="ar", path=path), *closure.libraries(self.knowledge, (path,), environment))
        tool = Tool(name="ar", files=files, roots=(("ar", os.path.dirname(path)),))
        program = Ref(place=Place.ROOT, name="ar", suffix="/ar")
        return Compiler(tool=tool, program=program, environment=environment, version="", archs=())

    # ------------------------------------------------------------ Python

    def site_packages(self) -> tuple[str, ...]:
        """Folders of installed packages: of the request's interpreter, then of the running one."""
        if self._sites is None:
            asked: tuple[str, ...] = ()
            if theirs := self.request.interpreter:
                asked = interpreters.site_packages(theirs, self.knowledge, self.request.environment, self.path)
            found = dict.fromkeys(asked)
            found.update(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))))
            self._sites = tuple(found)
        return self._sites

    # ------------------------------------------------------------ CUDA

    def _host_folders(self) -> tuple[str, ...]:
        """Where the request's PATH has another gcc than the tools' own PATH: nvcc must find the user's."""
        folders: dict[str, None] = {}
        for name in ("gcc", "g++"):
            theirs = which(name, self.path)
            if theirs and theirs != which(name, TOOL_PATH):
                folders[os.path.dirname(os.path.abspath(theirs))] = None
        return tuple(folders)

    def _nvcc_candidates(self) -> Iterator[Candidate]:
        if self.settings.cuda:
            yield Candidate(source="[toolchain] cuda", path=os.path.join(self.settings.cuda, "bin", "nvcc"))
            return
        for name in ("CUDA_HOME", "CUDA_PATH"):
            if value := self.request.environment.get(name):
                yield Candidate(source=name, path=os.path.join(value, "bin", "nvcc"))
        yield Candidate(source="PATH", path=which("nvcc", self.path) or "nvcc")
        for site in self.site_packages():
            nvidia = os.path.join(site, "nvidia")
            folders = os.listdir(nvidia) if os.path.isdir(nvidia) else []
            numbered = sorted((int(name[2:]), name) for name in folders if re.fullmatch(r"cu\d+", name))
            names = [name for _, name in reversed(numbered)] or ["cu13"]
            for name in names:
                yield Candidate(source=f"PyPI wheels in {site}", path=os.path.join(nvidia, name, "bin", "nvcc"))

    def _first(self, candidates: Iterable[Candidate], what: str, next_step: str) -> Candidate:
        looked: list[Candidate] = []
        for candidate in candidates:
            if os.path.isabs(candidate.path) and os.path.isfile(candidate.path) and os.access(candidate.path, os.X_OK):
                for other in looked:
                    if other.source not in ("PATH",) and not other.source.startswith("PyPI"):
                        self.notices.append(f"{other.source}: there is no {other.path}; used {candidate.path} instead")
                return candidate
            looked.append(candidate)
        raise _not_found(what, looked, next_step)

    def _describe_nvcc(self, host: str) -> Compiler:
        found = self._first(self._nvcc_candidates(), "nvcc", _NO_NVCC)
        environment = tool_environment(self.request.environment, Family.CUDA, folders=self._host_folders())
        variables = dict(environment)
        binding = ("-ccbin", host) if host else ()
        asked = script_files(os.path.abspath(found.path), variables)
        inputs = tuple(dict.fromkeys((*asked, *(os.path.realpath(path) for path in asked))))
        # What --dryrun prints stands in the profile beside each nvcc.
        inputs = tuple(
            dict.fromkeys((*inputs, *(os.path.join(os.path.dirname(path), "nvcc.profile") for path in inputs)))
        )
        base = (inputs[0], *binding)
        compiling, linking, listing = (
            Probe(argv=(*base, *arguments), environment=environment, files=inputs)
            for arguments in (
                ("--dryrun", "-c", "buildd-probe.cu", "-o", "buildd-probe.o"),
                ("--dryrun", "-shared", "buildd-probe.o", "-o", "buildd-probe.so"),
                ("--list-gpu-code",),
            )
        )
        answers = self.knowledge.ask(compiling, linking, listing)
        dryrun, link = (nvcc.parse_dryrun(answer.stderr + answer.stdout) for answer in answers[:2])
        here = os.path.normpath(dryrun.variables.get("_HERE_", ""))
        if answers[0].status != 0 or not dryrun.commands or not os.path.isfile(os.path.join(here, "nvcc")):
            said = (answers[0].stderr or answers[0].stdout).strip().splitlines()
            raise RequestError(
                "compiler-not-found",
                f"{found.path} (from {found.source}) does not work: {said[-1] if said else 'it says nothing'}",
                file=found.path,
                next_step="install a host compiler (Debian: apt install g++)" if "host" in str(said[-1:]) else _NO_NVCC,
            )
        root = os.path.dirname(here)
        path = dryrun.variables.get("PATH", self.path)
        files = _toolkit_files(here, dryrun, (*dryrun.commands, *link.commands), path)
        self.knowledge.foresee(file.path for file in files)
        program = Ref(place=Place.ROOT, name="cuda", suffix="/bin/nvcc")
        roots = [("cuda", root), ("project", self.request.project)]
        if os.path.realpath(inputs[0]) != os.path.realpath(os.path.join(here, "nvcc")):
            # A wrapper may add flags or variables, so it is what has to be called.
            roots.append(("nvcc", os.path.dirname(inputs[0])))
            program = Ref(place=Place.ROOT, name="nvcc", suffix="/" + os.path.basename(inputs[0]))
            wrappers = [
                file for file in asked if os.path.realpath(file) != os.path.realpath(os.path.join(here, "nvcc"))
            ]
            files += [ToolFile(role=f"nvcc wrapper {index}", path=file) for index, file in enumerate(wrappers)]
        drivers = [which(command[0], path) for command in (*dryrun.commands, *link.commands)]
        known = {file.path for file in files}
        names = [os.path.abspath(driver) for driver in drivers if driver and os.path.normpath(driver) not in known]
        names = [name for name in dict.fromkeys(names) if os.path.basename(name) != "rm"]
        if not names:
            raise RequestError("compiler-not-found", f"nvcc names no host compiler ({found.path})", next_step=_NO_NVCC)
        compiler = closure.host_compiler(self.knowledge, tuple(names), environment, path)
        if command := _stub_command(link, path):
            self._stubs[host] = Probe(argv=command, environment=environment, files=(*inputs, command[0], command[-1]))
        label = f"nvcc -ccbin {host}" if host else "nvcc"
        version = nvcc.version(dryrun)
        tool = Tool(
            name=label,
            files=(*files, *compiler.files),
            facts=(("nvcc", version), ("host compiler", compiler.version)),
            roots=tuple(roots),
            search=tuple(dict.fromkeys((*nvcc.include_folders(dryrun.variables), *compiler.search))),
        )
        return Compiler(
            tool=tool,
            program=program,
            environment=environment,
            version=version,
            archs=nvcc.parse_codes(answers[2].stdout),
            library_flags=_library_flags(root, dryrun),
            libraries=compiler.libraries,
            clang=compiler.clang,
            source=f"{found.source}: {found.path}",
        )

    # ------------------------------------------------------------ HIP

    def _hipcc_candidates(self) -> Iterator[Candidate]:
        if self.settings.hip:
            yield Candidate(source="[toolchain] hip", path=os.path.join(self.settings.hip, "bin", "hipcc"))
            return
        for name in ("ROCM_PATH", "HIP_PATH"):
            if value := self.request.environment.get(name):
                yield Candidate(source=name, path=os.path.join(value, "bin", "hipcc"))
        yield Candidate(source="PATH", path=which("hipcc", self.path) or "hipcc")
        yield Candidate(source="default", path="/opt/rocm/bin/hipcc")

    def _describe_hipcc(
        self, called_in: Environment = (), seen: tuple[Probe, ...] = (), flags: tuple[str, ...] = ()
    ) -> Compiler:
        """
        Args: see `hip_compiling`; empty for targets of ours, which link, and name architectures.
        """
        found = self._first(self._hipcc_candidates(), "hipcc", _NO_HIPCC)
        environment = called_in or hipcc.for_amd(tool_environment(self.request.environment, Family.HIP))
        path = os.path.abspath(found.path)
        probes = seen or hipcc.probes(path, environment)
        answers = self.knowledge.ask(*probes)
        commands = [hipcc.clang_commands(answer.stderr + answer.stdout) for answer in answers]
        passes = [command for command in commands[0] if "-cc1" in command]
        if not passes:
            said = (answers[0].stderr or answers[0].stdout).strip().splitlines()
            raise RequestError(
                "compiler-not-found",
                f"{found.path} (from {found.source}) does not work: {said[-1] if said else 'it says nothing'}",
                file=found.path,
                next_step=_NO_HIPCC,
            )
        clang = passes[0][0]
        files = closure.Files()
        for command in itertools.chain.from_iterable(commands):
            if program := which(command[0], self.path):
                files.add(os.path.basename(program), program)
        for index, file in enumerate(probes[0].files):
            files.add("hipcc" if index == 0 else f"hipcc {os.path.basename(file)}", file)
        files.extend(closure.libraries(self.knowledge, files.paths(), environment))
        for file in (*hipcc.bitcode(passes), *hipcc.version_files(os.path.dirname(os.path.dirname(path)))):
            files.add(os.path.basename(file), file)
        cpus = Probe(
            argv=(clang, "--target=amdgcn", "--print-supported-cpus"),
            environment=environment,
            files=(clang,),
        )
        listed = () if called_in else self.knowledge.ask(cpus)
        root = os.path.dirname(os.path.dirname(path))
        heading = (answers[0].stderr + answers[0].stdout).splitlines()
        version = next((line.strip() for line in heading if "clang version" in line), "")
        search = dict.fromkeys(folder for command in passes for folder in hipcc.own_search(command, flags))
        return Compiler(
            tool=Tool(
                name="hipcc",
                files=files.all(),
                facts=(("clang", version),),
                roots=(("hip", root), ("project", self.request.project)),
                search=tuple(search),
            ),
            program=Ref(place=Place.ROOT, name="hip", suffix="/bin/" + os.path.basename(path)),
            environment=environment,
            version=version,
            archs=tuple(sorted({arch for cpu in listed for arch in _GFX.findall(cpu.stdout + cpu.stderr)})),
            clang=True,
            source=f"{found.source}: {found.path}",
        )


def _not_found(what: str, looked: Iterable[Candidate], next_step: str) -> RequestError:
    places = "; ".join(f"{candidate.source}: {candidate.path}" for candidate in looked)
    return RequestError("compiler-not-found", f"{what} was not found (looked at {places})", next_step=next_step)


def _toolkit_files(here: str, dryrun: nvcc.Dryrun, commands: tuple[tuple[str, ...], ...], path: str) -> list[ToolFile]:
    """nvcc's own parts: what its steps call from the toolkit, and what those read besides headers."""
    root = os.path.dirname(here)
    found: dict[str, str] = {}
    for name in ("nvcc", "nvcc.profile", "crt/link.stub", "crt/prelink.stub"):
        found[os.path.join(here, name)] = name
    cicc = os.path.normpath(os.path.join(dryrun.variables.get("CICC_PATH", root), "cicc"))
    found[cicc] = "cicc"
    for name in ("cudafe++", "ptxas", "fatbinary", "nvlink", "bin2c"):
        found.setdefault(os.path.join(here, name), name)
    for command in commands:
        program = os.path.normpath(which(command[0], path))
        if program.startswith(root + os.sep):
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


def _stub_command(link: nvcc.Dryrun, path: str) -> tuple[str, ...]:
    """The command that lists what nvcc's link stub includes, from the one that compiles it."""
    for command in link.commands:
        stub = next((argument for argument in command if argument.endswith("link.stub")), "")
        if stub and "-c" in command and "-o" in command:
            output = command.index("-o")
            kept = [item for index, item in enumerate(command[1:], 1) if index not in (output, output + 1)]
            # -MG: the files that nvlink and fatbinary write do not exist.
            options = [item for item in kept if item not in ("-c", stub)]
            return (which(command[0], path), "-M", "-MG", *options, stub)
    return ()


def _library_flags(root: str, dryrun: nvcc.Dryrun) -> tuple[Ref, ...]:
    """The wheels keep their libraries in lib, nvcc.profile names lib64."""
    named = [os.path.normpath(folder) for folder in re.findall(r'-L([^"]+)', dryrun.variables.get("LIBRARIES", ""))]
    if any(os.path.isdir(folder) for folder in named) or not os.path.isdir(os.path.join(root, "lib")):
        return ()
    return (Ref(place=Place.ROOT, name="cuda", prefix="-L", suffix="/lib"),)
