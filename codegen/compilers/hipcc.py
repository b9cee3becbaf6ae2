"""Reads hipcc's -### output, and lists the other files that affect its results.

Knows no target; `toolchain` finds the compiler.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache

from codegen.compilers.closure import Environment, script_files
from codegen.errors import RequestError
from codegen.plan import Answer, Probe

_QUOTED = re.compile(r' "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_SAME_PARTS = re.compile(
    r"-c|-O\w?|-[DU].+|-I[^-].*|-w|-W\w[\w+=-]*|-std=[\w+]+|-f(PIC|pic|PIE|pie|fast-math)|-m64|--offload-arch=gfx[\w:+-]+"
)
"""Flags that change neither the programs hipcc calls nor the headers and libraries that these find by default."""
_ISA = re.compile(r"oclc_isa_version_([0-9a-f]+)(?:\.amdgcn)?\.bc")
"""A device library for one architecture."""
_FOLDERS = ("-I", "-isystem", "-iquote", "-idirafter")
COMPILE_FLAGS = "HIPCC_COMPILE_FLAGS_APPEND"
"""The variable whose flags hipcc adds to those of a compile."""
VERSIONS = ("bin/.hipVersion", "lib/.hipInfo", "share/hip/version", "bin/hipvars.pm")
"""The files that say which HIP a ROCm has, below its root."""


@lru_cache(maxsize=8)  # planning starts again after each probe
def clang_commands(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that `clang -###` printed."""
    return tuple(_words(line) for line in text.splitlines() if line.startswith(' "') and line.rstrip().endswith('"'))


def _words(line: str) -> tuple[str, ...]:
    # clang quotes every word, and a line has hundreds of words: shlex takes milliseconds for a line.
    quoted = _QUOTED.findall(line)
    if sum(map(len, quoted)) + 3 * len(quoted) != len(line.rstrip()):
        return tuple(shlex.split(line))
    return tuple(_ESCAPED.sub(r"\1", word) if "\\" in word else word for word in quoted)


def calls_clang(answer: Answer) -> bool:
    """Tell whether a dry run compiles for AMD GPUs."""
    return any("-fcuda-is-device" in command for command in clang_commands(answer.stderr + answer.stdout))


def tells_its_parts(flags: tuple[str, ...], environment: Environment) -> bool:
    """Tell whether a dry run with these flags describes hipcc as well as one without flags."""
    if "CPATH" in dict(environment):
        return False  # includes -I
    waiting = ""
    for flag in flags:
        if waiting:
            if flag.startswith("-") or (waiting == "-x" and flag != "hip"):
                return False
            waiting = ""
        elif flag in ("-x", "-D", "-U", "-I"):
            waiting = flag
        elif not _SAME_PARTS.fullmatch(flag):
            return False
    return not waiting


def likely_programs(files: Iterable[str]) -> tuple[str, ...]:
    """Return the programs that hipcc most likely calls, before any dry run.

    Args:
        files: files named by hipcc's script.
    """
    named = [os.path.realpath(file) for file in files]
    folders = [os.path.dirname(file) for file in named if os.path.basename(file).startswith("clang")]
    beside = [os.path.join(folder, name) for folder in folders for name in ("lld", "clang-offload-bundler")]
    return tuple(dict.fromkeys((*named, *(file for file in beside if os.path.isfile(file)))))


def probes(path: str, environment: Environment) -> tuple[Probe, Probe]:
    """Return the dry runs of a compile and of a link.

    Args:
        path: hipcc's path.
    """
    files = script_files(path, dict(environment))
    compiling, linking = (
        Probe(argv=(path, "-###", "--offload-arch=gfx90a", *arguments), environment=environment, files=files)
        for arguments in (
            ("-x", "hip", "-c", "/dev/null", "-o", "buildd-probe.o"),
            ("-shared", "/dev/null", "-o", "buildd-probe.so"),
        )
    )
    return compiling, linking


def _included(flags: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the options that name folders of headers, each with its folder."""
    for before, flag in itertools.pairwise(("", *flags)):
        if before in _FOLDERS:
            yield before, flag
        elif before not in ("-D", "-U"):
            yield from ((option, flag.removeprefix(option)) for option in _FOLDERS if flag.startswith(option))


def own_search(command: tuple[str, ...], flags: Iterable[str]) -> tuple[str, ...]:
    """Return `clang_search` without the folders that the compile's flags add."""
    added = Counter(_included(flags))
    kept = list(command)
    # Remove the last ones: hipcc puts folders from variables before a compile's own.
    for index, (option, value) in reversed([*enumerate(itertools.pairwise(command))]):
        if added[option, value] > 0:
            added[option, value] -= 1
            kept[index] = ""
    return clang_search(tuple(kept))


def clang_search(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the include folders of one clang -cc1 command, in the order in which clang searches them."""
    order = {"-I": 0, "-isystem": 1, "-internal-isystem": 2, "-internal-externc-isystem": 2, "-idirafter": 3}
    order |= {"-iquote": 0, "-cxx-isystem": 1, "-c-isystem": 1}
    found: list[tuple[int, str]] = []
    for option, value in itertools.pairwise(command):
        if option in order:
            found.append((order[option], os.path.normpath(value)))
        elif option.startswith("-I") and option != "-I":
            found.append((0, os.path.normpath(option[2:])))  # CPATH
    return tuple(dict.fromkeys(folder for _, folder in sorted(found, key=lambda pair: pair[0])))


def flags_in(environment: Environment, name: str) -> tuple[str, ...]:
    """Return the flags in a variable that hipcc reads. Raises RequestError if they cannot be read."""
    try:
        return tuple(shlex.split(dict(environment).get(name, "")))
    except ValueError as error:
        raise RequestError("bad-variable", f"{name} cannot be read: {error}", next_step="close its quotes") from error


def for_amd(environment: Environment) -> Environment:
    """Return the environment with AMD as the platform. Otherwise hipcc looks for an NVIDIA toolkit if it finds no
    clang."""
    return tuple(sorted({**dict(environment), "HIP_PLATFORM": "amd"}.items()))


def bitcode(passes: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all device libraries in the folders of those named: architecture and flags decide which are linked."""
    folders: dict[str, None] = {}
    for command in passes:
        for option, value in itertools.pairwise(command):
            if option == "-mlink-builtin-bitcode":
                folders[os.path.dirname(value)] = None
    return tuple(
        os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder)) if name.endswith(".bc")
    )


def with_library(archs: Iterable[str], libraries: Iterable[str]) -> tuple[str, ...]:
    """Return those of clang's architectures for which the device libraries have a file, or all where no file is for one
    architecture: clang refuses to compile for the others."""
    of_one = {match[1] for path in libraries if (match := _ISA.fullmatch(os.path.basename(path)))}
    return tuple(arch for arch in archs if not of_one or arch.removeprefix("gfx") in of_one)


def version_files(root: str) -> tuple[str, ...]:
    return tuple(path for name in VERSIONS if os.path.isfile(path := os.path.join(root, name)))
