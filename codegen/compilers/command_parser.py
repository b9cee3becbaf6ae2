"""The result of parsing a compiler's command line (`Compile`), and the parser that all compilers share.

Knows only the options that every compiler has: sources, an output, a depfile.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum

from codegen.compilers.depfile import Depfile, quoted
from codegen.flags import inspect
from codegen.plan import Frozen


class Reason(Enum):
    """Why a command is passed through to the tool. Statistics count commands under these names."""

    ASSEMBLER = "assembler"
    DEPENDENCIES_ONLY = "dependencies-only"
    ENVIRONMENT = "environment"
    FILE_NAME = "file-name"
    """nvcc gives the names of files to a shell, which reads a character of this name in its own way."""
    HOST_WRAPPER = "host-wrapper"
    """nvcc's host compiler is a script or program that calls the compiler: it may read any variable and any file."""
    INSIDE_NVCC = "inside-nvcc"
    """A host compiler that nvcc calls: nvcc itself was called by its path, past the shim."""
    LANGUAGE = "language"
    LINK = "link"
    MACHINE = "depends-on-this-machine"
    NO_FILE = "no-regular-file"
    """The command names a descriptor, a FIFO, a device or a path below /proc: see `reach`."""
    NO_SOURCE = "no-source"
    NOT_CARRIED_OUT = "not-carried-out"
    """The daemon accepted the command and failed: a full disk, a tool that was killed."""
    OUTPUT = "output"
    OTHER_CACHE = "other-cache"
    PREPROCESS = "preprocess"
    QUERY = "query"
    """The command only asks the compiler something: --version, -print-search-dirs, -v without a source."""
    RESPONSE_FILE = "response-file"
    SEVERAL_SOURCES = "several-sources"
    STANDARD_INPUT = "standard-input"
    TOO_LONG = "too-long"
    TOOL = "tool"
    TRIAL = "trial"
    """A configure step tries the compiler out: CMake's compiler checks, for example."""
    UNKNOWN_OPTION = "unknown-option"
    UNSUPPORTED_OPTION = "unsupported-option"
    WRAPPER = "wrapper"
    """The tool calls the compiler: the shim runs it and has that call under a shim of its own (shims/wrapper.c)."""


