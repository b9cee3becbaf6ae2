"""A compiler's command line, as a foreign build calls it -> one compile of one source, or the reason why it is none.

Knows the spellings of gcc, clang, hipcc and nvcc; finds no tool, and reads nothing but response files. Every option has
to be known: one that is not could read or write a file that nobody told us of. What is refused here is run by the
caller as if we were not there, so in doubt it is refused.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from enum import Enum

from codegen.flags import inspect
from codegen.plan import Frozen

MOST_ARGUMENT_BYTES = 100_000
"""nvcc hands its steps to a shell in one string, which Linux bounds to 128 KiB; response files are expanded here."""


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


TOOLS = {
    "gcc": Family.GCC,
    "g++": Family.GCC,
    "cc": Family.GCC,
    "c++": Family.GCC,
    "clang": Family.GCC,
    "clang++": Family.GCC,
    "hipcc": Family.HIPCC,
    "nvcc": Family.NVCC,
}
"""The tools that have stand-ins."""


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
    """One source to one object."""

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


def parse(command: Sequence[str], folder: str, environment: Sequence[tuple[str, str]] = ()) -> Compile:
    """What a command compiles.

    Args:
        command: the tool's path, then its arguments.
        folder: absolute; where it was called.
        environment: variables of the caller; some hold flags.

    Raises:
        HandThrough: it is no compile that we take.
    """
    family = TOOLS.get(os.path.basename(command[0]))
    if family is None:
        raise HandThrough(Reason.TOOL, os.path.basename(command[0]))
    read: list[str] = []
    arguments = tuple(_expanded(command[1:], family, folder, read))
    if sum(len(argument) + 3 for argument in arguments) > MOST_ARGUMENT_BYTES:
        raise HandThrough(Reason.TOO_LONG)
    parser = _NvccParser() if family is Family.NVCC else _GccParser(family)
    parser.run(arguments)
    _check_environment(family, dict(environment))
    return parser.result(family, tuple(read))


def _expanded(arguments: Sequence[str], family: Family, folder: str, read: list[str]) -> Iterator[str]:
    """Arguments with those of response files in their place."""
    waiting = False
    for argument in arguments:
        name = ""
        if waiting:
            name, waiting = argument, False
        elif family is Family.NVCC and re.fullmatch(r"-{1,2}(options-file|optf)(=.*)?", argument):
            name = argument.partition("=")[2]
            waiting = not name
            if waiting:
                continue
        elif argument.startswith("@"):
            name = argument[1:]
        if not name:
            yield argument
            continue
        path = os.path.join(folder, name)
        try:
            if os.path.getsize(path) > MOST_ARGUMENT_BYTES:
                raise HandThrough(Reason.TOO_LONG, name)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            if "\\" in text:
                raise ValueError("each tool reads a backslash in its own way")
            words = shlex.split(text)
        except (OSError, ValueError) as error:
            raise HandThrough(Reason.RESPONSE_FILE, name) from error
        if any(word.startswith("@") or "options-file" in word or word == "-optf" for word in words):
            raise HandThrough(Reason.RESPONSE_FILE, f"{name} names another")
        read.append(path)
        yield from words


def _check_environment(family: Family, environment: dict[str, str]) -> None:
    refused = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "LD_PRELOAD", "GCC_COMPARE_DEBUG", "CCC_OVERRIDE_OPTIONS")
    for name in refused:
        if environment.get(name):
            raise HandThrough(Reason.ENVIRONMENT, name)
    if any(name.startswith("CC_PRINT_") for name in environment):
        raise HandThrough(Reason.ENVIRONMENT, "CC_PRINT_*")
    if family is Family.HIPCC and environment.get("HIP_PLATFORM", "amd") != "amd":
        raise HandThrough(Reason.ENVIRONMENT, "HIP_PLATFORM")
    names = {Family.NVCC: ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"), Family.HIPCC: ("HIPCC_COMPILE_FLAGS_APPEND",)}
    for name in names.get(family, ()):
        if not environment.get(name):
            continue
        try:
            flags = shlex.split(environment[name])
        except ValueError as error:
            raise HandThrough(Reason.ENVIRONMENT, name) from error
        parser = _NvccParser() if family is Family.NVCC else _GccParser(family)
        parser.run(flags)
        if not parser.only_flags:
            raise HandThrough(Reason.ENVIRONMENT, name)


# ---------------------------------------------------------------- what all have in common

_LANGUAGES = {
    **dict.fromkeys((".c",), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".c++", ".cp", ".C", ".CPP"), "c++"),
    ".cu": "cu",
    ".hip": "hip",
}
_TAKEN = {
    Family.GCC: frozenset({"c", "c++"}),
    Family.HIPCC: frozenset({"c", "c++", "cu", "hip"}),
    Family.NVCC: frozenset({"c", "c++", "cu"}),
}
_NATIVE = re.compile(r"-{1,2}(arch|gpu-architecture|offload-arch|amdgpu-target|gencode|generate-code)=?.*\bnative\b.*")


class _Parser:
    """Takes options one after the other; `result` says what they come to."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.sources: list[int] = []
        """Indices in `kept`."""
        self.compiles = False
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
        touched = self.sources or self.compiles or self.output or self.language or self.host
        return not (touched or self.dep_kind or self.dep_path or self.dep_targets or self.stop)

    def run(self, arguments: Sequence[str]) -> None:
        raise NotImplementedError

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
        if not self.compiles:
            raise HandThrough(Reason.LINK)
        if len(self.sources) > 1:
            raise HandThrough(Reason.SEVERAL_SOURCES)
        source = self.kept[self.sources[0]]
        stem, ending = os.path.splitext(os.path.basename(source))
        language = self.language or _LANGUAGES.get(ending, "")
        if language not in _TAKEN[family]:
            assembler = ending in (".s", ".S", ".sx") or language.startswith("assembler")
            raise HandThrough(Reason.ASSEMBLER if assembler else Reason.LANGUAGE, language or ending)
        flags = tuple(argument for index, argument in enumerate(self.kept) if index != self.sources[0])
        if native := next((flag for flag in flags if _NATIVE.fullmatch(flag) or flag == "native"), ""):
            raise HandThrough(Reason.MACHINE, native)
        # nvcc's -arch looks like an option of the assembler that writes a listing.
        if why := inspect(flag for flag in flags if not flag.startswith("-arch=")).uncacheable:
            raise HandThrough(Reason.MACHINE if "this machine" in why else Reason.UNSUPPORTED_OPTION, why)
        if family is Family.HIPCC and not any("-arch" in flag or "amdgpu-target" in flag for flag in flags):
            raise HandThrough(Reason.MACHINE, "no --offload-arch")
        output = self.output or f"{stem}.o"
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
        )

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


