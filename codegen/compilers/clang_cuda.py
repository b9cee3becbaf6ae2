"""clang as a CUDA compiler: the options for that, and the parts of the toolkit that it uses.

clang compiles for the host and for each architecture in one command, and calls ptxas and fatbinary of a CUDA toolkit.
Such a compile runs whole. Knows how clang tells its parts (-###); `called_tool` describes the compiler itself.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

from codegen.compilers import closure, hipcc
from codegen.compilers.closure import Environment
from codegen.compilers.command_parser import PassThrough, Reason
from codegen.plan import Frozen, Knowledge, Probe, ToolFile
from codegen.search import without_variables

PLAIN = re.compile(
    r"--(no-)?(cuda-gpu-arch|offload-arch)=(sm_\w+|all)|--cuda-path=.+|-nocuda(inc|lib)|-nogpu(inc|lib)"
    r"|--no-cuda-version-check|--(no-)?cuda-include-ptx=\w+|--cuda-noopt-device-debug|--cuda-compile-host-device"
    r"|-fcuda-flush-denormals-to-zero"
)
"""clang's options for CUDA that read no file but the toolkit's."""
_TOOLKIT = re.compile(r"--cuda-path=(/.*)")
_PATH_IN_KERNELS = re.compile(r"-fgpu-rdc|-fuse-cuid=.*|-cuid=.*|-g\w*|-f(profile|coverage|sanitize).*")
"""Options with which the device code, which is compressed, holds a path or a digest of one."""
_DESCRIBES = ("include/cuda.h", "version.json", "version.txt")
"""The files from which clang reads a toolkit's version."""


class Toolkit(Frozen, frozen=True):
    """The parts of a toolkit that a compile uses."""

    files: tuple[ToolFile, ...]
    search: tuple[str, ...]
    """Folders that clang searches for headers by itself, in any of its passes."""


def check(flags: Sequence[str]) -> str:
    """Return the toolkit that a command names. Raises PassThrough if the compile cannot be cached."""
    named = [match[1] for flag in flags if (match := _TOOLKIT.fullmatch(flag))]
    if not named:
        raise PassThrough(Reason.LANGUAGE, "CUDA by clang without --cuda-path=/...: it searches for a toolkit")
    for flag in flags:
        if _PATH_IN_KERNELS.fullmatch(flag) and flag != "-g0":
            raise PassThrough(Reason.UNSUPPORTED_OPTION, f"{flag} for CUDA by clang")
    return named[-1]


def describe(knowledge: Knowledge, clang: str, flags: tuple[str, ...], environment: Environment) -> Toolkit:
    """Return the parts of the toolkit that a compile with these flags uses.

    Raises:
        ProbesNeeded: run these probes, add their answers to `knowledge`, and call again.
        PassThrough: clang cannot compile with them.
    """
    root = check(flags)
    known = tuple(os.path.join(root, name) for name in (*_DESCRIBES, "bin/ptxas", "bin/fatbinary"))
    argv = (clang, "-###", *flags, "-c", "/dev/null", "-o", "buildd-probe.o")
    argv = argv if "-x" in flags else (clang, "-###", "-x", "cuda", *argv[2:])
    (answer,) = knowledge.ask(Probe(argv=argv, environment=environment, files=(clang, *known)))
    commands = hipcc.clang_commands(answer.stderr)
    passes = [command for command in commands if "-cc1" in command]
    if answer.status or not any("-fcuda-is-device" in command for command in passes):
        raise PassThrough(Reason.LANGUAGE, f"{clang} does not compile CUDA with these options")
    programs = [command[0] for command in commands if command not in passes]
    libraries = [
        value
        for command in passes
        for option, value in itertools.pairwise(command)
        if option == "-mlink-builtin-bitcode"
    ]
    files = [
        ToolFile(role=f"cuda {os.path.basename(path)}", path=path)
        for path in dict.fromkeys((*programs, *libraries, *known))
    ]
    search = [folder for command in passes for folder in hipcc.own_search(command, flags)]
    return Toolkit(
        files=(*files, *closure.libraries(knowledge, programs, environment)),
        search=without_variables(dict.fromkeys(search), environment),
    )