class PassThrough(Exception):
    """The caller must run the tool itself.

    Args:
        reason: the name in the statistics.
        detail: the option or file, for people.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail


class Family(Enum):
    """The family of compilers whose options a tool understands."""

    GCC = "gcc"
    HIPCC = "hipcc"
    NVCC = "nvcc"


class Makes(Enum):
    """What a command makes from its source."""

    OBJECT = "object"
    """An object, assembler text, or device code alone: a cubin, PTX, a fatbin."""
    HEADER = "precompiled header"
    LINKED = "linked"
    """A library or program, compiled and linked by one command, or linked from objects."""
    DEVICE_LINKED = "device-linked"
    """An object that holds the linked device code of other objects (nvcc's -dlink)."""
    RULES = "rules"
    """The files that the source includes, as rules for make (-M, -MM), in a file or on standard output."""


LINKS = (Makes.LINKED, Makes.DEVICE_LINKED)


class Compile(Frozen, frozen=True):
    """A command that compiles one source into one file, or links objects."""

    family: Family
    arguments: tuple[str, ...]
    """The tool's arguments without those for the output and the depfile."""
    source: str
    """The first object of a command that only links."""
    output: str
    """Empty if the command writes to standard output."""
    flags: tuple[str, ...]
    """`arguments` without the source or the objects."""
    depfile: Depfile | None = None
    host: str = ""
    """nvcc's -ccbin."""
    relocatable: bool = False
    """nvcc's -rdc: the linker identifies the object by an id inside it."""
    read: tuple[str, ...] = ()
    """Response files."""
    makes: Makes = Makes.OBJECT
    native: tuple[str, ...] = ()
    """Flags that depend on this machine: on its processor, or on its GPUs (nvcc's -arch=native)."""
    objects: tuple[str, ...] = ()
    """The objects that a command links, if it compiles nothing."""
    cuda: bool = False
    """The source is CUDA, and only clang can compile it."""
    parts: tuple[str, ...] = ()
    """Flags that say where gcc finds its programs, headers and libraries: the tool is described with them."""


_LANGUAGES = {
    **dict.fromkeys((".c",), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".cp", ".C", ".CPP"), "c++"),
    ".cu": "cu",
    ".hip": "hip",
    # gcc and clang precompile these.
    ".h": "c-header",
    **dict.fromkeys((".hh", ".hpp", ".hxx", ".h++", ".hp", ".H", ".HPP", ".tcc"), "c++-header"),
}
_HEADERS = frozenset({"c-header", "c++-header"})
_TAKEN = {
    Family.GCC: frozenset({"c", "c++", "cu", "cuda"}) | _HEADERS,
    Family.HIPCC: frozenset({"c", "c++", "cu", "hip"}),
    Family.NVCC: frozenset({"c", "c++", "cu"}),
}
PTXAS = re.compile(
    r"-v|--verbose|-w|--disable-warnings|-Werror|--warning-as-error|-O[0-4]|--opt-level=?[0-4]?|\d+"
    r"|-{1,2}(dlcm|dscm|def-load-cache|def-store-cache|maxrregcount|fmad|register-usage-level|split-compile)(=\w+)?"
    r"|--?warn-(on-)?[\w-]+|-{1,2}allow-expensive-optimizations(=\w+)?|--suppress-[\w-]+|--generate-line-info|-lineinfo"
)
"""Options that may be passed on to ptxas."""
HIP_DEVICE_ALONE = frozenset({"--genco", "--cuda-device-only", "--offload-device-only"})
"""Options with which clang makes device code without a host object."""
_OBJECTS = (".o", ".obj")
PARTS = "/tmp/buildd-parts-"
"""Beginning of the folders for the objects of one command that was divided: see `several_sources`."""
_STDOUT = "-"
"""Names standard output to gcc's preprocessor and compiler proper, and a file to its assembler."""
_LISTS = ("-M", "-MM", "--generate-dependencies", "--generate-nonsystem-dependencies")
_PROCESSOR = re.compile(r"-m(arch|tune|cpu)=native")
_DEBUG = re.compile(r"-g([0-3]|dwarf(-[2-5])?|gdb[0-3]?)?")
_NATIVE = re.compile(r"--(offload-arch|amdgpu-target)=.*\bnative\b.*")


def language_of(path: str) -> str:
    """Return the language of a source by its name; empty if no compiler here takes it."""
    return _LANGUAGES.get(os.path.splitext(path)[1], "")


def may_precompile(words: Iterable[object], sources: Iterable[str]) -> bool:
    """Tell whether a command of gcc may precompile a header."""
    named = any(isinstance(word, str) and word.removeprefix("-x") in _HEADERS for word in words)
    return named or any(language_of(source) in _HEADERS for source in sources)


