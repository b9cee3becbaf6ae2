"""What a compiler's command line comes to, and the parser that all spellings have in common.

Knows no option by name but what every compiler has: sources, an output, a depfile.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum

from codegen.flags import inspect
from codegen.plan import Frozen


class Reason(Enum):
    """Why a command is handed through to the tool; counted under these names."""

    ASSEMBLER = "assembler"
    DEPENDENCIES_ONLY = "dependencies-only"
    ENVIRONMENT = "environment"
    LANGUAGE = "language"
    LINK = "link"
    MACHINE = "depends-on-this-machine"
    NO_SOURCE = "no-source"
    NOT_CARRIED_OUT = "not-carried-out"
    """The daemon took it and failed: a full disk, a tool that was killed."""
    OUTPUT = "output"
    OTHER_CACHE = "other-cache"
    PREPROCESS = "preprocess"
    RESPONSE_FILE = "response-file"
    SEVERAL_SOURCES = "several-sources"
    STANDARD_INPUT = "standard-input"
    TOO_LONG = "too-long"
    TOOL = "tool"
    UNKNOWN_OPTION = "unknown-option"
    UNSUPPORTED_OPTION = "unsupported-option"
    WRAPPER = "wrapper-script"


class HandThrough(Exception):
    """The caller has to run the tool itself.

    Args:
        reason: what it is counted under.
        detail: the option or file, for people.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


class Family(Enum):
    """Whose spellings a tool understands."""

    GCC = "gcc"
    HIPCC = "hipcc"
    NVCC = "nvcc"


class Makes(Enum):
    """What a command makes of its source."""

    OBJECT = "object"
    """Or assembler's text."""
    HEADER = "precompiled header"
    LINKED = "linked"
    """A library or program, compiled and linked in one step."""


class Depfile(Frozen, frozen=True):
    """The make rules that the command asks for beside its object."""

    path: str
    targets: tuple[str, ...]
    """As they stand in the file: -MT's unchanged, -MQ's quoted."""
    phony: bool = False
    """-MP: an empty rule for each header."""
    system: bool = True
    """Also headers of system folders (-MD, not -MMD)."""


class Compile(Frozen, frozen=True):
    """One source to one file."""

    family: Family
    arguments: tuple[str, ...]
    """What the tool is called with, without the output and what concerns the depfile."""
    source: str
    output: str
    flags: tuple[str, ...]
    """`arguments` without the source."""
    depfile: Depfile | None = None
    host: str = ""
    """nvcc's -ccbin."""
    relocatable: bool = False
    """nvcc's -rdc: the object is linked by an id in it."""
    read: tuple[str, ...] = ()
    """Response files."""
    makes: Makes = Makes.OBJECT
    native: tuple[str, ...] = ()
    """Those of the flags that mean this machine's processor."""


_LANGUAGES = {
    **dict.fromkeys((".c",), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".cp", ".C", ".CPP"), "c++"),
    ".cu": "cu",
    ".hip": "hip",
}
_HEADERS = frozenset({"c-header", "c++-header"})
_TAKEN = {
    Family.GCC: frozenset({"c", "c++"}) | _HEADERS,
    Family.HIPCC: frozenset({"c", "c++", "cu", "hip"}),
    Family.NVCC: frozenset({"c", "c++", "cu"}),
}
_PROCESSOR = re.compile(r"-m(arch|tune|cpu)=native")
_NATIVE = re.compile(r"-{1,2}(arch|gpu-architecture|offload-arch|amdgpu-target|gencode|generate-code)=?.*\bnative\b.*")


