"""Which temporary file of nvcc's steps is which, and what it is called in a template.

Strict: a file that no step writes, or a second module, is `NotUnderstood`. Knows the order in which nvcc's steps read
each other's files, for an object and for device code alone (-cubin, -ptx, -fatbin, -ltoir, -optix-ir); knows no
action and no command line's syntax (`nvcc_commands`). The names do not depend on the list of architectures, so that
adding one does not change the steps of the others, and they are the same for an object and for device code alone, so
that each finds the steps of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.steps.nvcc_commands import Role, StepCommand, StepFile, only_checks, sees_lines
from codegen.steps.step_kinds import OBJECT, NotUnderstood, StepKind

HEADERS_NAME = "headers.ii"
_IMAGES = re.compile(r"--image3=kind=(elf|ptx),sm=\w+,file=")
_CREATE = "--create="
"""fatbinary's option for a fatbin in a file of its own."""


@dataclass(frozen=True, slots=True)
class StepFiles:
    """The files of one compile's steps.

    Args:
        names: the name in a template for each of nvcc's names.
        module: nvcc's name of the file with the module's id.
        stub, fatbin: of the files that the host compile includes; empty for device code alone.
        lines: a step's output may depend on line numbers.
        framed: the host compile may include a frame in place of the fatbin.
    """

    names: Mapping[str, str]
    module: str
    stub: str
    fatbin: str
    lines: bool
    framed: bool


def arranged(steps: Sequence[StepCommand]) -> tuple[list[StepCommand], StepFiles]:
    """Return the steps, with the dry run's output as a file of theirs, and what their files are.

    Raises:
        NotUnderstood: nvcc must run whole.
    """
    kinds = [step.kind for step in steps]
    device_code = StepKind.CUDAFE not in kinds and StepKind.HOST not in kinds and StepKind.CICC in kinds
    return _of_device_code(steps) if device_code else (list(steps), _of_object(steps))


def _of_object(steps: Sequence[StepCommand]) -> StepFiles:
    by_kind = _by_kind(steps)
    for kind in (StepKind.CUDAFE, StepKind.FATBINARY, StepKind.HOST):
        if len(by_kind[kind]) != 1:
            raise NotUnderstood(f"{len(by_kind[kind])} times {kind.value}")
    (front,), (binary,), (host,) = (by_kind[kind] for kind in (StepKind.CUDAFE, StepKind.FATBINARY, StepKind.HOST))
    _check_module(steps, front)
    names = {front.one(Role.MODULE): "module_id", front.one(Role.MADE): "cudafe1.cpp"}
    names[front.one(Role.INPUT)] = "cpp4.ii"
    names[front.one(Role.INCLUDED)] = "cudafe1.stub.c"
    names[binary.one(Role.MADE)] = "fatbin.c"
    _name_device_files(by_kind, names, binary.one(Role.MADE))
    names[HEADERS_NAME] = HEADERS_NAME
    lines = any(sees_lines(step) for step in steps)
    stub, fatbin = front.one(Role.INCLUDED), binary.one(Role.MADE)
    images = [word.prefix for word in binary.words if isinstance(word, StepFile) and word.role is Role.INPUT]
    framed = (
        not lines
        and bool(images)
        and all(_IMAGES.fullmatch(image) for image in images)
        and not any(str(word).startswith(("--device-c", "-link", "--link")) for word in binary.words)
        and not any(str(word).startswith("-flto") for word in host.words)
    )
    if host.one(Role.INPUT) != front.one(Role.MADE) or host.option("-o") != OBJECT:
        raise NotUnderstood("the host compile reads an unexpected file")
    _check_written(steps, names, stub, fatbin)
    return StepFiles(names, front.one(Role.MODULE), stub, fatbin, lines, framed)


