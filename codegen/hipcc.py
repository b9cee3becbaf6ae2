"""hipcc's language: what -### prints, and the files beside it that decide a result.

Knows no target and does not look for the compiler (`toolchain`).
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable
from functools import lru_cache

from codegen.closure import Environment, script_files
from codegen.plan import Probe


@lru_cache(maxsize=8)  # a plan is made anew after each question, and this takes milliseconds
def clang_commands(text: str) -> tuple[tuple[str, ...], ...]:
    """The steps that `clang -###` printed."""
    return tuple(
        tuple(shlex.split(line)) for line in text.splitlines() if line.startswith(' "') and line.rstrip().endswith('"')
    )


def probes(path: str, environment: Environment) -> tuple[Probe, Probe]:
    """What a compile calls, and what a link calls.

    Args:
        path: of hipcc.
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


def clang_search(command: tuple[str, ...]) -> tuple[str, ...]:
    """Include folders of one clang -cc1 command, in the order in which clang searches them."""
    order = {"-I": 0, "-isystem": 1, "-internal-isystem": 2, "-internal-externc-isystem": 2, "-idirafter": 3}
    order |= {"-iquote": 0, "-cxx-isystem": 1, "-c-isystem": 1}
    found: list[tuple[int, str]] = []
    for option, value in itertools.pairwise(command):
        if option in order:
            found.append((order[option], os.path.normpath(value)))
        elif option.startswith("-I") and option != "-I":
            found.append((0, os.path.normpath(option[2:])))  # CPATH
    return tuple(dict.fromkeys(folder for _, folder in sorted(found, key=lambda pair: pair[0])))


def for_amd(environment: Environment) -> Environment:
    """hipcc would look for an NVIDIA toolkit where no clang answers; here it is always AMD's."""
    return tuple(sorted({**dict(environment), "HIP_PLATFORM": "amd"}.items()))


def bitcode(passes: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """All device libraries beside those named: which ones are linked depends on architecture and flags."""
    folders: dict[str, None] = {}
    for command in passes:
        for option, value in itertools.pairwise(command):
            if option == "-mlink-builtin-bitcode":
                folders[os.path.dirname(value)] = None
    return tuple(
        os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder)) if name.endswith(".bc")
    )


def version_files(root: str) -> tuple[str, ...]:
    names = ("bin/.hipVersion", "lib/.hipInfo", "share/hip/version", "bin/hipvars.pm")
    return tuple(path for name in names if os.path.isfile(path := os.path.join(root, name)))