class Parser(ABC):
    """Takes options one after the other; `result` says what they come to."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.sources: list[int] = []
        """Indices in `kept`."""
        self.compiles = False
        self.assembles = False
        """To assembler's text, and no further."""
        self.output = ""
        self.language = ""
        self.host = ""
        self.relocatable = False
        self.dep_kind = ""
        self.dep_path = ""
        self.dep_targets: list[str] = []
        self.dep_phony = False
        self.stop: tuple[Reason, str] | None = None
        """A reason that holds whatever else is there, but which others may explain better."""

    @property
    def only_flags(self) -> bool:
        touched = self.sources or self.compiles or self.assembles or self.output or self.language or self.host
        return not (touched or self.dep_kind or self.dep_path or self.dep_targets or self.stop)

    @property
    def may_link(self) -> bool:
        """Whether a program that is made at once reads only what the linker says that it reads."""
        return False

    @abstractmethod
    def run(self, arguments: Sequence[str]) -> None:
        """Read a command line into the fields. Raises HandThrough."""

    def source(self, path: str) -> None:
        if path == "-":
            raise HandThrough(Reason.STANDARD_INPUT)
        if not path:
            raise HandThrough(Reason.NO_SOURCE, "an empty argument")
        self.sources.append(len(self.kept))
        self.kept.append(path)

    def named_output(self, path: str) -> None:
        if self.output or not path:
            raise HandThrough(Reason.OUTPUT, "two outputs" if path else "no name")
        self.output = path

    def result(self, family: Family, read: tuple[str, ...]) -> Compile:
        if self.stop is not None:
            raise HandThrough(*self.stop)
        if not self.sources:
            raise HandThrough(Reason.NO_SOURCE)
        makes = self._makes()
        if len(self.sources) > 1:
            raise HandThrough(Reason.LINK if makes is Makes.LINKED else Reason.SEVERAL_SOURCES)
        source = self.kept[self.sources[0]]
        stem, ending = os.path.splitext(os.path.basename(source))
        language = self.language or _LANGUAGES.get(ending, "")
        if language not in _TAKEN[family]:
            if makes is Makes.LINKED:
                raise HandThrough(Reason.LINK)
            assembler = ending in (".s", ".S", ".sx") or language.startswith("assembler")
            raise HandThrough(Reason.ASSEMBLER if assembler else Reason.LANGUAGE, language or ending)
        flags = tuple(argument for index, argument in enumerate(self.kept) if index != self.sources[0])
        if unnamed := next((flag for flag in flags if _NATIVE.fullmatch(flag) or flag == "native"), ""):
            raise HandThrough(Reason.MACHINE, unnamed)
        native = tuple(flag for flag in flags if family is Family.GCC and _PROCESSOR.fullmatch(flag))
        # nvcc's -arch looks like an option of the assembler that writes a listing.
        if why := inspect(f for f in flags if f not in native and not f.startswith("-arch=")).uncacheable:
            raise HandThrough(Reason.MACHINE if "this machine" in why else Reason.UNSUPPORTED_OPTION, why)
        if family is Family.HIPCC and not any("-arch" in flag or "amdgpu-target" in flag for flag in flags):
            raise HandThrough(Reason.MACHINE, "no --offload-arch")
        if makes is Makes.HEADER:
            output = self.output or f"{source}.gch"
        else:
            output = self.output or ("a.out" if makes is Makes.LINKED else f"{stem}.{'s' if self.assembles else 'o'}")
        if makes is Makes.LINKED and self.dep_kind:
            raise HandThrough(Reason.UNSUPPORTED_OPTION, f"{self.dep_kind} where it links")
        return Compile(
            family=family,
            arguments=tuple(self.kept),
            source=source,
            output=output,
            flags=flags,
            depfile=self._depfile(output),
            host=self.host,
            relocatable=self.relocatable,
            read=read,
            makes=makes,
            native=native,
        )

    def _makes(self) -> Makes:
        if self.language in _HEADERS:
            if self.assembles:
                raise HandThrough(Reason.LANGUAGE, f"-S with {self.language}")
            return Makes.HEADER
        if self.compiles or self.assembles:
            return Makes.OBJECT
        if not self.may_link:
            raise HandThrough(Reason.LINK)
        return Makes.LINKED

    def _depfile(self, output: str) -> Depfile | None:
        if not self.dep_kind:
            if self.dep_path or self.dep_targets:
                raise HandThrough(Reason.UNSUPPORTED_OPTION, "-MF or -MT without -MD")
            return None
        return Depfile(
            path=self.dep_path or f"{os.path.splitext(output)[0]}.d",
            targets=tuple(self.dep_targets) or (quoted(output),),
            phony=self.dep_phony,
            system=self.dep_kind == "-MD",
        )


_ODD = re.compile(r"[\s$#]")


def quoted(name: str) -> str:
    """A file's name as make reads it back (gcc's -MQ)."""
    if not _ODD.search(name):
        return name
    name = re.sub(r"(\\*)([ \t])", lambda match: match[1] * 2 + "\\" + match[2], name)
    return name.replace("$", "$$").replace("#", "\\#")
