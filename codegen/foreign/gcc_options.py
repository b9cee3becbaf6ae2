"""The options of gcc, clang and hipcc that a cached compile may have.

Each option is known or belongs to a family of options that read and write no file; any other option is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from codegen.compilers import clang_cuda, clang_hip
from codegen.compilers.command_parser import HIP_DEVICE_ALONE, PTXAS, Family, Parser, PassThrough, Reason
from codegen.compilers.depfile import quoted

_GCC_VALUE = re.compile(
    r"(-isystem-after|-isystem|-iquote|-idirafter|-include|-imacros|-MF|-MT|-MQ|-D|-U|-I|-L|-l|-x|-o"
    r"|--param|-Xlinker|-Xassembler|-Xpreprocessor)(.*)",
    re.DOTALL,
)
_GCC_PLAIN = re.compile(
    r"-O([0-3sgz]|fast)?|-g[a-z0-9-]*(=[\w-]+)?|--?std=[\w+:]+|-W(?![alp],)[\w+-]*(=[\w+,.-]*)?"
    r"|-m[a-z0-9][\w.+-]*(=[\w.+,-]*)?|-f(file|debug|macro)-prefix-map=.+|-frandom-seed=.*|-fpch-preprocess"
    r"|-f[A-Za-z0-9][\w+-]*(=([\w+,:-]*|\d+(\.\d+)*))?|-flto=(auto|jobserver|full|thin|\d+)"
    r"|-(pipe|pthread|ansi|w|pedantic|pedantic-errors|nostdinc|nostdinc\+\+|s|static|shared|rdynamic|no-pie|pie|p|pg"
    r"|nostdlib|nodefaultlibs|nostartfiles|static-libgcc|static-libstdc\+\+|symbolic|trigraphs|undef|Qunused-arguments"
    r"|pass-exit-codes)|-Wl,.*|-Wp(,-[DU][^,]*)+|--param=[\w-]+=\d+"
    r"|-Wa,(--(no)?execstack|--fatal-warnings|--(no)?compress-debug-sections(=\w+)?|-mrelax-relocations=\w+|-m[\w=-]+)"
)
_GCC_UNSUPPORTED = re.compile(
    r"-f(syntax-only|preprocessed|directives-only|plugin.*|pch-(?!preprocess$).*|module.*|compare-debug.*|record-.*|deps-.*"
    r"|diagnostics-(format=.*-file|add-output.*|set-output.*)|.*list.*=.*|.*-files?=.*|crash-diagnostics.*"
    r"|thin(lto-index|-link).*|vtv-.*|optimization-record.*|embed-bitcode.*|memory-profile.*|build-session.*|save-.*|dump-.*|working-directory|time-.*|proc-stat.*"
    r"|lto=(?!(auto|jobserver|full|thin|\d+)$).*)"
    r"|-m(llvm|generate-.*)|-gsplit-dwarf(=.*)?|-grecord-command-line|-v|--verbose"
)
_CPP_WRITES = re.compile(r"-Wp,(-MM?D),([^,]+)")
"""A depfile as Kbuild asks for it."""
_PARTS = re.compile(r"-B(.*)|--sysroot=(.*)|-no-canonical-prefixes", re.DOTALL)
"""Options by which gcc finds its own programs, headers and libraries: a conda's Python compiles extensions with
`-B .../compiler_compat`."""
_IN_SYSROOT = re.compile(r"(-I|-L|-isystem|-iquote|-idirafter|-isystem-after)?=")
"""A folder that gcc searches below --sysroot."""
_HIP_PLAIN = re.compile(
    r"--(offload-arch|amdgpu-target)=[\w:+,-]+|-(no-)?hip-.*|-nogpu(inc|lib)|--(no-)?offload-compress"
    r"|--(no-)?offload-new-driver|--offload-compression-level=\d+|-parallel-jobs=\d+|--gpu-max-threads-per-block=\d+"
)
_OFFLOADS = {Family.HIPCC: _HIP_PLAIN, Family.GCC: clang_cuda.PLAIN, Family.NVCC: re.compile(r"(?!)")}
_LLVM_NAME = re.compile(
    r"--?(?!.*(file|path|dir|output|remark|profile|plugin|record|yaml|graph))"
    r"(?!(dot|view|print|stats|time|debug|dump|write|save|track|verify|load|info|rng|report|pgo|cs|cfg|memprof)(-|\Z))"
    r"[a-z][a-z0-9-]*(=(true|false|-?\d+|[a-z]+))?"
)
"""Options for LLVM itself that name no file and write none."""


class GccParser(Parser):
    """
    Args:
        is_clang: the tool is clang, compiling for the host.
        finds_rocm: the tool is clang itself, called for HIP: its options may say where ROCm is.
    """

    def __init__(self, family: Family, *, finds_rocm: bool = False, is_clang: bool = False) -> None:
        super().__init__()
        self._is_clang = is_clang
        self._family = family
        self._finds_rocm = finds_rocm
        self._has_sysroot = False

    @property
    def may_link(self) -> bool:
        return self._family is Family.GCC

    def run(self, arguments: Sequence[str]) -> None:
        rest = iter(arguments)
        cpp_writes = ""
        for argument in rest:
            if not argument.startswith("-") or argument == "-":
                self.source(argument)
            elif argument == "-c" or (argument in HIP_DEVICE_ALONE and self._family is Family.HIPCC):
                self.compiles = True
                self.kept.append(argument)
            elif argument == "-S" and self._family is Family.GCC:
                self.assembles = True
                self.ending = "s"
                self.kept.append(argument)
            elif argument == "-E":
                raise PassThrough(Reason.PREPROCESS)
            elif argument in ("-M", "-MM"):
                if self._family is not Family.GCC or (self.lists and self.lists_system != (argument == "-M")):
                    raise PassThrough(Reason.DEPENDENCIES_ONLY)
                self.lists = True
                self.lists_system = argument == "-M"
            elif argument == "-mllvm" and self._family is Family.HIPCC:
                value = next(rest, "")
                if not _LLVM_NAME.fullmatch(value):
                    raise PassThrough(Reason.UNKNOWN_OPTION, f"-mllvm {value}")
                self.kept += [argument, value]
            elif argument.startswith("-mllvm=") and self._family is Family.HIPCC:
                if not _LLVM_NAME.fullmatch(argument.removeprefix("-mllvm=")):
                    raise PassThrough(Reason.UNKNOWN_OPTION, argument)
                self.kept.append(argument)
            elif self._family is Family.GCC and (match := _CPP_WRITES.fullmatch(argument)):
                if self.dep_kind or self.dep_path:
                    raise PassThrough(Reason.UNSUPPORTED_OPTION, f"{argument} beside another depfile")
                self.asks_rules(match[1])
                self.dep_path = cpp_writes = match[2]
            elif argument in ("-MD", "-MMD"):
                self.asks_rules(argument)
            elif argument == "-MP":
                self.dep_phony = True
            elif argument == "-Xcuda-ptxas" and self._family is Family.GCC:
                value = next(rest, "")
                if not PTXAS.fullmatch(value):
                    raise PassThrough(Reason.UNKNOWN_OPTION, f"{argument} {value}")
                self.kept += [argument, value]
            elif self._finds_rocm and clang_hip.PARTS.fullmatch(argument):
                self.kept.append(argument)
                self.named_parts.append(argument)
            elif self._family is Family.GCC and (match := _PARTS.fullmatch(argument)):
                self._says_where(argument, match[1] or match[2] or (next(rest, "") if argument == "-B" else ""))
            elif _GCC_UNSUPPORTED.fullmatch(argument):
                raise PassThrough(Reason.UNSUPPORTED_OPTION, argument)
            elif _GCC_PLAIN.fullmatch(argument) or _OFFLOADS[self._family].fullmatch(argument):
                self.kept.append(argument)
            elif match := _GCC_VALUE.fullmatch(argument):
                value = match[2] or next(rest, "")
                if not value:
                    raise PassThrough(Reason.UNKNOWN_OPTION, argument)
                self._valued(match[1], value, [argument] if match[2] else [argument, value])
            else:
                raise PassThrough(Reason.UNKNOWN_OPTION, argument)
        if cpp_writes:
            self._name_cpps_target(cpp_writes)
        if self._has_sysroot and (within := next(filter(_IN_SYSROOT.match, self.kept), "")):
            raise PassThrough(Reason.UNSUPPORTED_OPTION, f"{within} beside --sysroot")

        for alone in HIP_DEVICE_ALONE.intersection(self.kept):
            archs = {arch for word in self.kept if "-arch=" in word for arch in word.partition("=")[2].split(",")}
            if len(archs) > 1 or not self.output:  # each architecture's compile writes the depfile anew
                what = "several architectures" if self.output else "no output name"
                raise PassThrough(Reason.UNSUPPORTED_OPTION, f"{alone} with {what}")

    def _name_cpps_target(self, written: str) -> None:
        """Give the depfile of -Wp,-MD,FILE its target: gcc names it after the source, and clang after the object."""
        if self.dep_path != written or len(self.sources) != 1:
            raise PassThrough(Reason.UNSUPPORTED_OPTION, "-Wp,-MD beside another depfile or source")
        if not (self.dep_targets or self._is_clang):
            source = os.path.basename(self.kept[self.sources[0]])
            self.dep_targets.append(quoted(f"{os.path.splitext(source)[0]}.o"))

    def _says_where(self, argument: str, folder: str) -> None:
        """Accept an option that says where gcc's own parts are. The probes run in another folder."""
        if argument != "-no-canonical-prefixes" and not folder.startswith("/"):
            raise PassThrough(Reason.UNSUPPORTED_OPTION, f"{argument} {folder}".rstrip())
        if argument.startswith("--sysroot"):
            self._has_sysroot = True
        spelled = [argument, folder] if argument == "-B" else [argument]
        self.kept += spelled
        self.parts += spelled

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
                # After the source, -x would apply to the next source.
                if self.sources or self.language:
                    raise PassThrough(Reason.UNSUPPORTED_OPTION, "-x after a source")
                self.language = value
                self.kept += spelled
            case "-Xassembler" | "-Xpreprocessor":
                raise PassThrough(Reason.UNSUPPORTED_OPTION, option)
            case "--param" if not re.fullmatch(r"[\w-]+=\d+", value):
                raise PassThrough(Reason.UNKNOWN_OPTION, f"--param {value}")
            case _:
                self.kept += spelled
