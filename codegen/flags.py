"""Finds the side effects of compiler flags: paths in the result, undeclared files that are read or written.

Knows nvcc's and clang's spellings and no target. One table serves both: a flag of the other compiler is harmless here.
In doubt a flag makes its action uncacheable: a miss costs time, a wrong artifact costs correctness.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from codegen.errors import RequestError
from codegen.plan import Frozen

_PASSED = frozenset(
    {"-Xcompiler", "--compiler-options", "-Xlinker", "--linker-options", "-Xptxas", "--ptxas-options", "-Xcicc"}
    | {"-Xnvlink", "--nvlink-options", "-Xcudafe", "--cudafe-options", "-Xarchive", "--archive-options", "-Xclang"}
    | {"-Xfatbin", "--fatbin-options", "-mllvm"}
    | {"-Xarch_host", "-Xarch_device", "-Xoffload-linker", "-Xassembler", "-Xpreprocessor"}
)
"""Flags whose value is a list of flags for another program, joined by commas or spaces."""

_PATHS = re.compile(
    r"-G|--device-debug|-{1,2}device-debug|-lineinfo|--generate-line-info|-pg|--profile|--debug|-gdwarf.*"
    r"|-g(gdb|line-tables-only|mlt|split-dwarf|stabs|vms|column-info|z)?[1-3]?(=.*)?|-src-in-ptx|--source-in-ptx"
    r"|-{1,2}source-in-ptx|-fdebug-.*|-fsanitize.*|-finstrument-functions.*|-fdiagnostics-absolute-paths"
)
"""Flags that put absolute paths into the result."""

_QUOTED = re.compile("'([^'\n]+)'")
_UNKNOWN = re.compile("(?:Unknown option|unknown argument|unsupported option)")
_UNCACHEABLE: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"-{1,2}keep(-dir.*)?|-{1,2}save-temps.*", "leaves intermediate files behind"),
        (r"-{1,2}time([=,].*)?|-ftime-.*|--fdevice-time-trace.*|-fdevice-time-trace.*", "reports times"),
        (
            r"-M[DPMGFTQJV]*([=,].*)?|-Wp,-M.*|--generate-(nonsystem-)?dependencies.*|--dependency-.*",
            "writes a depfile",
        ),
        (r"-fprofile-(use|instr-use|sample-use).*|-fauto-profile.*|-fbranch-prob.*", "reads profile data"),
        (r"-fprofile-.*|--?coverage|-ftest-coverage|-fcs-profile.*", "writes profile data beside the object"),
        (
            r"-fdump-.*|-dump.*|-fcallgraph-info.*|-fstack-usage|-fopt-info.*|-fsave-optimization-record.*",
            "writes a report",
        ),
        (r"-m(arch|tune|cpu)=native", "depends on this machine's processor"),
        (
            r"-?-?specs=.*|-B(?!(symbolic.*|static|dynamic|group)$).*|-wrapper|-fuse-ld=.*|--ld-path=.*|-no-integrated-cpp|-arbin.*|--archiver-binary.*"
            r"|-load|--config.*|-fplugin=[^/]*|-fpass-plugin=[^/]*|--gcc-(toolchain|install-dir).*|-resource-dir.*"
            r"|-ldir.*|--libdevice-directory.*|-target-dir.*|--target-directory.*|--(rocm|cuda|hip)-path.*"
            r"|--(hip|rocm)-device-lib.*|-mlink-builtin-bitcode.*|-fembed-offload-object.*",
            "changes which tools run",
        ),
        (r"--sysroot.*|-isysroot.*|-iprefix.*|-iwithprefix.*|-imultilib.*|-ivfsoverlay.*", "changes the search"),
        # Bazel replaces the clock's macros: -D__DATE__="redacted".
        (
            r"-D(?!__(TIME|DATE|TIMESTAMP)__=(?!.*__(TIME|DATE|TIMESTAMP)__)).*(__TIME__|__DATE__|__TIMESTAMP__).*",
            "depends on the clock",
        ),
        (r"-D.*(\.inc(bin|lude)|has_include).*", "reads files that no depfile lists"),
        (r"--?retain-symbols-file.*|--preinclude.*", "reads a file that no depfile lists"),
        (r"--?Map([=,].*)?|-aux-info.*|-a[a-z]*=.*|--?cref|--?print-map", "writes a report"),
        (r"-gsplit-dwarf", "writes a .dwo file beside the object"),
        (r"@.*|-{1,2}options-file.*|-optf.*", "takes options from a file"),
        (
            r"-{1,2}include-pch.*|-{1,2}(create|use)-pch.*|-{1,2}pch.*|-fmodule.*|-fprebuilt-.*|-fimplicit-module.*",
            "uses precompiled headers or modules",
        ),
        (r"-{1,2}gen-opt-lto.*|-{1,2}run|-{1,2}run-args.*|--clean-targets|-clean", "does more than compile"),
        (r"-frandomize-.*|--split-compile-extended.*", "is not reproducible"),
        (
            r"-{1,2}use-local-env|-{1,2}(input|target)-drive-prefix.*|-{1,2}dependency-drive-prefix.*",
            "is not supported",
        ),
    )
)

_OWN = re.compile(
    r"-o|--output-file(=.*)?|-o=.*|-odir.*|--output-directory.*|-c|-dc|-dw|-dlink|-E|-S|-shared|--shared|-lib|--lib"
    r"|-ptx|--ptx|-cubin|--cubin|-fatbin|--fatbin|-cuda|--cuda|--compile|--device-c|--device-w|--device-link|--link"
    r"|--preprocess|--genco|-dryrun|--dryrun|-###|-n|--version|-V|-h|--help|-x|-x=.*|-M|-MM|-hip|-emit-llvm|-fsyntax-only"
)
_ARCH = re.compile(
    r"-{1,2}(arch|code|gencode|gpu-architecture|gpu-code|generate-code|offload-arch|amdgpu-target)(=.*)?"
)
_SEVERAL = re.compile(r"--?[A-Za-z][\w-]*\s+-\S")
"""A flag without a value, and another one behind it: -DX="a -b" and -Xcompiler="-a -b" are one."""
_RELOCATABLE = re.compile(r"-{1,2}(rdc|relocatable-device-code)(=true)?|-fgpu-rdc")
_FILE = re.compile(r"(-fplugin=|-fpass-plugin=|-fsanitize-(?:ignore|black)list=|-T)(.+)")


_KEYS = {
    _ARCH: 'name the architectures in arch = ["..."]',
    _OWN: "use `output` and `output_name`: they decide which file is made, and where",
    _RELOCATABLE: "write rdc = true, which also links the device code (kinds cuda and hip)",
}
"""What to write in place of a flag that a key of the target decides."""


class FlagEffects(Frozen, frozen=True):
    """The effects of a set of flags on an action."""

    path_sensitive: bool = False
    uncacheable: str = ""
    inputs: tuple[str, ...] = ()
    """Files that a flag names but no depfile lists: compiler plugins, linker scripts."""


def split(value: str) -> list[str]:
    """Split a value that is flags for another program into words, wherever nvcc or its shell may split it.

    nvcc starts its programs through a shell, and the shell removes quotes: gcc reads "'-g'" as -g. Every option that
    the program can see is among the words. A quoted value with a space or a comma is split into pieces that no program
    sees.
    """
    return [word for word in re.split(r"[,\s]+", re.sub(r"[\"'\\]", "", value)) if word]


def words(flags: Iterable[str]) -> tuple[str, ...]:
    """Return every option in `flags`, including options passed on by -Xcompiler="-O2,-g", -Wl,... and similar flags."""
    return _words(tuple(flags))


@lru_cache(maxsize=256)  # the sources of a build have the same flags
def _words(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_each_word(flags))


def _each_word(flags: tuple[str, ...]) -> Iterator[str]:
    for flag in flags:
        name, equals, value = flag.partition("=")
        if equals and name in _PASSED:
            yield from split(value)
        elif flag.startswith(("-Wl,", "-Wa,", "-Wp,")):
            yield flag
            yield from flag.split(",")[1:]
        else:
            glued = next((head for head in ("-Xcompiler", "-Xlinker", "-Xptxas") if flag.startswith(head)), "")
            rest = flag[len(glued) :]
            if glued and rest:
                yield from split(rest)
            elif flag not in _PASSED:
                yield flag
                if (parts := split(flag)) != [flag]:
                    yield from parts


def inspect(flags: Iterable[str]) -> FlagEffects:
    """Return the effects of `flags`: all flags that reach the tool, including those from its environment variables."""
    return _inspect(tuple(flags))


@lru_cache(maxsize=256)
def _inspect(flags: tuple[str, ...]) -> FlagEffects:
    sensitive, reason = False, ""
    inputs: dict[str, None] = {}
    for word in _words(flags):
        if not reason and ("`" in word or "$(" in word):
            reason = f"{word} makes nvcc's shell run a command"
        if not word.startswith(("-", "@")):
            continue
        sensitive = sensitive or _PATHS.fullmatch(word) is not None
        if not reason:
            reason = next((f"{word} {why}" for pattern, why in _UNCACHEABLE if pattern.fullmatch(word)), "")
        if named := _FILE.fullmatch(word):
            inputs[named[2]] = None
    return FlagEffects(path_sensitive=sensitive, uncacheable=reason, inputs=tuple(inputs))


def refuse_defines(define: Iterable[str], name: str, where: str) -> None:
    """Raise RequestError for a macro that is written as a flag."""
    for macro in define:
        if macro.startswith("-"):
            said = f'target "{name}": "{macro}" in `define` is a flag, and a macro has no dash'
            plain = macro.removeprefix("-D").strip()
            step = f'write "{plain}"' if macro.startswith("-D") and plain else "move it to `flags`"
            raise RequestError("bad-flag", said, file=where, next_step=step)


def refuse_rejected(complaint: str, flags: Iterable[str], compiler: str, name: str, where: str) -> None:
    """Raise RequestError if a compiler complains about one of the target's flags.

    Args:
        complaint: what it said: "Unknown option '-foo'", "'9x': expected a number".
    """
    flags = tuple(flags)
    named = ((flag, word) for word in _QUOTED.findall(complaint) for flag in flags if _is_meant(flag, word))
    flag, word = next(named, ("", ""))
    if not flag:
        return
    step = "correct or remove it"
    what = f'rejects the flag "{flag}": {complaint}'
    if flag == word and _UNKNOWN.match(complaint):
        what = f'does not know the flag "{flag}"'
        step += "; a flag of the host compiler's is written -Xcompiler=FLAG" if compiler == "nvcc" else ""
    raise RequestError("bad-flag", f'target "{name}": {compiler} {what}', file=where, next_step=step)


def _is_meant(flag: str, word: str) -> bool:
    """Whether a compiler means a flag by a word: the flag itself, its name, or its value (`-O9x`: "9x")."""
    return flag == word or flag.partition("=")[0] == word or (flag.startswith("-") and flag.endswith(word))


def refuse_own(flags: Iterable[str], name: str, where: str) -> None:
    """Raise RequestError for a flag that the target's own keys decide.

    A value of -Xcompiler is accepted: it is the host compiler's flag.
    """
    previous = ""
    for flag in flags:
        if previous not in _PASSED and flag.startswith("-"):
            if _SEVERAL.match(flag):
                said = f'target "{name}": "{flag}" in `flags` is several flags in one text'
                written = ", ".join(f'"{word}"' for word in flag.split())
                raise RequestError("bad-flag", said, file=where, next_step=f"write them apart: {written}")
            for pattern, step in _KEYS.items():
                if pattern.fullmatch(flag):
                    said = f'target "{name}": "{flag}" does not belong in `flags`'
                    raise RequestError("bad-flag", said, file=where, next_step=step)
        previous = flag
