"""Turns the output of `nvcc --dryrun` into the steps of one compile, as actions.

Pure, and strict: anything unexpected (another step, a file that no step writes) is `NotUnderstood`, and nvcc then runs
whole. Knows the order of nvcc's steps and the files between them; `nvcc_commands` reads each command line. Knows
neither how steps run nor where nvcc is.

nvcc runs these steps since CUDA 11.5: host preprocess and cudafe++; preprocess and cicc per virtual architecture, ptxas
per real one; fatbinary; host compile. The host compile's input includes the stub of the last cicc, which includes
fatbinary's output. nvcc's device passes wait for cudafe++ only because it writes the file with the module's id. buildd
writes that file beforehand, so the passes need not wait. The host compile does not wait for ptxas either: it includes a
fatbin of the same form (`FRAME`), and the runner of the steps puts the real fatbin into the object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from codegen.compilers.closure import which
from codegen.plan import BARE, Action, Argument, Discovery, Kept, Output, Place, Ref, Steps
from codegen.steps.nvcc_commands import (
    DEBUG,
    DEVICE_PATHS,
    Role,
    StepCommand,
    StepFile,
    command_words,
    only_checks,
    read_command,
)
from codegen.steps.nvcc_files import HEADERS_NAME, arranged
from codegen.steps.step_kinds import (
    CHECKED,
    FOLDER,
    IMAGE,
    OBJECT,
    PLACEHOLDER,
    SOURCE,
    STEM,
    USED,
    NotUnderstood,
    StepKind,
)

_LISTS = "#$ -- Filter Dependencies -- > "
"""nvcc itself writes the depfile from the files that the preprocessors read."""
_EQUIVALENTS = {
    StepKind.PREPROCESS: Role.MADE,
    StepKind.CUDAFE: Role.MADE,
    StepKind.CICC: Role.STUB,
    StepKind.FATBINARY: Role.MADE,
}
"""Files that later steps read and that have a `BARE` output beside them."""
_READERS = (StepKind.CUDAFE, StepKind.CICC, StepKind.HOST)
"""Steps that are filed under equivalence digests of their inputs."""
_DEVICE_CODE = f"{FOLDER}/{STEM}.device.fatbin.c"
_HEADERS = b"""\
#if __has_include("crt/host_runtime.h") && __has_include("fatbinary_section.h")
#define __NV_CUBIN_HANDLE_STORAGE__ static
#if !defined(__CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__)
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#endif
#include "crt/host_runtime.h"
#include "fatbinary_section.h"
#else
__CUDA_ARCH__ __CUDA_ARCH_LIST__
#endif
"""
"""The beginning of a stub and of a fatbin: the only parts that the host compile still includes."""


def decompose(
    text: str, name: str, *, extension: str, root: str, identity: str, find: Callable[[str, str], str] = which
) -> Steps:
    """Return the steps of a compile.

    Args:
        text: output of `nvcc --dryrun -c ... -o OBJECT SOURCE.extension`. It may name the tool's roots by
            `placeholder`.
        name: name of the `Steps`.
        root: the toolkit's folder.
        identity: identity of the project.
        find: returns the file of a program on a PATH.

    Raises:
        NotUnderstood: nvcc must run whole.
    """
    variables: dict[str, str] = {}
    said: list[str] = []
    steps: list[StepCommand] = []
    for line in text.removesuffix("\n").split("\n") if text else ():
        # Only a line feed ends a line: Python's other line ends may be part of a word.
        if not line.startswith("#$ "):
            said.append(line + "\n")
        elif line.startswith(_LISTS):
            continue
        elif assignment := re.fullmatch(r"(\w+)=(.*)", line[3:]):
            variables[assignment[1]] = assignment[2].strip()
        elif (words := command_words(line[3:].strip(" \t"), variables)) and os.path.basename(words[0]) != "rm":
            steps.append(read_command(words, SOURCE + extension))
    if "PATH" not in variables:
        raise NotUnderstood("the dry run sets no PATH")
    writer = _Writer(steps, variables, root, SOURCE + extension, find)
    return Steps(name=name, identity=identity, actions=tuple(writer.actions()), said="".join(said))


class _Writer:
    """Writes steps as actions."""

    def __init__(
        self,
        steps: list[StepCommand],
        variables: Mapping[str, str],
        root: str,
        source: str,
        find: Callable[[str, str], str],
    ) -> None:
        self._steps, self._files = arranged(steps)
        self._variables = variables
        self._root = root
        self._source = source
        self._find = find

    def _path(self, name: str) -> str:
        if name == OBJECT:
            return f"{FOLDER}/{OBJECT}"
        folder, _, role = self._files.names[name].rpartition("/")
        return "/".join(part for part in (FOLDER, folder, f"{STEM}.{role}") if part)

    def actions(self) -> Iterator[Action]:
        """Yield the template's actions."""
        for step in self._steps:
            made = self.action(step)
            if step.kind is StepKind.HOST and not self._files.lines:
                yield self._headers(step)
            if step.kind is StepKind.FATBINARY and self._files.framed:
                yield self._frame(step)
            yield made

    def _frame(self, binary: StepCommand) -> Action:
        """Return the step that makes the frame, which the host compile includes instead of the fatbin."""
        (image, *_) = (word.prefix for word in binary.words if isinstance(word, StepFile) and word.role is Role.INPUT)
        argv: list[Argument] = [self._program(str(binary.words[0]))]
        argv += [self._symbolic(word) for word in binary.words[1:] if isinstance(word, str)]
        argv.append(Ref(place=Place.INPUT, name=IMAGE, prefix=re.sub(r"=kind=\w+,sm=\w+,", "=kind=ptx,sm=80,", image)))
        argv += [
            self._file(word, False) for word in binary.words if isinstance(word, StepFile) and word.role is Role.MADE
        ]
        path = self._path(self._files.fatbin)
        return Action(
            name=StepKind.FRAME.value,
            kind=StepKind.FRAME.value,
            tool="",
            argv=tuple(argv),
            environment=self._environment(),
            inputs=(IMAGE,),
            outputs=(Output(name=Role.MADE.value, path=path), Output(name=BARE, path=f"{path}.{BARE}")),
        )

    def _headers(self, host: StepCommand) -> Action:
        """Return the step that shows whether the list of architectures affects the host code."""
        argv: list[Argument] = [self._program(str(host.words[0]))]
        for word in host.words[1:]:
            if isinstance(word, StepFile):
                argv.append("-")
            elif word == OBJECT:
                argv.append(Ref(place=Place.OUTPUT, name=Role.MADE.value))
            else:
                argv.append("-E" if word == "-c" else self._symbolic(word))
        return Action(
            name=StepKind.HEADERS.value,
            kind=StepKind.HEADERS.value,
            tool="",
            argv=(*argv, "-w"),
            environment=self._environment(),
            payload=_HEADERS,
            outputs=(Output(name=Role.MADE.value, path=self._path(HEADERS_NAME)),),
            discovery=Discovery.GCC,
        )

    def _environment(self) -> tuple[tuple[str, str], ...]:
        # The profile of Debian's package sets no LD_LIBRARY_PATH: the caller's stays.
        return tuple((name, self._variables[name]) for name in ("LD_LIBRARY_PATH", "PATH") if name in self._variables)

    def action(self, step: StepCommand) -> Action:
        """Return a step of the template."""
        # Otherwise the stub would contain the name of the private folder.
        apart = step.kind is StepKind.CICC and not any(DEVICE_PATHS.fullmatch(str(word)) for word in step.words)
        argv: list[Argument] = [self._program(str(step.words[0]))]
        for before, word in pairwise(step.words):
            if isinstance(word, StepFile):
                argv.append(self._file(word, apart))
            elif before == "--orig_src_path_name":
                argv.append(Ref(place=Place.ROOT, name="project", suffix=f"/{self._source}"))
            elif word == OBJECT:
                argv.append(Ref(place=Place.OUTPUT, name="object"))
            elif word != "--gen_module_id_file":
                argv.append(self._symbolic(word))
        inputs = [self._path(name) for name in step.files(Role.INPUT, Role.MODULE)]
        outputs = [
            Output(name=word.role.value, path=self._path(word.name))
            for word in step.words
            if isinstance(word, StepFile) and word.role in (Role.MADE, Role.STUB)
        ]
        texts = [path for path in inputs if step.kind in _READERS and path != self._path(self._files.module)]
        spelled = [word.prefix + word.name if isinstance(word, StepFile) else word for word in step.words]
        if only_checks(step):
            outputs = [Output(name=CHECKED, path=f"{FOLDER}/{STEM}.{step.option('-arch')}.{CHECKED}")]
        if step.kind is StepKind.HOST:
            texts += [self._path(self._files.stub), self._path(self._files.fatbin)]
            inputs += texts[1:]
            outputs = [Output(name="object", path=f"{FOLDER}/{OBJECT}")]
            if not self._files.lines:
                inputs += [self._path(HEADERS_NAME)]
                outputs += [Output(name=BARE, path=f"{self._path(self._files.fatbin)}{USED}")]
            if any(DEBUG.fullmatch(word) for word in spelled):
                argv += [
                    Ref(
                        place=Place.INPUT,
                        name=path,
                        prefix="-fdebug-prefix-map=",
                        suffix=f"={os.path.basename(path)}",
                    )
                    for path in inputs
                ]
        elif step.kind in _EQUIVALENTS and not self._files.lines and f"--create={OBJECT}" not in spelled:
            if step.kind is StepKind.FATBINARY and self._files.framed:
                outputs = [Output(name=Role.MADE.value, path=_DEVICE_CODE)]
                outputs += [Output(name=BARE, path=f"{_DEVICE_CODE}.{BARE}")]
            else:
                outputs += [Output(name=BARE, path=f"{self._path(step.one(_EQUIVALENTS[step.kind]))}.{BARE}")]
        what = step.option("-arch") if step.kind in (StepKind.CICC, StepKind.PTXAS) else ""
        if step.kind is StepKind.PREPROCESS:
            what = self._files.names[step.one(Role.MADE)].removesuffix(".cpp1.ii").replace("cpp4.ii", "host")
        return Action(
            name=f"{step.kind.value} {what}".rstrip(),
            kind=step.kind.value,
            tool="",
            argv=tuple(argv),
            environment=self._environment(),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            discovery=Discovery.GCC if step.kind in (StepKind.PREPROCESS, StepKind.HOST) else Discovery.NONE,
            kept=Kept.NOTHING if step.kind in (StepKind.PREPROCESS, StepKind.FATBINARY) else Kept.FILES,
            apart=apart,
            equivalents=() if self._files.lines else tuple(texts),
        )

    def _program(self, name: str) -> Argument:
        path = os.path.normpath(self._find(name, self._variables["PATH"]) or "/")
        if path == "/":
            raise NotUnderstood(f"{name} is not on the PATH")
        return self._symbolic(path)

    def _file(self, file: StepFile, apart: bool) -> Argument:
        path = self._path(file.name) if file.role is not Role.UNUSED else f"{STEM}.{file.name.rpartition('.')[2]}"
        name = os.path.basename(path)
        match file.role:
            case Role.INPUT | Role.MODULE:
                return Ref(place=Place.INPUT, name=path, prefix=file.prefix)
            case Role.MADE:
                return Ref(place=Place.OUTPUT, name=file.role.value, prefix=file.prefix)
            case Role.STUB:
                return name if apart else Ref(place=Place.OUTPUT, name=file.role.value)
            case Role.UNUSED:
                return Ref(place=Place.TEMPORARY, suffix=f"/unused.{name}")
            case Role.INCLUDED:
                return name

    def _symbolic(self, word: str) -> Argument:
        """Return a word with a root's folder replaced by a reference."""
        found = list(re.finditer(rf"{re.escape(self._root)}(?=/)|{PLACEHOLDER}", word))
        if not found:
            return word
        if len(found) > 1:
            raise NotUnderstood(f"two folders in {word}")
        (match,) = found
        return Ref(place=Place.ROOT, name=match[1] or "cuda", prefix=word[: match.start()], suffix=word[match.end() :])