def _of_device_code(given: Sequence[StepCommand]) -> tuple[list[StepCommand], StepFiles]:
    steps = [_with_stub(_with_output(step)) for step in given]
    by_kind = _by_kind(steps)
    first = by_kind[StepKind.CICC][0]
    _check_module(steps, first)
    if [name for step in steps for name in step.files(Role.MADE)].count(OBJECT) != 1:
        raise NotUnderstood("not exactly one step makes the output")
    names = {first.one(Role.MODULE): "module_id", OBJECT: OBJECT}
    fatbin = first.one(Role.INCLUDED)
    names[fatbin] = "fatbin.c"
    _name_device_files(by_kind, names, fatbin)
    for step in by_kind[StepKind.PREPROCESS]:
        # With a depfile nvcc preprocesses for the host too; no step reads that text.
        names.setdefault(step.one(Role.MADE), "cpp4.ii")
    _check_written(steps, names)
    lines = any(sees_lines(step) for step in steps)
    return steps, StepFiles(names, first.one(Role.MODULE), "", "", lines, False)


def _with_output(step: StepCommand) -> StepCommand:
    """Return a step with the dry run's output as a file that it makes, if it does."""
    prefix = _CREATE if step.kind is StepKind.FATBINARY else ""
    made = StepFile(Role.MADE, prefix, OBJECT)
    return replace(step, words=tuple(made if word == prefix + OBJECT else word for word in step.words))


def _with_stub(step: StepCommand) -> StepCommand:
    """Return a cicc that also writes the stub for the host, as it does in a compile to an object.

    For PTX alone nvcc asks for no stub. The text is the same with it, and so is the step's key.
    """
    if step.kind is not StepKind.CICC or step.files(Role.STUB):
        return step
    place = next(i for i, word in enumerate(step.words) if isinstance(word, StepFile) and word.role is Role.INPUT)
    stem = step.one(Role.INPUT).rpartition(".")[0].removesuffix(".cpp1")
    asked: tuple[str | StepFile, ...] = (
        "--gen_c_file_name",
        StepFile(Role.UNUSED, "", f"{stem}.cudafe1.c"),
        "--stub_file_name",
        StepFile(Role.STUB, "", f"{stem}.cudafe1.stub.c"),
        "--gen_device_file_name",
        StepFile(Role.UNUSED, "", f"{stem}.cudafe1.gpu"),
    )
    return replace(step, words=(*step.words[:place], *asked, *step.words[place:]))


def _by_kind(steps: Iterable[StepCommand]) -> dict[StepKind, list[StepCommand]]:
    by_kind: dict[StepKind, list[StepCommand]] = {kind: [] for kind in StepKind}
    for step in steps:
        by_kind[step.kind].append(step)
    return by_kind


def _check_module(steps: Iterable[StepCommand], writer: StepCommand) -> None:
    if writer.words.count("--gen_module_id_file") != 1 or any(
        "--gen_module_id_file" in step.words for step in steps if step is not writer
    ):
        raise NotUnderstood("not exactly one step writes the module's id")


def _name_device_files(by_kind: Mapping[StepKind, list[StepCommand]], names: dict[str, str], fatbin: str) -> None:
    for step in by_kind[StepKind.CICC]:
        arch = step.option("-arch")
        names.setdefault(step.one(Role.INPUT), f"{arch}.cpp1.ii")
        made = step.one(Role.MADE)
        names.setdefault(made, f"{arch}.{made.rpartition('.')[2]}")
        names.setdefault(step.one(Role.STUB), f"{arch}/cudafe1.stub.c")
        if step.one(Role.INCLUDED) != fatbin or step.one(Role.MODULE) not in names:
            raise NotUnderstood("cicc names an unexpected fatbin or module")
    for step in by_kind[StepKind.PTXAS]:
        arch = names.get(step.one(Role.INPUT), "").partition(".")[0]
        if not only_checks(step):
            names.setdefault(step.one(Role.MADE), f"{arch}.{step.option('-arch')}.cubin")
    if len(set(names.values())) != len(names):
        raise NotUnderstood("two files for one architecture")


def _check_written(steps: Iterable[StepCommand], names: Mapping[str, str], *included: str) -> None:
    written: list[str] = []
    read = [*included]
    for step in steps:
        written += step.files(Role.MADE, Role.STUB)
        read += step.files(Role.INPUT)
    if len(set(written)) != len(written) or not set(read) <= set(written) <= set(names):
        raise NotUnderstood("a step reads a file that no step or more than one step writes")
