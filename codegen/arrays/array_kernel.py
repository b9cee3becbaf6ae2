"""Generates kernels over arrays: an entry point that checks sizes, and the kernel, which targets may share.

Knows how kernels are called and compiled, not what they compute (`rowwise`, `elementwise`, `conv2d`). A plain kernel
has one text for both vendors; a target's architectures select the vendor. A kernel's text and path do not depend on its
target.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from codegen.compiled.cuda import CUTLASS_FLAGS, CUTLASS_INCLUDE, RESOURCES_2X, Unit, nvcc_recipe
from codegen.compiled.hip import hip_recipe
from codegen.compiled.recipe import asked_archs, generated_options, needs_arch, needs_output, plan_compiled
from codegen.compilers import nvcc
from codegen.context import Context, Part
from codegen.errors import RequestError, nearest
from codegen.plan import GeneratedFile
from codegen.project.target import ElementwiseTarget, GeneratedTarget, OutputKind, RowwiseTarget
from codegen.rendering import template

OUTPUTS = (OutputKind.SHARED, OutputKind.STATIC, OutputKind.OBJECT)
SIZES_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
STORAGE = {"fp16": "unsigned short", "bf16": "unsigned short", "fp32": "float"}
INVALID_PROBLEM = -4
"""Status that all generated kernels, CUTLASS's included, return for invalid sizes."""
INTERFACE = 1
"""Version of the interface that NAME_describe reports."""
MOST_DIMENSIONS = 8
_STANDALONE_SIZE = 256
"""A size that a target leaves open, in its standalone test."""
_LINKAGE = '__attribute__((weak, visibility("hidden"))) '
"""Linkage of a kernel: a program may link the same kernel from two targets."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of a kernel."""

    name: str
    dtype: str
    axes: tuple[int, ...]
    """Its dimensions, as indices of the target's sizes; -1 for a broadcast dimension of size 1."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and the way a target calls it."""

    name: str
    """Identity of the kernel as a C identifier: equal kernels of two targets have one name."""
    template: str
    values: Mapping[str, object]
    """The template's variables, except those for the vendor."""
    formula: tuple[str, ...]
    shape: tuple[int, ...]
    inputs: tuple[Operand, ...]
    output: Operand
    operands: tuple[str, ...]
    """The inputs in the order in which the kernel takes them."""
    groups: tuple[tuple[int, ...], ...]
    """The sizes that the kernel takes, each a product of some of the target's sizes."""
    numbers_after: tuple[tuple[str, str], ...] = ()
    """Arguments after the sizes: type and value, in C."""
    derived: tuple[tuple[int, int, int, int], ...] = ()
    """Sizes that are computed from others: index, index of the other, `add`, `divide`: (other + add) // divide + 1."""
    cutlass: bool = False
    """The kernel uses CUTLASS: it needs CUTLASS's headers, runs on NVIDIA's GPUs only, and itself rejects sizes that
    are too large."""


def plan_plain(context: Context, target: GeneratedTarget, kernel: Kernel) -> Part:
    """Return the part of a target. Raises ProbesNeeded and RequestError."""
    needs_output(target, target.output, OUTPUTS)
    hip = not kernel.cutlass and is_hip(context, target)
    files = generated(target.name, kernel, context.build, hip=hip)
    if hip:
        recipe, notices = hip_recipe(context, target, generated_options(target, shared=(files[1].path,)))
    elif kernel.cutlass:
        archs = nvcc.normalised(asked_archs(context, target, amd=False), target.at("arch"))
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
    part = plan_compiled(
        context, target, recipe, sources, target.output, target.output_name, files=files, notices=notices
    )
    if not context.variables.is_on("AIT_ENABLE_STANDALONE"):
        return part
    # The program compiles the same sources again as those of the library: a hit.
    test = standalone(target.name, kernel, context.build, hip=hip)
    if kernel.cutlass:
        recipe, _ = nvcc_recipe(
            context,
            target,
            generated_options(target, include=(CUTLASS_INCLUDE,), flags=CUTLASS_FLAGS),
            roots=(("cutlass", context.toolchains.cutlass()),),
            units=(Unit(test.path, archs[:1]), Unit(files[0].path, archs), Unit(files[1].path, archs, RESOURCES_2X)),
        )
    named = msgspec.structs.replace(target, name=f"{target.name}-test", deps=())
    program = plan_compiled(context, named, recipe, (test.path, *sources), OutputKind.EXECUTABLE, "", files=(test,))
    return part.beside(program)


