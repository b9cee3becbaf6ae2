"""Kernels of arrays: the entry point, which checks sizes, and the kernel, which targets may share.

Knows how they are called and compiled, not what they compute (`rowwise`, `elementwise`, `conv2d`). Plain ones are one
text for both vendors; a target's architectures say for which. A kernel's text and place say nothing of its target.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from codegen import nvcc
from codegen.compiled import asked_archs, generated_options, needs_arch, needs_output, plan_compiled
from codegen.context import Context, Part
from codegen.cuda import CUTLASS_FLAGS, CUTLASS_INCLUDE, RESOURCES_2X, Unit, nvcc_recipe
from codegen.hip import hip_recipe
from codegen.plan import GeneratedFile, RequestError
from codegen.project import nearest
from codegen.rendering import template
from codegen.target import ElementwiseTarget, GeneratedTarget, OutputKind, RowwiseTarget

OUTPUTS = (OutputKind.SHARED, OutputKind.STATIC, OutputKind.OBJECT)
SIZES_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
STORAGE = {"fp16": "unsigned short", "bf16": "unsigned short", "fp32": "float"}
INVALID_PROBLEM = -4
"""What all generated kernels return where sizes cannot be; CUTLASS's too."""
INTERFACE = 1
"""Version of the interface that NAME_describe tells of."""
MOST_DIMENSIONS = 8
_LINKAGE = '__attribute__((weak, visibility("hidden"))) '
"""Of a kernel in a target: it may be linked beside the same one of another target."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of a kernel."""

    name: str
    dtype: str
    axes: tuple[int, ...]
    """Its dimensions, as numbers of the target's sizes; -1 where it has size 1 and is broadcast."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and how a target calls it."""

    name: str
    """What makes it another kernel, as a C identifier: equal kernels of two targets are one."""
    template: str
    values: Mapping[str, object]
    """Of the template, but for those that say the vendor."""
    formula: tuple[str, ...]
    shape: tuple[int, ...]
    inputs: tuple[Operand, ...]
    output: Operand
    operands: tuple[str, ...]
    """The inputs in the order in which the kernel takes them."""
    groups: tuple[tuple[int, ...], ...]
    """The sizes that the kernel takes: each the product of some of the target's."""
    numbers_after: tuple[tuple[str, str], ...] = ()
    """Type and value, in C: what the kernel takes behind its sizes."""
    derived: tuple[tuple[int, int, int, int], ...] = ()
    """Sizes that others make: number, that of the other, `add`, `divide`: (other + add) // divide + 1."""
    cutlass: bool = False
    """Of CUTLASS, whose headers it needs; NVIDIA's GPUs only, and it checks itself whether sizes are too large."""


