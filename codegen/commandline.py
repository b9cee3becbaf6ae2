"""A compiler's command line, as a foreign build calls it -> one compile of one source, or the reason why it is none.

Knows which tools there are and what else feeds their command lines: response files, variables. Finds no tool, and
reads nothing but response files. Every option has to be known: one that is not could read or write a file that nobody
told us of. What is refused here is run by the caller as if we were not there, so in doubt it is refused.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from codegen import linking
from codegen.options_gcc import GccParser
from codegen.options_nvcc import NvccParser
from codegen.parsing import Compile, Family, HandThrough, Makes, Reason

MOST_NESTED = 8
"""Response files in response files."""
MOST_ARGUMENT_BYTES = 100_000
"""nvcc hands its steps to a shell in one string, which Linux bounds to 128 KiB; response files are expanded here."""

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
    parser = NvccParser() if family is Family.NVCC else GccParser(family)
    parser.run(arguments)
    _check_environment(family, dict(environment))
    compile = parser.result(family, tuple(read))
    if compile.makes is Makes.LINKED and family is Family.GCC:
        linking.check(compile.flags)
    return compile


def _expanded(arguments: Sequence[str], family: Family, folder: str, read: list[str], depth: int = 0) -> Iterator[str]:
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
        read.append(path)
        if any(word.startswith("@") or "options-file" in word or word == "-optf" for word in words):
            # All names are relative to the caller's folder with gcc and clang; of the others that is not known.
            if family is not Family.GCC or depth == MOST_NESTED:
                raise HandThrough(Reason.RESPONSE_FILE, f"{name} names another")
            yield from _expanded(words, family, folder, read, depth + 1)
        else:
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
        parser = NvccParser() if family is Family.NVCC else GccParser(family)
        parser.run(flags)
        if not parser.only_flags:
            raise HandThrough(Reason.ENVIRONMENT, name)
