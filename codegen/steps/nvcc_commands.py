"""Reads the command lines of nvcc's steps, as `nvcc --dryrun` prints them.

Strict: a program, a quote or a temporary file of an unknown form is `NotUnderstood`. Knows the programs and which of
their arguments are temporary files, not the meaning of other arguments, nor how steps follow each other or run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from codegen.steps.step_kinds import OBJECT, STEM, NotUnderstood, StepKind

_TEMPORARY = re.compile(r"(?:[^=,]*/)?(tmpxft_[0-9a-f]+_[0-9a-f]+-[0-9]+_" + STEM + r"\.[\w.]+)")
_QUOTED = r"""'[^']*'|"(?:[^"$`\\]|\\.)*"|\\[ -~]"""
"""Text that a shell reads literally: between single quotes, between double quotes, after a backslash (POSIX, Shell
Command Language, 2.2). shlex differs: between double quotes it keeps the backslash before a dollar sign or
backquote."""
_WORD = re.compile(rf"((?:[A-Za-z0-9_@%+:,./=^-]|{_QUOTED})+)(?:[ \t]+|\Z)", re.DOTALL)
DEVICE_PATHS = re.compile(r"-{1,2}g|-{1,2}G|.*(line-?info|src-in-ptx|source-in-ptx|debug).*")
"""Options of cicc that put its working folder into its output."""
DEBUG = re.compile(r"-g(?!no-|(gdb)?0\Z).*")
"""Options of gcc that put names of step files into its output."""
LINES = re.compile(
    rf"{DEBUG.pattern}|-f(sanitize|instrument|profile|auto-profile|plugin|module|opt-info|dump|callgraph|compare-debug).*"
    r"|-fdirectives-only|-ftest-coverage|--coverage|-p|-pg|-CC?|-P|-traditional.*|-save-temps.*|-Wa,.*"
)
"""Options of gcc that may put line numbers into its output or change the usual form of the text."""


class Role(Enum):
    """The role of a temporary file in the step that names it."""

    INPUT = "input"
    MODULE = "module"
    INCLUDED = "included"
    """The step writes only the file's bare name into its output, for `#include`."""
    MADE = "made"
    STUB = "stub"
    UNUSED = "unused"
    """Written, but read by no step."""


_ROLES = {
    (StepKind.PREPROCESS, "-o"): Role.MADE,
    (StepKind.CUDAFE, "--gen_c_file_name"): Role.MADE,
    (StepKind.CUDAFE, "--stub_file_name"): Role.INCLUDED,
    (StepKind.CUDAFE, "--module_id_file_name"): Role.MODULE,
    (StepKind.CICC, "-o"): Role.MADE,
    (StepKind.CICC, "--stub_file_name"): Role.STUB,
    (StepKind.CICC, "--gen_c_file_name"): Role.UNUSED,
    (StepKind.CICC, "--gen_device_file_name"): Role.UNUSED,
    (StepKind.CICC, "--include_file_name"): Role.INCLUDED,
    (StepKind.CICC, "--module_id_file_name"): Role.MODULE,
    (StepKind.PTXAS, "-o"): Role.MADE,
    (StepKind.FATBINARY, "--image3"): Role.INPUT,
    (StepKind.FATBINARY, "--image"): Role.INPUT,
    (StepKind.FATBINARY, "--embedded-fatbin"): Role.MADE,
}
_POSITIONAL = (StepKind.CUDAFE, StepKind.CICC, StepKind.PTXAS, StepKind.HOST)
"""Steps with one input that is not the value of an option."""
_PROGRAMS = {kind.value: kind for kind in (StepKind.CUDAFE, StepKind.CICC, StepKind.PTXAS, StepKind.FATBINARY)}


@dataclass(frozen=True, slots=True)
class StepFile:
    """A word that names a temporary file: `prefix`, then nvcc's name for the file."""

    role: Role
    prefix: str
    name: str