# ---------------------------------------------------------------- gcc, clang, hipcc

_GCC_VALUE = re.compile(
    r"(-isystem-after|-isystem|-iquote|-idirafter|-include|-imacros|-MF|-MT|-MQ|-D|-U|-I|-L|-l|-x|-o"
    r"|--param|-Xlinker|-Xassembler|-Xpreprocessor)(.*)",
    re.DOTALL,
)
_GCC_PLAIN = re.compile(
    r"-O([0-3sgz]|fast)?|-g[a-z0-9-]*(=[\w-]+)?|--?std=[\w+:]+|-W(?![alp],)[\w+-]*(=[\w+,.-]*)?"
    r"|-m[a-z0-9][\w.+-]*(=[\w.+,-]*)?|-f(file|debug|macro)-prefix-map=.+|-frandom-seed=.*"
    r"|-f[A-Za-z0-9][\w+-]*(=([\w+,:-]*|\d+(\.\d+)*))?"
    r"|-(pipe|pthread|ansi|w|pedantic|pedantic-errors|nostdinc|nostdinc\+\+|s|static|shared|rdynamic|no-pie|pie|p|pg"
    r"|nostdlib|nodefaultlibs|nostartfiles|static-libgcc|static-libstdc\+\+|symbolic|trigraphs|undef|Qunused-arguments"
    r"|pass-exit-codes)|-Wl,.*|-Wp,-[DU][^,]*|--param=[\w-]+=\d+"
    r"|-Wa,(--(no)?execstack|--fatal-warnings|--(no)?compress-debug-sections(=\w+)?|-mrelax-relocations=\w+|-m[\w=-]+)"
)
_GCC_UNSUPPORTED = re.compile(
    r"-f(syntax-only|preprocessed|directives-only|plugin.*|pch-.*|module.*|compare-debug.*|record-.*|deps-.*"
    r"|diagnostics-(format=.*-file|add-output.*|set-output.*)|.*list.*=.*|.*-files?=.*|crash-diagnostics.*"
    r"|thinlto-index.*|memory-profile.*|build-session.*|save-.*|dump-.*|working-directory|lto=.*|time-.*|proc-stat.*)"
    r"|-m(llvm|generate-.*)|-gsplit-dwarf"
)
_HIP_PLAIN = re.compile(r"--(offload-arch|amdgpu-target)=[\w:+,-]+|-(no-)?hip-.*|-nogpu(inc|lib)")


