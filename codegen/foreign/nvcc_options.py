"""The options of nvcc that a cached compile may have: a table with both spellings of each option.

Options for the host compiler follow its own rules (`gcc_options`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from codegen.compilers import linking
from codegen.compilers.command_parser import PTXAS, Family, Parser, PassThrough, Reason
from codegen.flags import split
from codegen.foreign.gcc_options import GccParser

_NVCC_VALUES = """
-o --output-file  -include --pre-include  -l --library  -D --define-macro  -U --undefine-macro  -I --include-path
-isystem --system-include  -L --library-path  -ccbin --compiler-bindir  -cudart --cudart  -cudadevrt --cudadevrt
-O --optimize  -Ofc --Ofast-compile  -dopt --dopt  -ftemplate-backtrace-limit --ftemplate-backtrace-limit
-ftemplate-depth --ftemplate-depth  -x --x  -std --std  -m --machine  -Xcompiler --compiler-options
-Xlinker --linker-options  -Xarchive --archive-options  -Xptxas --ptxas-options  -Xnvlink --nvlink-options
-Xcudafe --cudafe-options  -Xfatbin --fatbin-options  -static-global-template-stub --static-global-template-stub
-device-entity-has-hidden-visibility --device-entity-has-hidden-visibility  -t --threads
-split-compile --split-compile  -MF --dependency-output  -MT --dependency-target-name  -arch --gpu-architecture
-code --gpu-code  -gencode --generate-code  -rdc --relocatable-device-code  -e --entries  -maxrregcount --maxrregcount
-ftz --ftz  -prec-div --prec-div  -prec-sqrt --prec-sqrt  -fmad --fmad  -default-stream --default-stream
-Werror --Werror  -diag-error --diag-error  -diag-suppress --diag-suppress  -diag-warn --diag-warn
-brief-diag --brief-diagnostics  -jtd --jump-table-density  -device-stack-protector --device-stack-protector
-compress-mode --compress-mode  -frandom-seed --frandom-seed  -opt-info --optimization-info
-fmax-errors --fmax-errors
"""
_NVCC_FLAGS = """
-g --debug  -G --device-debug  -lineinfo --generate-line-info  -dlto --dlink-time-opt  -lto --lto  -noeh --no-exceptions
-shared --shared  -nohdinitlist --no-host-device-initializer-list  -nohdmoveforward --no-host-device-move-forward
-expt-relaxed-constexpr --expt-relaxed-constexpr  -extended-lambda --extended-lambda
-expt-extended-lambda --expt-extended-lambda  -m64 --m64  -c --compile  -dc --device-c  -dw --device-w
-MD --generate-dependencies-with-compile  -MMD --generate-nonsystem-dependencies-with-compile
-MP --generate-dependency-targets  -forward-unknown-to-host-compiler --forward-unknown-to-host-compiler
-forward-unknown-to-host-linker --forward-unknown-to-host-linker
-forward-unknown-opts --forward-unknown-opts  --no-align-double --no-align-double
-nodlink --no-device-link  -use_fast_math --use_fast_math  -extra-device-vectorization --extra-device-vectorization
-w --disable-warnings  -keep-device-functions --keep-device-functions  -src-in-ptx --source-in-ptx -restrict --restrict
-Wreorder --Wreorder  -Wconversion --Wconversion
-Wdefault-stream-launch --Wdefault-stream-launch  -Wmissing-launch-bounds --Wmissing-launch-bounds
-Wext-lambda-captures-this --Wext-lambda-captures-this  -Wno-deprecated-declarations --Wno-deprecated-declarations
-Wno-deprecated-gpu-targets --Wno-deprecated-gpu-targets  -res-usage --resource-usage
-ewp --extensible-whole-program  -no-compress --no-compress  -err-no --display-error-number
-no-err-no --no-display-error-number  -reloc-ptx --relocatable-ptx
-allow-unsupported-compiler --allow-unsupported-compiler  -pg --profile
-cubin --cubin  -fatbin --fatbin  -ptx --ptx  -ltoir --ltoir  -optix-ir --optix-ir  -dlink --device-link
-M --generate-dependencies  -MM --generate-nonsystem-dependencies
"""
_NVCC_REFUSED = """
-E --preprocess  -cuda --cuda
-link --link  -lib --lib  -r --relocatable-link  -r --host-relocatable-link
-run --run  -dryrun --dryrun  -keep --keep  -save-temps --save-temps  -v --verbose  -h --help  -V --version
-objtemp --objdir-as-tempdir  -clean --clean-targets  -code-ls --list-gpu-code  -arch-ls --list-gpu-arch
-gen-opt-lto --gen-opt-lto  -noprof --dont-use-profile  -use-local-env --use-local-env
-force-cl-env-setup --force-cl-env-setup  -fdevice-syntax-only --fdevice-syntax-only  -qpp-config --qpp-config
-astoolspatch --compile-as-tools-patch  -aug-hls --augment-host-linker-script  -jobserver --jobserver
-concat --concat  -prune --prune  -safety-compat --safety-compatibility  -utf-8 --utf-8  -v2 --verbose2
-skip-ptx-semantics-check --skip-ptx-semantics-check  -enable-tile --enable-tile  -simt-only --simt-only
-tile-only --tile-only  -tilebc --tilebc  -tilecubin --tilecubin  -tilefatbin --tilefatbin
"""
_NVCC_REFUSED_VALUES = """
-odir --output-directory  -keep-dir --keep-dir  -time --time  -arbin --archiver-binary  -ldir --libdevice-directory
-target-dir --target-directory  -split-compile-extended --split-compile-extended
-fdevice-time-trace --fdevice-time-trace  -run-args --run-args  -idp --input-drive-prefix
-ddp --dependency-drive-prefix  -dp --drive-prefix  -hls --host-linker-script  -sanitize --sanitize
-fdevice-sanitize --fdevice-sanitize  -stdlib --stdlib  -tile-preview --tile-preview
-Xnvprune --nvprune-options  -Xtileiras --tileiras-options
"""


def _canonical(table: str) -> dict[str, str]:
    """Map both spellings of each option to the short one."""
    words = table.split()
    pairs = dict(zip(words[1::2], words[::2], strict=True))
    return {**{short: short for short in pairs.values()}, **pairs}


_VALUES, _FLAGS, _REFUSED, _REFUSED_VALUES = (
    _canonical(table) for table in (_NVCC_VALUES, _NVCC_FLAGS, _NVCC_REFUSED, _NVCC_REFUSED_VALUES)
)
TAKE_VALUES = frozenset({*_VALUES, *_REFUSED_VALUES})
TAKE_NONE = frozenset({*_FLAGS, *_REFUSED})
"""All spellings of nvcc's options, with a value and without one."""
_ATTACHED = re.compile(r"-([IDULlO]|t(?=\d+\Z))(.+)", re.DOTALL)
_CUDAFE = re.compile(
    r"--(diag_(suppress|warning|error|remark|default)(=[\w,]+)?|display_error_number|[\w-]*warnings)|\w+"
)
_FATBIN = re.compile(r"-{1,2}compress(-all|-mode(=\w+)?|=(true|false))?|default|size|speed|balance|none|true|false")
_PASSED = {"-Xptxas": PTXAS, "-Xcudafe": _CUDAFE, "-Xfatbin": _FATBIN}
"""Options that may be passed on to nvcc's own programs."""