def generated(name: str, kernel: Kernel, build: str, *, hip: bool) -> tuple[GeneratedFile, GeneratedFile]:
    """Return the sources: the entry point, then the kernel. Equal specs give equal bytes.

    Args:
        name: the target's name.
        build: the folder of all outputs.
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
        # The entry point of a CUTLASS kernel is host code only, which the host compiler compiles fast.
        GeneratedFile(
            path=f"{build}/{name}/gen/{symbol}.{'cpp' if kernel.cutlass else _ending(hip)}", content=entry.encode()
        ),
        kernel_file(kernel, build, hip=hip),
    )


def standalone(name: str, kernel: Kernel, build: str, *, hip: bool) -> GeneratedFile:
    """Return the source of a target's test and benchmark (AIT_ENABLE_STANDALONE).

    Args:
        build: the folder of all outputs.
    """
    symbol = re.sub(r"\W", "_", name)
    derived = {number for number, *_ in kernel.derived}
    text = template("plain_test.j2").render(
        symbol=symbol,
        inputs=kernel.inputs,
        output=kernel.output,
        sizes=[size or _STANDALONE_SIZE for size in kernel.shape],
        asked=[(f"d{n}", n) for n, size in enumerate(kernel.shape) if not size and n not in derived],
        derived=kernel.derived,
        # An expression of the user's may divide by zero.
        finite=kernel.template != "elementwise.j2",
        **_vendor(hip),
    )
    return GeneratedFile(path=f"{build}/{name}-test/gen/{symbol}_test.{_ending(hip)}", content=text.encode())


def kernel_file(kernel: Kernel, build: str, *, hip: bool) -> GeneratedFile:
    """Return the source of a kernel, which does not depend on a target."""
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
    """Return the content of NAME_describe."""

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
    """Join neighbouring dimensions for which `together` gives the same value."""
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
    """Return the value. Raises RequestError if it is not allowed."""
    if value not in allowed:
        raise wrong(
            target, f'"{value}" is not a valid {key}{nearest(value, allowed)}', "choose one of: " + ", ".join(allowed)
        )
    return value


def check_shape(target: RowwiseTarget | ElementwiseTarget) -> None:
    """Raise RequestError for a shape without dimensions, with too many, or with a negative size."""
    if not 1 <= len(target.shape) <= MOST_DIMENSIONS:
        raise wrong(
            target, f"shape has {len(target.shape)} dimensions", f"give 1 to {MOST_DIMENSIONS}, as in shape = [0, 4096]"
        )
    if min(target.shape) < 0:
        raise wrong(
            target, f"shape {list(target.shape)} has a negative size", "use 0 for a size that is known at run time"
        )


def is_hip(context: Context, target: GeneratedTarget) -> bool:
    """Tell whether a target is for AMD, by its own architectures, else by the request's. Raises RequestError."""
    named = target.arch or context.request.arch
    vendors = {arch.startswith("gfx") for arch in named}
    if len(vendors) > 1:
        asked = "has" if target.arch else "names no architecture, and the request names"
        once = "" if target.arch else "name one vendor's with --arch, or "
        raise RequestError(
            "bad-arch",
            f'target "{target.name}" {asked} architectures of two vendors: {", ".join(named)}',
            file=target.where,
            next_step=f"{once}define one target per vendor; equal kernels share their text",
        )
    hip = vendors == {True}
    needs_arch(target, asked_archs(context, target, amd=hip), "sm_80")
    return hip