class _GccParser(_Parser):
    def __init__(self, family: Family) -> None:
        super().__init__()
        self._family = family

    def run(self, arguments: Sequence[str]) -> None:
        rest = iter(arguments)
        for argument in rest:
            if not argument.startswith("-") or argument == "-":
                self.source(argument)
            elif argument == "-c":
                self.compiles = True
                self.kept.append(argument)
            elif argument == "-E":
                raise HandThrough(Reason.PREPROCESS)
            elif argument in ("-M", "-MM"):
                raise HandThrough(Reason.DEPENDENCIES_ONLY)
            elif argument in ("-MD", "-MMD"):
                # The last of several would count; nobody writes two.
                self.dep_kind = self.dep_kind or argument
            elif argument == "-MP":
                self.dep_phony = True
            elif _GCC_UNSUPPORTED.fullmatch(argument):
                raise HandThrough(Reason.UNSUPPORTED_OPTION, argument)
            elif _GCC_PLAIN.fullmatch(argument) or (self._family is Family.HIPCC and _HIP_PLAIN.fullmatch(argument)):
                self.kept.append(argument)
            elif match := _GCC_VALUE.fullmatch(argument):
                value = match[2] or next(rest, "")
                if not value:
                    raise HandThrough(Reason.UNKNOWN_OPTION, argument)
                self._valued(match[1], value, [argument] if match[2] else [argument, value])
            else:
                raise HandThrough(Reason.UNKNOWN_OPTION, argument)

    def _valued(self, option: str, value: str, spelled: list[str]) -> None:
        match option:
            case "-o":
                self.named_output(value)
            case "-MF":
                self.dep_path = value
            case "-MT":
                self.dep_targets.append(value)
            case "-MQ":
                self.dep_targets.append(quoted(value))
            case "-x":
                # After the source it would be for the next one.
                if self.sources or self.language:
                    raise HandThrough(Reason.UNSUPPORTED_OPTION, "-x after a source")
                self.language = value
                self.kept += spelled
            case "-Xassembler" | "-Xpreprocessor":
                raise HandThrough(Reason.UNSUPPORTED_OPTION, option)
            case "--param" if not re.fullmatch(r"[\w-]+=\d+", value):
                raise HandThrough(Reason.UNKNOWN_OPTION, f"--param {value}")
            case _:
                self.kept += spelled


# ---------------------------------------------------------------- nvcc

