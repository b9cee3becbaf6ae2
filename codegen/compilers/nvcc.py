"""Reads nvcc's --dryrun output and version, and turns architectures into -gencode flags.

Knows no target; `toolchain` finds the compiler. This module only reads texts and writes arguments.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from codegen.errors import RequestError, nearest

REPORT = "-Xptxas=-v"
"""Makes ptxas report each kernel's registers, memory and spills."""
_VERBOSE = re.compile(r"(?:.*[=,])?(?:-v|--verbose|-res-usage|--resource-usage)")
_HOST = re.compile(r"-{1,2}(?:ccbin|compiler-bindir)(?:=(.*))?", re.DOTALL)
FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_ARCH = re.compile(r"(?:sm_|compute_)?(\d{2,3})([af]?)")


@dataclass(frozen=True, slots=True)
class Dryrun:
    """The output of `nvcc --dryrun`: its variables, and the command lines of the steps."""

    variables: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]


@functools.lru_cache(maxsize=8)  # planning takes several rounds, and each reads all earlier answers again
def parse_dryrun(text: str) -> Dryrun:
    """Args: text: standard error of `nvcc --dryrun`; other lines, printed by wrappers, are ignored."""
    variables: dict[str, str] = {}
    commands: list[tuple[str, ...]] = []
    for line in text.splitlines():
        if not line.startswith("#$ "):
            continue
        rest = line[3:]
        assignment = re.match(r"(\w+)=(.*)", rest)
        if assignment:
            variables[assignment[1]] = assignment[2].strip() if assignment[1] != "_SPACE_" else " "
            continue
        try:
            command = shlex.split(re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), rest))
        except ValueError:
            continue
        if command:
            commands.append(tuple(command))
    return Dryrun(MappingProxyType(variables), tuple(commands))


def calls_host(command: Collection[str]) -> bool:
    """Tell whether a command of a dry run calls the host compiler: to preprocess, to compile or to link."""
    return "-E" in command or "-Wl,--start-group" in command or ("-c" in command and "-x" in command)


def without_host(words: Iterable[str]) -> tuple[list[str], str]:
    """Return flags without -ccbin, and its last value; empty if there is none."""
    flags, host, rest = [], "", iter(words)
    for word in rest:
        if match := _HOST.fullmatch(word):
            host = match[1] if match[1] is not None else next(rest, "")
        else:
            flags.append(word)
    return flags, host


def hosts_set(environment: Mapping[str, str]) -> list[str]:
    """Return the host compilers that variables name: for nvcc, each is a path, or a name to be found on PATH."""
    found = [environment.get("NVCC_CCBIN", "")]
    for value in filter(None, map(environment.get, FLAG_VARIABLES)):  # asked for each compile, and mostly unset
        try:
            found.append(without_host(shlex.split(value))[1])
        except ValueError:
            continue  # nvcc says what is wrong with it
    return [host for host in found if host]


def asks_for_report(flags: Iterable[str]) -> bool:
    """Tell whether the flags ask for ptxas's report in the tool's output."""
    return any(_VERBOSE.fullmatch(flag) for flag in flags)


def include_folders(variables: Mapping[str, str], *, system: bool = True) -> tuple[str, ...]:
    """Return the toolkit's own include folders, in nvcc's order. Args: system: also those that it has as -isystem."""
    found: dict[str, None] = {}
    for name in ("INCLUDES", "SYSTEM_INCLUDES") if system else ("INCLUDES",):
        for argument in shlex.split(variables.get(name, "")):
            path = argument[2:] if argument.startswith("-I") else argument
            if path.startswith("/"):
                found[os.path.normpath(path)] = None
    return tuple(found)


def version(dryrun: Dryrun) -> str:
    """Return the version ("13.0.88") from the macros that nvcc defines; empty if it defines none."""
    macros: dict[str, str] = {}
    for command in dryrun.commands:
        for argument in command:
            if match := re.match(r"-D__CUDACC_VER_(MAJOR|MINOR|BUILD)__=(\d+)", argument):
                macros.setdefault(match[1], match[2])
    return ".".join(macros[part] for part in ("MAJOR", "MINOR", "BUILD") if part in macros)