_LINKS_DIFFERENTLY = frozenset(
    {"-Xnvlink", "-Xarchive", "-dlto", "-lto", "-ewp", "-dc", "-dw", "-pg", "-nodlink", "-dopt"}
)
"""Options that do more than compile and link with libraries."""
_READ_BY_SHELLS = re.compile(r'["$`\\\n]')
"""What a path cannot hold for nvcc's shell to read it as it is."""
_GIVEN_TO_SHELLS = frozenset({"-D", "-U", "-Xcompiler", "-e", "-frandom-seed"})
"""Options whose values nvcc's shell reads as they are. nvcc puts a backslash before a dollar sign of the others."""
REPLACED_BY_SHELLS = re.compile(r"\$\w*|`|(?:\A|[\s,])~")
"""What a shell replaces: by a variable that is in no key, by what a command prints, or by the caller's home."""
_SPLIT_BY_FATBINARY = re.compile(r",(?=[^/]*\Z)")
"""What a source's own name cannot hold, because nvcc names temporary files after it."""
_FOR_COMPILES = re.compile(
    r"-f(PIC|pic|PIE|pie|(no-)?strict-aliasing|(no-)?exceptions|(no-)?rtti|visibility(-inlines-hidden)?(=\w+)?)"
    r"|-fpermissive|-fopenmp|-W[a-z][\w=+-]*|-O[0-3s]?|-D[A-Za-z_]\w*(=[\w.]*)?|-std=[\w+]+|-w|-m64"
)
"""Flags of the host compiler that have no effect on linking, or one that `linking.openmp` knows."""