class Parser(ABC):
    """Reads options one by one; `result` returns the compile they describe."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.sources: list[int] = []
        """Indices in `kept`."""
        self.compiles = False
        self.assembles = False
        """The command stops at assembler text (-S)."""
        self.lists = False
        """The command only lists the files that the source includes (-M, -MM)."""
        self.lists_system = False
        """gcc's list has the headers of system folders too (-M, not -MM); nvcc's options are in `kept`."""
        self.ending = "o"
        """File extension of the output, if the command names none."""
        self.output = self.language = self.host = ""
        self.relocatable = False
        self.device_links = False
        self.native: list[str] = []
        self.appended: tuple[str, ...] = ()  # in variables of the tool
        """See `Compile`; flags that name the processor are found by `result`."""
        self.named_parts: list[str] = []
        """Options that say where the tool's parts are, by which the tool is described."""
        self.parts: list[str] = []
        """See `Compile`."""
        self.dep_kind = ""
        """-MD or -MMD."""
        self.dep_twice = False
        self.dep_path = ""
        self.dep_targets: list[str] = []
        self.dep_phony = False
        self.stop: tuple[Reason, str] | None = None
        """A reason to pass the command through that is used only if no other option gives a better one."""

    @property
    def only_flags(self) -> bool:
        touched = self.sources or self.compiles or self.assembles or self.output or self.language or self.host
        return not (
            touched
            or self.parts
            or self.native
            or self.lists
            or self.dep_kind
            or self.dep_path
            or self.dep_targets
            or self.stop
        )

    @property
    def may_link(self) -> bool:
        """Tell whether the linker's dependency file lists every file that a compile-and-link command reads."""
        return False

    @abstractmethod
    def run(self, arguments: Sequence[str]) -> None:
        """Read a command line into the fields. Raises PassThrough."""

    def source(self, path: str) -> None:
        if path == "-":
            raise PassThrough(Reason.STANDARD_INPUT)
        if not path:
            raise PassThrough(Reason.NO_SOURCE, "an empty argument")
        self.sources.append(len(self.kept))
        self.kept.append(path)

    def named_output(self, path: str) -> None:
        if self.output or not path:
            raise PassThrough(Reason.OUTPUT, "two outputs" if path else "no output name")
        if path == _STDOUT:
            raise PassThrough(Reason.OUTPUT, path)
        self.output = path

    def result(self, family: Family, read: tuple[str, ...]) -> Compile:
        if self.stop is not None:
            raise PassThrough(*self.stop)
        if not self.sources:
            raise PassThrough(Reason.NO_SOURCE)
        source = self.kept[self.sources[0]]
        stem, ending = os.path.splitext(os.path.basename(source))
        language = self.language or _LANGUAGES.get(ending, "")
        makes = self._makes(language if family is Family.GCC else self.language)
        objects = self._objects(family, makes)
        if len(self.sources) > 1 and not objects:
            raise PassThrough(Reason.LINK if makes in LINKS else Reason.SEVERAL_SOURCES)
        if not objects and (makes is Makes.DEVICE_LINKED or (makes is Makes.LINKED and self.relocatable)):
            raise PassThrough(Reason.LINK)
        if not objects and language not in _TAKEN[family]:
            if makes is Makes.LINKED:
                raise PassThrough(Reason.LINK)
            assembler = ending in (".s", ".S", ".sx") or language.startswith("assembler")
            raise PassThrough(Reason.ASSEMBLER if assembler else Reason.LANGUAGE, language or ending)
        cuda = family is Family.GCC and language in ("cu", "cuda")
        if cuda and (makes is not Makes.OBJECT or self.assembles):
            raise PassThrough(Reason.LANGUAGE, language)
        flags = tuple(argument for index, argument in enumerate(self.kept) if index not in self.sources)
        given = (*flags, *self.appended)
        if family is Family.HIPCC and (unnamed := next(filter(_NATIVE.fullmatch, given), "")):
            raise PassThrough(Reason.MACHINE, unnamed)
        native = (*self.native, *(flag for flag in flags if family is Family.GCC and _PROCESSOR.fullmatch(flag)))
        # nvcc's -arch looks like the assembler's option for a listing.
        known = {*native, *self.named_parts, *self.parts, *(_LISTS if makes is Makes.RULES else ())}
        known.update(flag for flag in flags if cuda and flag.startswith("--cuda-path="))
        if why := inspect(f for f in flags if f not in known and not f.startswith("-arch=")).uncacheable:
            raise PassThrough(Reason.MACHINE if "this machine" in why else Reason.UNSUPPORTED_OPTION, why)
        if family is Family.HIPCC and not any("-arch" in flag or "amdgpu-target" in flag for flag in given):
            raise PassThrough(Reason.MACHINE, "no --offload-arch")
        arguments, depfile = tuple(self.kept), None
        if makes is Makes.RULES and family is Family.GCC:
            if self.dep_kind or self.assembles:
                raise PassThrough(Reason.DEPENDENCIES_ONLY, f"beside {self.dep_kind or '-S'}")
            depfile = self._list_of_includes(stem)
            output = ""
            # Nothing else of a list depends on these, and they would bind it to its folder.
            arguments, flags = (tuple(w for w in words if not _DEBUG.fullmatch(w)) for words in (arguments, flags))
        elif makes is Makes.RULES:
            if self.dep_kind or self.dep_path or self.dep_phony:
                raise PassThrough(Reason.DEPENDENCIES_ONLY, "with another option for dependencies")
            output = self.output
            flags = (*(word for target in self.dep_targets for word in ("-MT", target)), *flags)
        elif makes is Makes.HEADER:
            output = self.output or f"{source}.gch"
        else:
            usual = {Makes.LINKED: "a.out", Makes.DEVICE_LINKED: "a_dlink.o"}.get(makes, f"{stem}.{self.ending}")
            output = self.output or usual
        if self.parts and makes in LINKS:
            raise PassThrough(Reason.LINK, self.parts[0])  # the linker would be described without them
        # gcc's name of the depfile and its target depend on the version where the command names no file or no output.
        named = family is Family.GCC and self.dep_path and self.output
        if makes in LINKS and self.dep_kind and not named:
            raise PassThrough(Reason.UNSUPPORTED_OPTION, f"{self.dep_kind} in a command that links")
        return Compile(
            family=family,
            arguments=arguments,
            source=source,
            output=output,
            flags=flags,
            depfile=depfile if makes is Makes.RULES else self._depfile(family, output),
            host=self.host,
            relocatable=self.relocatable,
            read=read,
            makes=makes,
            native=native,
            objects=objects,
            cuda=cuda,
            parts=tuple(self.parts),
        )

    def _objects(self, family: Family, makes: Makes) -> tuple[str, ...]:
        """Return the objects of a link that compiles nothing: of nvcc's, whose device link takes a second, and of one
        that stands for a divided command, which a user runs to have a program. Another link of gcc's takes less time
        than its inputs take to be read for a key."""
        named = tuple(self.kept[index] for index in self.sources)
        taken = family is Family.NVCC or (family is Family.GCC and any(path.startswith(PARTS) for path in named))
        is_link = makes in LINKS and taken and not self.language
        return named if is_link and all(path.endswith(_OBJECTS) for path in named) else ()

    def _makes(self, language: str) -> Makes:
        if self.lists:
            return Makes.RULES
        if language in _HEADERS:
            if self.assembles:
                raise PassThrough(Reason.LANGUAGE, f"-S with {language}")
            return Makes.HEADER
        if self.device_links and self.compiles:
            raise PassThrough(Reason.LINK)
        if self.compiles or self.assembles:
            return Makes.OBJECT
        if not self.may_link:
            raise PassThrough(Reason.LINK)
        return Makes.DEVICE_LINKED if self.device_links else Makes.LINKED

    def _list_of_includes(self, stem: str) -> Depfile:
        """Return what gcc's -M or -MM writes; an empty path is standard output."""
        path = self.dep_path or self.output
        if path == _STDOUT or (self.dep_path and self.output):
            raise PassThrough(Reason.OUTPUT, f"-MF {path}")
        return Depfile(
            path=path,
            targets=tuple(self.dep_targets) or (quoted(f"{stem}.o"),),
            phony=self.dep_phony,
            system=self.lists_system,
            is_output=bool(self.output),
        )

    def asks_rules(self, kind: str) -> None:
        """Read -MD or -MMD. In a command with both, -MMD counts, in either order."""
        self.dep_twice = self.dep_twice or (bool(self.dep_kind) and self.dep_kind != kind)
        self.dep_kind = "-MMD" if self.dep_kind == "-MMD" else kind

    def _depfile(self, family: Family, output: str) -> Depfile | None:
        if not self.dep_kind:
            if self.dep_path or self.dep_targets:
                raise PassThrough(Reason.UNSUPPORTED_OPTION, "-MF or -MT without -MD")
            return None
        if self.dep_path == _STDOUT:
            raise PassThrough(Reason.OUTPUT, f"-MF {_STDOUT}")
        folder, name = os.path.split(output)
        stem = os.path.join(folder, name.rpartition(".")[0] if "." in name else name)  # compilers see an ending in .x
        # Without -o, all compilers name an object, also if they write assembler text or device code alone.
        target = output if self.output else f"{stem}.o"
        return Depfile(
            path=self.dep_path or f"{stem}.d",
            targets=tuple(self.dep_targets) or (target if family is Family.NVCC else quoted(target),),
            phony=self.dep_phony,
            system=self.dep_kind == "-MD",
            twice=self.dep_twice,
        )
