"""Reads a compiler's command line from a foreign build: one compile of one source, or the reason to refuse it.

Knows the tools and the other sources of their options: response files and variables. Finds no tool, and reads no file
but response files. Every option must be known: an unknown option could read or write an undeclared file. A refused
command is passed through to the tool, so in doubt it is refused.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from codegen.compilers import clang_hip, linking, nvcc
from codegen.compilers.command_parser import Compile, Family, Makes, Parser, PassThrough, Reason, language_of
from codegen.flags import inspect
from codegen.foreign.gcc_options import GccParser
from codegen.foreign.nvcc_options import REPLACED_BY_SHELLS, NvccParser
from codegen.reach import Reach, reach_of, read_regular

MOST_NESTED = 8
"""Deepest nesting of response files."""
MOST_ARGUMENT_BYTES = 100_000
"""nvcc passes each step to a shell as one string, which Linux limits to 128 KiB; response files are expanded here."""

_NVCCS_FILE = re.compile(r"tmpxft_[0-9a-f]+_[0-9a-f]+-")
"""Beginning of the names of nvcc's temporary files."""

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
"""The tools that have shims, with their families."""
_VERSIONED = re.compile(r"(?:.*-linux-gnu-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+)(?:-\d[\d.]*)?")
"""Names under which distributions install one version of a compiler, such as x86_64-linux-gnu-g++-12 and conda's
x86_64-conda-linux-gnu-c++."""
_ASKS = re.compile(
    r"--?(version|V|qversion|help(=.*)?|target-help|h|dumpversion|dumpmachine|dumpspecs|dumpfullversion|print-.*|dryrun|###)"
)
"""Options with which a compiler only answers a question, whatever else the command says. autoconf asks each compiler
with XL's -qversion."""
NVCC_ADDS = (
    *("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES"),
    *("CUDAFE_FLAGS", "LLVMC_FLAGS", "NVLINK_FLAGS", "NVVM_FLAGS", "OCG_FLAGS", "PTXAS_FLAGS"),
)
"""Variables whose words nvcc adds to its programs' command lines, as nvcc.profile says."""
_PARTS_FOLDERS = ("COMPILER_PATH", "GCC_EXEC_PREFIX")
"""Variables by which gcc and clang find their own programs."""
_LINKERS_VERSION = "-Wl,--version"
"""Meson asks so for the linker's name."""
_MOVED = re.compile(
    r"\.(?P<nix>nvcc)-wrapped|(?:.*-linux-gnu-)?(?P<aside>gcc|g\+\+|cc|c\+\+|clang|clang\+\+)[.-](?:real|orig|distrib)"
)
"""The names of programs whose own names their wrappers take: nixpkgs' makeWrapper, dpkg-divert, and by hand."""


def family_of(name: str) -> Family | None:
    """The family of a tool by its file's name; None if it is no compiler that buildd knows.

    The library that interposes calls by path has the same rule (buildd/shims/program_name.c).
    """
    return TOOLS.get(known_name(name))


def known_name(name: str) -> str:
    """The plain name of a compiler's file: "g++" for x86_64-linux-gnu-g++-12 and g++-real. Others stay as they are."""
    found = _VERSIONED.fullmatch(name) or _MOVED.fullmatch(name)
    return next(filter(None, found.groups())) if found else name


def parse(command: Sequence[str], folder: str, environment: Sequence[tuple[str, str]] = ()) -> Compile:
    """Return the compile that a command describes.

    Args:
        command: the tool's path, then its arguments.
        folder: the command's working folder, absolute.
        environment: variables of the caller, some of which hold flags.

    Raises:
        PassThrough: buildd does not handle this command.
    """
    try:
        parser, family, read = read_command(command, folder)
        parser.appended = _check_environment(family, dict(environment))
        compile = parser.result(family, read)
    except PassThrough as why:
        refused = why.reason in (Reason.UNKNOWN_OPTION, Reason.UNSUPPORTED_OPTION)
        if refused and _is_query(why.detail, command):
            raise PassThrough(Reason.QUERY, why.detail) from why
        if refused and "-E" in command:
            raise PassThrough(Reason.PREPROCESS) from why
        if why.reason is Reason.NO_SOURCE and _LINKERS_VERSION in command:
            raise PassThrough(Reason.QUERY, _LINKERS_VERSION) from why
        if why.reason is Reason.UNKNOWN_OPTION and _only_links(command):
            raise PassThrough(Reason.LINK) from why
        raise
    if compile.makes is Makes.LINKED and family is Family.GCC:
        linking.check(compile.flags)
    return compile


def _is_query(option: str, command: Sequence[str]) -> bool:
    """Tell whether a command with this unknown option compiles nothing. With a source, -v compiles too."""
    option = option.removeprefix("-Xcompiler ")
    names_source = any(not word.startswith("-") for word in command[1:])
    if names_source:
        return bool(_ASKS.fullmatch(option)) or (option == "-v" and "-E" in command)
    return option == "-v" or any(map(_ASKS.fullmatch, (option, *command[1:])))  # nvcc's parser names another option


def _only_links(command: Sequence[str]) -> bool:
    """Tell whether a command names objects and no source. Such a link is not cached, whatever its other options are."""
    named = [word for word in command[1:] if not word.startswith("-")]
    return any(word.endswith((".o", ".obj")) for word in named) and not any(map(language_of, named))