class NvccParser(Parser):
    def __init__(self) -> None:
        super().__init__()
        self._forwards = False
        self._link_alike = True
        self._unknown: list[str] = []
        self._for_linker: list[str] = []
        self._named = 0
        """Number of options that name architectures."""

    @property
    def may_link(self) -> bool:
        try:
            linking.check([f"-Wl,{','.join(self._for_linker)}"] if self._for_linker else [])
        except PassThrough:
            return False
        return self._link_alike and not self._unknown and not self.dep_kind

    def run(self, arguments: Sequence[str]) -> None:
        rest = iter(arguments)
        for argument in rest:
            name, equals, value = argument.partition("=")
            if not argument.startswith("-") or argument == "-":
                self.source(argument)
            elif argument in _REFUSED:
                self._refused(_REFUSED[argument])
            elif name in _REFUSED_VALUES:
                self.stop = self.stop or (Reason.UNSUPPORTED_OPTION, _REFUSED_VALUES[name])
                if not equals:
                    next(rest, "")
            elif argument in _FLAGS:
                self._flag(_FLAGS[argument], argument)
            elif name in _VALUES:
                given = value if equals else next(rest, "")
                if not given:
                    raise PassThrough(Reason.UNKNOWN_OPTION, argument)
                self._valued(_VALUES[name], given, [argument] if equals else [argument, given])
            elif match := _ATTACHED.fullmatch(argument):
                self._valued(f"-{match[1]}", match[2], [argument])
            else:
                self._unknown.append(argument)
                self.kept.append(argument)
        if self.native and self._named > 1:
            raise PassThrough(Reason.MACHINE, "-arch=native beside another architecture")
        if self._unknown:
            if not self._forwards:
                raise PassThrough(Reason.UNKNOWN_OPTION, self._unknown[0])
            self._for_host(self._unknown)
            for word in self._unknown:
                self._given_to_shell(word, word)

    def source(self, path: str) -> None:
        if match := _READ_BY_SHELLS.search(path) or _SPLIT_BY_FATBINARY.search(path):
            raise PassThrough(Reason.FILE_NAME, f"{match[0]!r} in {path}")
        super().source(path)

    def named_output(self, path: str) -> None:
        if match := _READ_BY_SHELLS.search(path):
            raise PassThrough(Reason.FILE_NAME, f"{match[0]!r} in {path}")
        super().named_output(path)

    def _refused(self, option: str) -> None:
        if option == "-E":
            raise PassThrough(Reason.PREPROCESS)
        reason = Reason.LINK if option in ("-dlink", "-link", "-lib", "-r") else Reason.UNSUPPORTED_OPTION
        self.stop = self.stop or (reason, option)

    def _flag(self, option: str, spelled: str) -> None:
        self._link_alike = self._link_alike and option not in _LINKS_DIFFERENTLY
        match option:
            case "-MD" | "-MMD":
                self.asks_rules(option)
                return
            case "-MP":
                self.dep_phony = True
                return
            case "-c" | "-dc" | "-dw":
                self.compiles = True
                self.relocatable = self.relocatable or option == "-dc"
            case "-M" | "-MM":
                self.lists = True
            case "-dlink":
                self.device_links = True
            case "-cubin" | "-fatbin" | "-ptx" | "-ltoir" | "-optix-ir":
                ending = option.replace("-", "")
                if self.ending not in ("o", ending):
                    raise PassThrough(Reason.UNSUPPORTED_OPTION, f"{option} beside an option for a .{self.ending}")
                self.compiles = True
                self.ending = ending
            case "-forward-unknown-to-host-compiler" | "-forward-unknown-opts":
                self._forwards = True
        self.kept.append(spelled)

    def _valued(self, option: str, value: str, spelled: list[str]) -> None:
        self._link_alike = self._link_alike and option not in _LINKS_DIFFERENTLY
        self._named += option in ("-arch", "-code", "-gencode")
        if option in _GIVEN_TO_SHELLS:
            self._given_to_shell(value, " ".join(spelled))
        match option:
            case "-o":
                self.named_output(value)
                return
            case "-MF":
                self._once(option, self.dep_path)
                self.dep_path = value
                return
            case "-MT":
                self._once(option, "".join(self.dep_targets))
                self.dep_targets.append(value)
                return
            case "-x":
                self.language = value
            case "-ccbin":
                self.host = value
                return
            case "-rdc":
                self.relocatable = self.relocatable or value == "true"
            case "-arch" if value == "native":
                self.native.append("-arch=native")
            case "-arch" | "-code" | "-gencode" if "native" in value:
                raise PassThrough(Reason.MACHINE, f"{option} {value}")
            case "-Xcompiler":
                self._for_host(split(value))
            case "-Xlinker":
                self._for_linker += split(value)
            case "-Xptxas" | "-Xcudafe" | "-Xfatbin":
                for word in split(value):
                    if not _PASSED[option].fullmatch(word):
                        raise PassThrough(Reason.UNKNOWN_OPTION, f"{option} {word}")
        self.kept += spelled

    def _given_to_shell(self, value: str, spelled: str) -> None:
        """Leave a command to nvcc if its shell would replace something in a value."""
        if match := REPLACED_BY_SHELLS.search(value):
            detail = f"{spelled}, where nvcc's shell replaces {match[0].lstrip(', ')}"
            self.stop = self.stop or (Reason.UNSUPPORTED_OPTION, detail)

    def _once(self, option: str, before: str) -> None:
        """Leave a command to nvcc that gives an option twice: nvcc warns, and takes the last value."""
        if before:
            self.stop = self.stop or (Reason.UNSUPPORTED_OPTION, f"{option} twice")

    def _for_host(self, words: list[str]) -> None:
        """Accept known flags for the host compiler, and nothing but flags."""
        self._link_alike = self._link_alike and all(_FOR_COMPILES.fullmatch(word) for word in words)
        inner = GccParser(Family.GCC)
        try:
            inner.run(words)
        except PassThrough as why:
            raise PassThrough(why.reason, f"-Xcompiler {why.detail or ' '.join(words)}") from why
        if not inner.only_flags:
            raise PassThrough(Reason.UNKNOWN_OPTION, f"-Xcompiler {' '.join(words)}")