def normalised(asked: Iterable[str], where: str, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Return architectures as sm_NN, sorted by number, each once. A "compute_NN", for PTX only, stays as it is.

    Args:
        asked: "sm_80", "80", "9.0a", "compute_90".
        where: "buildd.toml:12", for errors.
        known: names for a "did you mean".

    Raises:
        RequestError: a name is not an architecture.
    """
    found: dict[str, tuple[int, str, bool]] = {}
    for name in asked:
        match = _ARCH.fullmatch(re.sub(r"^(\d+)\.(\d)", r"\1\2", name.strip()))
        if name.strip().startswith("gfx"):
            raise RequestError(
                "bad-arch",
                f'"{name}" is an architecture of AMD\'s, and this target is compiled for NVIDIA',
                file=where,
                next_step='name it in a target of its own, with kind = "hip" if the sources are yours',
            )
        if match is None:
            several = " (name each one)" if name.startswith("all") else ""
            raise RequestError(
                "bad-arch",
                f'"{name}" is not a CUDA architecture{several}{nearest(name, known)}',
                file=where,
                next_step='write architectures as in arch = ["sm_80", "sm_90a"]',
            )
        virtual = name.strip().startswith("compute_")
        canonical = ("compute_" if virtual else "sm_") + match[1] + match[2]
        found[canonical] = (int(match[1]), match[2], virtual)
    return tuple(sorted(found, key=lambda name: found[name]))


def architectures(asked: Iterable[str], known: Iterable[str], where: str) -> tuple[str, ...]:
    """Return architectures as `normalised` does, and raise RequestError for one that the compiler does not know.

    Args:
        known: the list of `nvcc --list-gpu-code` (without the a and f variants, which nvcc accepts too).
    """
    codes = tuple(known)
    found = normalised(asked, where, codes)
    for name in found:
        number, variant = int(re.sub(r"\D", "", name)), name[-1] if name[-1] in "af" else ""
        if f"sm_{number}" not in codes or (variant == "a" and number < 90) or (variant == "f" and number < 100):
            what, step = f'this nvcc cannot compile for "{name}"', "choose one of " + ", ".join(codes)
            if last := _last_toolkit(number) if f"sm_{number}" not in codes else "":
                what = f'this nvcc no longer compiles for "{name}"; CUDA {last} was the last that did'
                step = f"use that CUDA (`cuda` in [toolchain], or --cuda), or {step}"
            else:
                what += nearest(f"sm_{number}", codes)
            step += " (and the a variants from sm_90 on)"
            raise RequestError("bad-arch", what, file=where, next_step=step)
    return found


_DROPPED = (
    ((20, 21), "8.0"),
    ((30, 32), "10.2"),
    ((35, 37), "11.8"),
    ((50, 52, 53, 60, 61, 62, 70, 72), "12.9"),
)
"""Architectures that newer toolkits do not compile for, and the last toolkit that does, from CUDA's release notes."""


def _last_toolkit(number: int) -> str:
    return next((toolkit for numbers, toolkit in _DROPPED if number in numbers), "")


def gencode(archs: tuple[str, ...], *, device_lto: bool = False) -> tuple[str, ...]:
    """Return -gencode flags: machine code for each architecture, and PTX of the last one so that later GPUs can run it.

    PTX of an "a" architecture runs on that architecture only; it is included for tools that read it.

    Args:
        device_lto: intermediate code for link-time optimisation instead of machine code.
    """
    flags = []
    for arch in archs:
        virtual = "compute_" + _number(arch)
        codes = [] if arch.startswith("compute_") else [arch]
        if arch == archs[-1] or not codes:
            codes.append(virtual)
        if device_lto:
            codes = ["lto_" + _number(arch)]
        code = codes[0] if len(codes) == 1 else f"[{','.join(codes)}]"
        flags.append(f"-gencode=arch={virtual},code={code}")
    return tuple(flags)


def single(arch: str, virtual: bool) -> tuple[str, ...]:
    """Return the flags for one file of PTX (`virtual`) or machine code."""
    code = "compute_" + _number(arch)
    return (f"-gencode=arch={code},code={code if virtual else arch}",)


def _number(arch: str) -> str:
    return arch.removeprefix("sm_").removeprefix("compute_")


def parse_codes(text: str) -> tuple[str, ...]:
    """Return the architectures in the standard output of `nvcc --list-gpu-code`."""
    return tuple(sorted(set(re.findall(r"\bsm_\d+\b", text)), key=lambda code: int(code[3:])))