def plan_plain(context: Context, target: GeneratedTarget, kernel: Kernel) -> Part:
    """The share of the plan of a target. Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    hip = not kernel.cutlass and is_hip(context, target)
    files = generated(target.name, kernel, context.build, hip=hip)
    if hip:
        recipe, notices = hip_recipe(context, target, generated_options(target, shared=(files[1].path,)))
    elif kernel.cutlass:
        archs = nvcc.normalised(asked_archs(context, target, amd=False), target.where)
        recipe, notices = nvcc_recipe(
            context,
            target,
            generated_options(target, include=(CUTLASS_INCLUDE,), flags=CUTLASS_FLAGS),
            roots=(("cutlass", context.toolchains.cutlass()),),
            units=(Unit(files[0].path, archs), Unit(files[1].path, archs, RESOURCES_2X)),
        )
    else:
        recipe, notices = nvcc_recipe(context, target, generated_options(target))
    sources = tuple(file.path for file in files)
    return plan_compiled(
        context, target, recipe, sources, target.output, target.output_name, files=files, notices=notices
    )


def generated(name: str, kernel: Kernel, build: str, *, hip: bool) -> tuple[GeneratedFile, GeneratedFile]:
    """The sources: the entry point, then the kernel. Equal specs give equal bytes.

    Args:
        name: of the target.
        build: folder of all outputs.
    """
    symbol = re.sub(r"\W", "_", name)
    sizes = [(f"d{number}", size) for number, size in enumerate(kernel.shape)]
    shown = ", ".join(str(size or f"d{number}") for number, size in enumerate(kernel.shape))
    entry = template("plain_entry.j2").render(
        title=f"{name}: {kernel.formula[0]}",
        formula=kernel.formula,
        symbol=symbol,
        kernel=kernel.name,
        description=json.dumps(json.dumps(describe(kernel), separators=(",", ":"))),
        sizes=sizes,
        sizes_said=f"The sizes are those of [{shown}].",
        inputs=[operand.name for operand in kernel.inputs],
        output=kernel.output.name,
        operands=[f"in_{operand}" for operand in kernel.operands],
        groups=[" * ".join(f"d{number}" for number in group) or "1" for group in kernel.groups],
        numbers_after=kernel.numbers_after,
        cutlass=kernel.cutlass,
        **_vendor(hip),
    )
    return (
        # Before a kernel of CUTLASS it is host code alone, which the host compiler is done with at once.
        GeneratedFile(
            path=f"{build}/{name}/gen/{symbol}.{'cpp' if kernel.cutlass else _ending(hip)}", content=entry.encode()
        ),
        kernel_file(kernel, build, hip=hip),
    )


def kernel_file(kernel: Kernel, build: str, *, hip: bool) -> GeneratedFile:
    """The source of a kernel, which says nothing of a target."""
    read = {operand.dtype for operand in kernel.inputs}
    text = template(kernel.template).render(
        title=kernel.name,
        symbol=kernel.name,
        linkage=_LINKAGE,
        types=sorted({*read, kernel.output.dtype}),
        read=sorted(read),
        written=[kernel.output.dtype],
        storage=STORAGE,
        **kernel.values,
        **_vendor(hip),
    )
    return GeneratedFile(path=f"{build}/kernels/{kernel.name}.{_ending(hip)}", content=text.encode())


def _vendor(hip: bool) -> dict[str, object]:
    return {"hip": hip, "api": "hip" if hip else "cuda", "invalid_problem": INVALID_PROBLEM}


def _ending(hip: bool) -> str:
    return "hip" if hip else "cu"


def describe(kernel: Kernel) -> dict[str, object]:
    """What NAME_describe says."""

    def said(operand: Operand) -> dict[str, object]:
        return {"name": operand.name, "dtype": operand.dtype, "axes": list(operand.axes)}

    return {
        "interface": INTERFACE,
        "shape": list(kernel.shape),
        "inputs": [said(operand) for operand in kernel.inputs],
        "output": said(kernel.output),
        **({"derived": kernel.derived} if kernel.derived else {}),
    }


def runs(shape: tuple[int, ...], together: Callable[[int], object]) -> tuple[tuple[int, ...], ...]:
    """Neighbouring dimensions that `together` treats alike, as one."""
    found: list[tuple[int, ...]] = []
    for number in range(len(shape)):
        if found and together(found[-1][0]) == together(number):
            found[-1] = (*found[-1], number)
        else:
            found.append((number,))
    return tuple(found)


def wrong(target: GeneratedTarget, message: str, next_step: str) -> RequestError:
    return RequestError("bad-kernel", f'target "{target.name}": {message}', file=target.where, next_step=next_step)


def choice(target: GeneratedTarget, key: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value. Raises RequestError where it is none of those allowed."""
    if value not in allowed:
        raise wrong(target, f'"{value}" is no {key}{nearest(value, allowed)}', "possible: " + ", ".join(allowed))
    return value


def check_shape(target: RowwiseTarget | ElementwiseTarget) -> None:
    """Raises RequestError: no dimension, too many, or one that cannot be."""
    if not 1 <= len(target.shape) <= MOST_DIMENSIONS:
        raise wrong(
            target, f"shape has {len(target.shape)} dimensions", f"1 to {MOST_DIMENSIONS}, as in shape = [0, 4096]"
        )
    if min(target.shape) < 0:
        raise wrong(target, f"shape {list(target.shape)} has a negative size", "0 stands for: known at run time")


def is_hip(context: Context, target: GeneratedTarget) -> bool:
    """Which vendor a target is for: its own architectures say it, else the request's. Raises RequestError."""
    named = target.arch or context.request.arch
    vendors = {arch.startswith("gfx") for arch in named}
    if len(vendors) > 1:
        asked = "has" if target.arch else "names no architecture, and is asked for"
        once = "" if target.arch else "name one vendor's with --arch, or "
        raise RequestError(
            "bad-arch",
            f'target "{target.name}" {asked} architectures of two vendors: {", ".join(named)}',
            file=target.where,
            next_step=f"{once}give each vendor a target of its own; equal kernels have one text",
        )
    hip = vendors == {True}
    needs_arch(target, asked_archs(context, target, amd=hip), "sm_80")
    return hip
