"""Finds nvcc, hipcc, CUTLASS and the host's tools for one request.

Search order: buildd.toml, the request's CUDACXX / CUDA_HOME / CUDA_PATH or ROCM_PATH / ROCM_HOME / HIP_PATH, its PATH,
then the PyPI wheels of the request's interpreter and of the running one. Knows no target and not the parts of a
compiler (`compiler`).
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from codegen.compilers import closure, interpreters, nvcc
from codegen.compilers.closure import Environment, which
from codegen.compilers.compiler import (
    NO_HIPCC,
    Compiler,
    SearchPlace,
    describe_archiver,
    describe_hipcc,
    describe_nvcc,
    no_nvcc,
    with_link_stub,
)
from codegen.compilers.pip_command import install_extra
from codegen.errors import RequestError
from codegen.plan import Knowledge, Probe
from codegen.project.project_file import ProjectSettings
from codegen.variables.environment import TOOL_PATH
from protocol.messages import Request


@dataclass(slots=True)
class Toolchains:
    """Finds each tool once for a request.

    Every method raises ProbesNeeded if a probe must run first, and RequestError if the tool does not exist.
    """

    request: Request
    settings: ProjectSettings
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
        """Return nvcc with its host compiler.

        Args:
            host: value of -ccbin; if empty, the project's host compiler, else nvcc's own choice.
        """
        host = host or self.settings.host_compiler
        if host not in self._cuda:
            found = self._first(self._nvcc_candidates(), "nvcc", no_nvcc)
            self._cuda[host], stub = self._described(found, host)
            if stub:
                self._stubs[host] = stub
            if wrapper := self._cuda[host].wrapper:
                self.notices.append(
                    f"nvcc's host compiler {wrapper} is a wrapper: files and variables that it reads are in no key"
                    " (name the compiler itself: host_compiler under [toolchain])"
                )
        return self._cuda[host]

    def cuda_at(self, path: str) -> Compiler:
        """Return the nvcc at a path, with the project's host compiler."""
        compiler, _ = self._described(SearchPlace(source="command", path=path), self.settings.host_compiler)
        return compiler

    def _described(self, found: SearchPlace, host: str) -> tuple[Compiler, Probe | None]:
        return describe_nvcc(
            found,
            self.request,
            self.knowledge,
            host=host,
            folders=self._host_folders(found.path, host),
            search_path=self.path,
        )

    def device_linker(self, host: str = "") -> Compiler:
        """Return nvcc for linking relocatable device code. Its tool includes the headers of its link stub."""
        compiler = self.cuda(host)
        stub = self._stubs.get(host or self.settings.host_compiler)
        if stub is None:
            return compiler
        return with_link_stub(compiler, stub, self.knowledge)

    def hip(self) -> Compiler:
        """Return hipcc for AMD."""
        if self._hip is None:
            self._hip = describe_hipcc(self._find_hipcc(), self.request, self.knowledge, search_path=self.path)
        return self._hip

    def hip_compiling(self, environment: Environment, asked: Probe, flags: tuple[str, ...]) -> Compiler:
        """Return hipcc for AMD as a foreign build calls it to compile. No other probe runs.

        Args:
            environment: the environment of the dry run, in which hipcc called clang.
            asked: that dry run.
            flags: the compile's flags, which are part of the dry run.
        """
        return describe_hipcc(
            self._find_hipcc(),
            self.request,
            self.knowledge,
            search_path=self.path,
            called_in=environment,
            seen=(asked,),
            flags=flags,
        )

    def cutlass(self) -> str:
        """Return the root of CUTLASS, the folder that holds include/cutlass."""
        candidates: list[SearchPlace] = []
        if self.settings.cutlass:
            candidates.append(SearchPlace(source="[toolchain] cutlass", path=self.settings.cutlass))
        else:
            if value := self.request.environment.get("CUTLASS_PATH"):
                candidates.append(SearchPlace(source="CUTLASS_PATH", path=value))
            for site in self.site_packages():
                path = os.path.join(site, "cutlass_library", "source")
                candidates.append(SearchPlace(source=f"PyPI wheel in {site}", path=path))
        for candidate in candidates:
            if os.path.isfile(os.path.join(candidate.path, "include", "cutlass", "cutlass.h")):
                return os.path.normpath(candidate.path)
        raise _not_found("CUTLASS", candidates, _no_cutlass())

    def program(self, name: str) -> str:
        """Return the absolute path of a host program such as ar, on the request's PATH."""
        found = which(name, self.path)
        if not found:
            raise RequestError(
                "compiler-not-found",
                f"{name} was not found on the PATH ({self.path})",
                next_step="install the compiler and binutils (Debian: apt install g++)",
            )
        return os.path.abspath(found)

    def archiver(self) -> Compiler:
        """`ar`."""
        return describe_archiver(self.program("ar"), self.request, self.knowledge)

    # ------------------------------------------------------------ Python

    def site_packages(self) -> tuple[str, ...]:
        """Return the folders of installed packages: of the request's interpreter, then of the running one."""
        if self._sites is None:
            asked: tuple[str, ...] = ()
            if theirs := self.request.interpreter:
                asked = interpreters.site_packages(theirs, self.knowledge, self.request.environment, self.path)
            found = dict.fromkeys(asked)
            found.update(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))))
            self._sites = tuple(found)
        return self._sites

    # ------------------------------------------------------------ CUDA

    def _host_folders(self, path: str, host: str) -> tuple[str, ...]:
        """Return the folders of the request's host compilers and their programs, in the order of its PATH, if the
        tools' own PATH has others: nvcc must find the user's.

        Args:
            path: nvcc.
            host: value of -ccbin; empty if nvcc chooses.
        """
        named = [name for name in (host, *nvcc.hosts_set(self.request.environment)) if name and "/" not in name]
        own = os.path.dirname(os.path.realpath(closure.handed_to(path) or path))
        programs = [name for name in closure.TOOLKIT if not os.path.exists(os.path.join(own, name))]
        return closure.callers_folders(self.path, ("gcc", "g++", *named), (*closure.BINUTILS, *programs), TOOL_PATH)

    def _nvcc_candidates(self) -> Iterator[SearchPlace]:
        if self.settings.cuda:
            yield SearchPlace(source="[toolchain] cuda", path=os.path.join(self.settings.cuda, "bin", "nvcc"))
            return
        environment = self.request.environment
        if named := environment.get("CUDACXX"):
            # CMake takes clang, too; buildd has no other compiler for CUDA than nvcc.
            if "clang" in os.path.basename(named):
                self.notices.append(f"CUDACXX={named} is not nvcc; buildd looks elsewhere")
            else:
                yield SearchPlace(source="CUDACXX", path=which(named, self.path) or named)
        for name in ("CUDA_HOME", "CUDA_PATH"):
            if value := environment.get(name):
                yield SearchPlace(source=name, path=os.path.join(value, "bin", "nvcc"))
        yield SearchPlace(source="PATH", path=which("nvcc", self.path) or "nvcc")
        for site in self.site_packages():
            nvidia = os.path.join(site, "nvidia")
            folders = os.listdir(nvidia) if os.path.isdir(nvidia) else []
            numbered = sorted((int(name[2:]), name) for name in folders if re.fullmatch(r"cu\d+", name))
            names = [name for _, name in reversed(numbered)] or ["cu13"]
            for name in names:
                yield SearchPlace(source=f"PyPI wheels in {site}", path=os.path.join(nvidia, name, "bin", "nvcc"))

    def _first(self, candidates: Iterable[SearchPlace], what: str, next_step: Callable[[], str]) -> SearchPlace:
        looked: list[SearchPlace] = []
        for candidate in candidates:
            if os.path.isabs(candidate.path) and os.path.isfile(candidate.path) and os.access(candidate.path, os.X_OK):
                for other in looked:
                    if other.source not in ("PATH",) and not other.source.startswith("PyPI"):
                        self.notices.append(
                            f"{other.source}: {other.path} does not exist; buildd uses {candidate.path} instead"
                        )
                return candidate
            looked.append(candidate)
        raise _not_found(what, looked, next_step())

    # ------------------------------------------------------------ HIP

    def _hipcc_candidates(self) -> Iterator[SearchPlace]:
        if self.settings.hip:
            yield SearchPlace(source="[toolchain] hip", path=os.path.join(self.settings.hip, "bin", "hipcc"))
            return
        for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH"):
            if value := self.request.environment.get(name):
                yield SearchPlace(source=name, path=os.path.join(value, "bin", "hipcc"))
        yield SearchPlace(source="PATH", path=which("hipcc", self.path) or "hipcc")
        yield SearchPlace(source="default", path="/opt/rocm/bin/hipcc")

    def _find_hipcc(self) -> SearchPlace:
        return self._first(self._hipcc_candidates(), "hipcc", lambda: NO_HIPCC)


def _no_cutlass() -> str:
    own = install_extra("cuda")
    return f'install it with `{own}`, or set CUTLASS_PATH, or cutlass = "..." under [toolchain] in buildd.toml'


def _not_found(what: str, looked: Iterable[SearchPlace], next_step: str) -> RequestError:
    places = "; ".join(f"{candidate.source}: {candidate.path}" for candidate in looked)
    return RequestError("compiler-not-found", f"{what} was not found (searched: {places})", next_step=next_step)