_NVCC_VALUES = """
-o --output-file  -include --pre-include  -l --library  -D --define-macro  -U --undefine-macro  -I --include-path
-isystem --system-include  -L --library-path  -ccbin --compiler-bindir  -cudart --cudart  -cudadevrt --cudadevrt
-O --optimize  -Ofc --Ofast-compile  -dopt --dopt  -ftemplate-backtrace-limit --ftemplate-backtrace-limit
-ftemplate-depth --ftemplate-depth  -x --x  -std --std  -m --machine  -Xcompiler --compiler-options
-Xlinker --linker-options  -Xarchive --archive-options  -Xptxas --ptxas-options  -Xnvlink --nvlink-options
-Xcudafe --cudafe-options  -static-global-template-stub --static-global-template-stub
-device-entity-has-hidden-visibility --device-entity-has-hidden-visibility  -t --threads
-split-compile --split-compile  -MF --dependency-output  -MT --dependency-target-name  -arch --gpu-architecture
-code --gpu-code  -gencode --generate-code  -rdc --relocatable-device-code  -e --entries  -maxrregcount --maxrregcount
-ftz --ftz  -prec-div --prec-div  -prec-sqrt --prec-sqrt  -fmad --fmad  -default-stream --default-stream
-Werror --Werror  -diag-error --diag-error  -diag-suppress --diag-suppress  -diag-warn --diag-warn
-brief-diag --brief-diagnostics  -jtd --jump-table-density  -device-stack-protector --device-stack-protector
-compress-mode --compress-mode  -frandom-seed --frandom-seed
"""
_NVCC_FLAGS = """
-g --debug  -G --device-debug  -lineinfo --generate-line-info  -dlto --dlink-time-opt  -lto --lto  -noeh --no-exceptions
-shared --shared  -nohdinitlist --no-host-device-initializer-list  -nohdmoveforward --no-host-device-move-forward
-expt-relaxed-constexpr --expt-relaxed-constexpr  -extended-lambda --extended-lambda
-expt-extended-lambda --expt-extended-lambda  -m64 --m64  -c --compile  -dc --device-c  -dw --device-w
-MD --generate-dependencies-with-compile  -MMD --generate-nonsystem-dependencies-with-compile
-MP --generate-dependency-targets  -forward-unknown-to-host-compiler --forward-unknown-to-host-compiler
-forward-unknown-to-host-linker --forward-unknown-to-host-linker  -no-align-double --no-align-double
-nodlink --no-device-link  -use_fast_math --use_fast_math  -extra-device-vectorization --extra-device-vectorization
-w --disable-warnings  -keep-device-functions --keep-device-functions  -src-in-ptx --source-in-ptx -restrict --restrict
-Wreorder --Wreorder  -Wdefault-stream-launch --Wdefault-stream-launch  -Wmissing-launch-bounds --Wmissing-launch-bounds
-Wext-lambda-captures-this --Wext-lambda-captures-this  -Wno-deprecated-declarations --Wno-deprecated-declarations
-Wno-deprecated-gpu-targets --Wno-deprecated-gpu-targets  -res-usage --resource-usage
-ewp --extensible-whole-program  -no-compress --no-compress  -err-no --display-error-number
-no-err-no --no-display-error-number  -reloc-ptx --relocatable-ptx
-allow-unsupported-compiler --allow-unsupported-compiler  -pg --profile
"""
_NVCC_REFUSED = """
-E --preprocess  -M --generate-dependencies  -MM --generate-nonsystem-dependencies  -cuda --cuda  -cubin --cubin
-fatbin --fatbin  -ptx --ptx  -optix-ir --optix-ir  -ltoir --ltoir  -dlink --device-link  -link --link  -lib --lib
-run --run  -dryrun --dryrun  -keep --keep  -save-temps --save-temps  -v --verbose  -h --help  -V --version
-objtemp --objdir-as-tempdir  -odir --output-directory  -time --time  -clean --clean-targets
-code-ls --list-gpu-code  -arch-ls --list-gpu-arch
"""


def _canonical(table: str) -> dict[str, str]:
    """Both spellings of each option -> the short one."""
    words = table.split()
    pairs = dict(zip(words[1::2], words[::2], strict=True))
    return {**{short: short for short in pairs.values()}, **pairs}


