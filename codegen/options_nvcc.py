"""The options of nvcc, as far as a cached compile may have them: one table, with both spellings of each.

What is handed on to the host compiler is looked at by its own rules (`options_gcc`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from codegen.options_gcc import GccParser
from codegen.parsing import Family, HandThrough, Parser, Reason

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


_LINKS_DIFFERENTLY = frozenset(
    {"-Xlinker", "-Xnvlink", "-Xarchive", "-shared", "-dlto", "-lto", "-ewp", "-dc", "-dw", "-pg", "-nodlink", "-dopt"}
)
"""What makes a program otherwise than by compiling, linking with libraries, and nothing else."""
_FOR_COMPILES = re.compile(
    r"-f(PIC|pic|PIE|pie|(no-)?strict-aliasing|(no-)?exceptions|(no-)?rtti|visibility(-inlines-hidden)?(=\w+)?)"
    r"|-fpermissive|-W[a-z][\w=+-]*|-O[0-3s]?|-D[A-Za-z_]\w*(=[\w.]*)?|-std=[\w+]+|-w|-m64"
)
"""Flags of the host compiler that say nothing to it when it links."""


class NvccParser(Parser):
    def __init__(self) -> None:
        super().__init__()
        self._forwards = False
        self._link_alike = True
        self._unknown: list[str] = []

    @property
    def may_link(self) -> bool:
        return self._link_alike and not self.relocatable and not self._unknown and not self.dep_kind

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
        self._link_alike = self._link_alike and option not in _LINKS_DIFFERENTLY
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
        self._link_alike = self._link_alike and option not in _LINKS_DIFFERENTLY
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
        self._link_alike = self._link_alike and all(_FOR_COMPILES.fullmatch(word) for word in words)
        inner = GccParser(Family.GCC)
        try:
            inner.run(words)
        except HandThrough as why:
            raise HandThrough(why.reason, f"-Xcompiler {words[0]}") from why
        if not inner.only_flags:
            raise HandThrough(Reason.UNKNOWN_OPTION, f"-Xcompiler {' '.join(words)}")