@dataclass(frozen=True, slots=True)
class StepCommand:
    """A parsed command line."""

    kind: StepKind
    words: tuple[str | StepFile, ...]

    def files(self, *roles: Role) -> list[str]:
        """Return nvcc's names for the temporary files with these roles."""
        return [word.name for word in self.words if isinstance(word, StepFile) and word.role in roles]

    def one(self, role: Role) -> str:
        """Return the only temporary file with this role."""
        files = self.files(role)
        if len(files) != 1:
            raise NotUnderstood(f"{self.kind.value} with {len(files)} {role.value} files")
        return files[0]

    def option(self, name: str) -> str:
        """Return the single value of an option, glued or separate."""
        words = [word if isinstance(word, str) else "" for word in self.words]
        glued = [word.removeprefix(name + "=") for word in words if word.startswith(name + "=")]
        apart = [value for word, value in pairwise(words) if word == name]
        if len(glued + apart) != 1:
            raise NotUnderstood(f"{self.kind.value} with {len(glued + apart)} times {name}")
        return (glued + apart)[0]


def command_words(line: str, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a command line that nvcc would pass to a shell. Accepts only syntax that every shell reads
    alike."""
    if (name := re.match(r'"\$(\w+)', line)) and name[1] in variables:
        # The shell uses a variable's value literally.
        line = '"' + re.sub(r'(["$`\\])', r"\\\1", variables[name[1]]) + line[name.end() :]
    words: list[str] = []
    end = 0
    while match := _WORD.match(line, end):
        words.append(re.sub(_QUOTED, _unquoted, match[1], flags=re.DOTALL))
        end = match.end()
    if end != len(line):
        raise NotUnderstood(f"a shell would not read only words in: {line[end:]}")
    return words


def _unquoted(part: re.Match[str]) -> str:
    text = part[0]
    if text[0] == "\\":
        return text[1]
    return text[1:-1] if text[0] == "'" else re.sub(r'\\([$`"\\])', r"\1", text[1:-1])


def read_command(words: list[str], source: str) -> StepCommand:
    """Return a command line as a step with its temporary files.

    Raises:
        NotUnderstood: the program, or the place of a temporary file, is unknown.
    """
    program = os.path.basename(words[0])
    kind = _PROGRAMS.get(program)
    if kind is None and "-x c++" in " ".join(words):
        modes = [word for word in words if word in ("-E", "-c")]
        kind = {"-E": StepKind.PREPROCESS, "-c": StepKind.HOST}.get(modes[0] if modes else "")
    if kind is None:
        raise NotUnderstood(f"the step {program}")
    if words.count(source) != {StepKind.PREPROCESS: 1, StepKind.HOST: 0}.get(kind, words.count(source)):
        raise NotUnderstood(f"{kind.value} of an unexpected file")
    read: list[str | StepFile] = []
    for index, word in enumerate(words):
        if "tmpxft_" not in word:
            # In a compile to PTX alone, ptxas checks the output.
            checked = kind is StepKind.PTXAS and word == OBJECT and words[index - 1] != "-o"
            read.append(StepFile(Role.INPUT, "", word) if checked else word)
            continue
        option, equals, value = word.partition("=")
        prefix = word[: len(word) - len(value.rpartition("file=")[2])] if equals else ""
        match = _TEMPORARY.fullmatch(word[len(prefix) :])
        role = _ROLES.get((kind, option)) if equals else _ROLES.get((kind, words[index - 1]))
        if role is None and not equals and kind in _POSITIONAL:
            role = Role.INPUT
        if match is None or role is None:
            raise NotUnderstood(f"{kind.value} {words[index - 1]} {word}")
        read.append(StepFile(role, prefix, match[1]))
    step = StepCommand(kind, tuple(read))
    if kind in _POSITIONAL:
        step.one(Role.INPUT)
    return step


def sees_lines(step: StepCommand) -> bool:
    """Tell whether a step's output may depend on line numbers or on the names of files and folders."""
    pattern = LINES if step.kind in (StepKind.PREPROCESS, StepKind.HOST) else DEVICE_PATHS
    return any(pattern.fullmatch(word) for word in step.words if isinstance(word, str))


def only_checks(step: StepCommand) -> bool:
    """Tell whether ptxas only checks the text of a virtual architecture and writes nothing, as for a compile to PTX
    only. Without -o but for a real architecture it would write elf.o."""
    silent = step.kind is StepKind.PTXAS and not step.files(Role.MADE)
    return silent and "-o" not in step.words and step.option("-arch").startswith("compute_")