_VALUES, _FLAGS, _REFUSED = (_canonical(table) for table in (_NVCC_VALUES, _NVCC_FLAGS, _NVCC_REFUSED))
_ATTACHED = re.compile(r"-([IDULlO])(.+)", re.DOTALL)
_PTXAS = re.compile(
    r"-v|--verbose|-w|--disable-warnings|-Werror|--warning-as-error|-O[0-4]|--opt-level=?[0-4]?|\d+"
    r"|-{1,2}(dlcm|dscm|def-load-cache|def-store-cache|maxrregcount|fmad|register-usage-level|split-compile)(=\w+)?"
    r"|--?warn-(on-)?[\w-]+|-{1,2}allow-expensive-optimizations(=\w+)?|--suppress-[\w-]+|--generate-line-info|-lineinfo"
)
_CUDAFE = re.compile(
    r"--(diag_(suppress|warning|error|remark|default)(=[\w,]+)?|display_error_number|[\w-]*warnings)|\w+"
)


class _NvccParser(_Parser):
    def __init__(self) -> None:
        super().__init__()
        self._forwards = False
        self._unknown: list[str] = []

    def run(self, arguments: Sequence[str]) -> None:
        rest = iter(arguments)
        for argument in rest:
            name, equals, value = argument.partition("=")
            if not argument.startswith("-") or argument == "-":
                self.source(argument)
            elif argument in _REFUSED:
                self._refused(_REFUSED[argument])
            elif argument in _FLAGS:
                self._flag(_FLAGS[argument], argument)
            elif name in _VALUES:
                given = value if equals else next(rest, "")
                if not given:
                    raise HandThrough(Reason.UNKNOWN_OPTION, argument)
                self._valued(_VALUES[name], given, [argument] if equals else [argument, given])
            elif match := _ATTACHED.fullmatch(argument):
                self._valued(f"-{match[1]}", match[2], [argument])
            else:
                self._unknown.append(argument)
                self.kept.append(argument)
        if self._unknown:
            if not self._forwards:
                raise HandThrough(Reason.UNKNOWN_OPTION, self._unknown[0])
            self._for_host(self._unknown)

    def _refused(self, option: str) -> None:
        if option == "-E":
            raise HandThrough(Reason.PREPROCESS)
        if option in ("-M", "-MM"):
            raise HandThrough(Reason.DEPENDENCIES_ONLY)
        reason = Reason.LINK if option in ("-dlink", "-link", "-lib") else Reason.UNSUPPORTED_OPTION
        self.stop = self.stop or (reason, option)

    def _flag(self, option: str, spelled: str) -> None:
        match option:
            case "-MD" | "-MMD":
                self.dep_kind = self.dep_kind or option
                return
            case "-MP":
                self.dep_phony = True
                return
            case "-c" | "-dc" | "-dw":
                self.compiles = True
                self.relocatable = self.relocatable or option == "-dc"
            case "-forward-unknown-to-host-compiler":
                self._forwards = True
        self.kept.append(spelled)

    def _valued(self, option: str, value: str, spelled: list[str]) -> None:
        match option:
            case "-o":
                self.named_output(value)
                return
            case "-MF":
                self.dep_path = value
                return
            case "-MT":
                self.dep_targets.append(value)
                return
            case "-x":
                self.language = value
            case "-ccbin":
                self.host = value
                return
            case "-rdc":
                self.relocatable = self.relocatable or value == "true"
            case "-arch" | "-code" | "-gencode" if "native" in value:
                raise HandThrough(Reason.MACHINE, f"{option} {value}")
            case "-Xcompiler":
                self._for_host([word.strip("\"'") for word in re.split(r"[,\s]+", value) if word.strip("\"'")])
            case "-Xptxas" | "-Xcudafe":
                known = _PTXAS if option == "-Xptxas" else _CUDAFE
                for word in re.split(r"[,\s]+", value.strip("\"'")):
                    if word and not known.fullmatch(word):
                        raise HandThrough(Reason.UNKNOWN_OPTION, f"{option} {word}")
        self.kept += spelled

    def _for_host(self, words: list[str]) -> None:
        """What reaches the host compiler must be flags that we know, and only flags."""
        inner = _GccParser(Family.GCC)
        try:
            inner.run(words)
        except HandThrough as why:
            raise HandThrough(why.reason, f"-Xcompiler {words[0]}") from why
        if not inner.only_flags:
            raise HandThrough(Reason.UNKNOWN_OPTION, f"-Xcompiler {' '.join(words)}")