def read_command(command: Sequence[str], folder: str) -> tuple[Parser, Family, tuple[str, ...]]:
    """Return what a command's options say, the tool's family, and the response files that were read.

    Raises:
        PassThrough: as `parse`.
    """
    family = family_of(os.path.basename(command[0]))
    if family is None:
        raise PassThrough(Reason.TOOL, os.path.basename(command[0]))
    read: list[str] = []
    arguments = tuple(_expanded(command[1:], family, folder, read))
    if sum(len(argument) + 3 for argument in arguments) > MOST_ARGUMENT_BYTES:
        raise PassThrough(Reason.TOO_LONG)
    if family is Family.GCC and _is_inside_nvcc(arguments):
        raise PassThrough(Reason.INSIDE_NVCC)
    by_clang = family is Family.GCC and clang_hip.is_hip(arguments)
    family = Family.HIPCC if by_clang else family
    parser = (
        NvccParser()
        if family is Family.NVCC
        else GccParser(family, finds_rocm=by_clang, is_clang="clang" in os.path.basename(os.path.realpath(command[0])))
    )
    parser.run(arguments)
    return parser, family, tuple(read)


def _is_inside_nvcc(arguments: Sequence[str]) -> bool:
    """Tell whether nvcc makes this call of a host compiler, as one of its own steps. No such call can be a hit: each
    names temporary files of one run of nvcc."""
    own = ("-D__CUDACC__", "-D__NVCC__")
    names_temporary = any(_NVCCS_FILE.match(os.path.basename(argument)) for argument in arguments)
    return names_temporary or ("-E" in arguments and all(macro in arguments for macro in own))


def _expanded(arguments: Sequence[str], family: Family, folder: str, read: list[str], depth: int = 0) -> Iterator[str]:
    """Return the arguments with the contents of response files in their place."""
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
        elif argument.startswith("@") and family is not Family.NVCC:
            name = argument[1:]
        elif argument.startswith("@"):
            raise PassThrough(Reason.RESPONSE_FILE, f"nvcc has --options-file in place of {argument}")
        if not name:
            yield argument
            continue
        path = os.path.join(folder, name)
        if reach_of(path, {}) is not Reach.EVERYONE:
            raise PassThrough(Reason.NO_FILE, name)
        try:
            if os.path.getsize(path) > MOST_ARGUMENT_BYTES:
                raise PassThrough(Reason.TOO_LONG, name)
            text = read_regular(path).decode()
            if "\\" in text or (family is Family.NVCC and "'" in text):
                # nvcc removes double quotes, and takes a single one for a character like any other.
                raise ValueError("each tool reads these in its own way")
            words = shlex.split(text)
        except (OSError, ValueError) as error:
            raise PassThrough(Reason.RESPONSE_FILE, name) from error
        read.append(path)
        if any(word.startswith("@") or "options-file" in word or word == "-optf" for word in words):
            # gcc and clang read names relative to the caller's folder; the other tools' rule is not known.
            if family is not Family.GCC or depth == MOST_NESTED:
                raise PassThrough(Reason.RESPONSE_FILE, f"{name} names another")
            yield from _expanded(words, family, folder, read, depth + 1)
        else:
            yield from words


def _check_environment(family: Family, environment: dict[str, str]) -> tuple[str, ...]:
    """Return the flags in variables, which the tool adds to those of its command. Raises PassThrough."""
    refused = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "LD_PRELOAD", "GCC_COMPARE_DEBUG", "CCC_OVERRIDE_OPTIONS")
    for name in refused:
        if environment.get(name):
            raise PassThrough(Reason.ENVIRONMENT, name)
    for name in _PARTS_FOLDERS:
        # The probes run in another folder. An empty name is the caller's folder, too.
        if any(not folder.startswith("/") for folder in environment.get(name, "/").split(os.pathsep)):
            raise PassThrough(Reason.ENVIRONMENT, name)
    if any(name.startswith("CC_PRINT_") for name in environment):
        raise PassThrough(Reason.ENVIRONMENT, "CC_PRINT_*")
    if family is Family.HIPCC and environment.get("HIP_PLATFORM", "amd") != "amd":
        raise PassThrough(Reason.ENVIRONMENT, "HIP_PLATFORM")
    if family is Family.NVCC and (named := next(filter(environment.get, NVCC_ADDS), "")):
        raise PassThrough(Reason.ENVIRONMENT, named)
    found: list[str] = []
    names = {Family.NVCC: nvcc.FLAG_VARIABLES, Family.HIPCC: ("HIPCC_COMPILE_FLAGS_APPEND",)}
    for name in names.get(family, ()):
        if not environment.get(name):
            continue
        try:
            flags = shlex.split(environment[name])
        except ValueError as error:
            raise PassThrough(Reason.ENVIRONMENT, name) from error
        # hipcc gives the variable to a shell as it is, and nvcc some of its words.
        if match := REPLACED_BY_SHELLS.search(environment[name]):
            detail = f"{name}, where a shell replaces {match[0].lstrip(', ')}"
            raise PassThrough(Reason.ENVIRONMENT, detail)
        parser = NvccParser() if family is Family.NVCC else GccParser(family)
        # conda names the host compiler so. The tool's description asks nvcc for it, as it does for NVCC_CCBIN.
        flags, host = nvcc.without_host(flags) if family is Family.NVCC else (flags, "")
        parser.run(flags)
        if not parser.only_flags or (host and "/" in host and not os.path.isabs(host)):
            raise PassThrough(Reason.ENVIRONMENT, name)
        if why := inspect(flag for flag in flags if not flag.startswith("-arch=")).uncacheable:
            raise PassThrough(Reason.ENVIRONMENT, f"{name}: {why}")
        found.extend(flags)
    return tuple(found)
