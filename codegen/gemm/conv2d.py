"""Generator of kind "conv2d": a convolution of NHWC arrays with bias and activation, as an implicit GEMM of CUTLASS
2.x.

Knows the sizes of a convolution. Types, tiles and alignments are those of its GEMM, with n = filters and k = channels
(`convolution`, `spec`); `decision` chooses the kernel as for a GEMM; `array_kernel` calls and compiles it as other
kernels. Stride, padding and dilation are not part of a kernel's text.
"""

from __future__ import annotations

from dataclasses import fields

import msgspec

from codegen.arrays.array_kernel import Kernel, Operand, choice, plan_plain, wrong
from codegen.compiled.recipe import asked_archs, needs_arch
from codegen.compilers import nvcc
from codegen.context import Context, Part
from codegen.gemm.convolution import conv_of, implicit_gemm, line
from codegen.gemm.decision import chosen_for_all, unmeasured
from codegen.gemm.spec import EPILOGUES, kernel_for, output_type
from codegen.project.target import Conv2dTarget

MULTIPLE_OF = {"fp16": 2, "bf16": 2, "tf32": 1}
"""Type of x and weight -> divisor of the number of channels: cp.async copies at least 4 bytes."""
POSSIBLE = tuple(name for name in EPILOGUES if not name.endswith(("add", "multiply")))
_MOST_TAPS = 32
"""CUTLASS has one mask bit for each row and column of the kernel."""


def plan_conv2d(context: Context, target: Conv2dTarget) -> Part:
    """Return the part of a target of kind "conv2d". Raises ProbesNeeded and RequestError."""
    asked = asked_archs(context, target, amd=False)
    needs_arch(target, asked, "sm_80")
    archs = nvcc.normalised(asked, target.at("arch"))
    conv2d_kernel(target, archs)  # checks the target's own keys first
    found = chosen_for_all(context, implicit_gemm(target), archs)
    part = plan_plain(context, target, conv2d_kernel(conv_of(found.target), archs))
    return msgspec.structs.replace(
        part,
        notices=(*part.notices, *found.notices),
        read=tuple(dict.fromkeys((*part.read, *found.read))),
        unmeasured=unmeasured(target.name, archs, found.choices),
    )


def conv2d_kernel(target: Conv2dTarget, archs: tuple[str, ...]) -> Kernel:
    """Return the kernel of a target.

    Args:
        archs: architectures that the kernel is compiled for.

    Raises:
        RequestError: "bad-kernel", its keys do not fit together; "bad-arch".
    """
    dtype = choice(target, "dtype", target.dtype, tuple(MULTIPLE_OF))
    choice(target, "epilogue", target.epilogue, POSSIBLE)
    _check_sizes(target)
    gemm = implicit_gemm(target)
    one = kernel_for(gemm, "sm_80")
    for arch in archs:
        kernel_for(gemm, arch)  # one text serves all architectures, but their shared memory differs
    n, height, width, channels = target.shape
    rows, columns = (line(target, axis) for axis in (0, 1))
    sizes = (n, height, width, channels, target.filters, *target.kernel, rows.of(height), columns.of(width))
    held = "fp32" if dtype == "tf32" else dtype
    inputs = [Operand("x", held, (0, 1, 2, 3)), Operand("weight", held, (4, 5, 6, 3))]
    output = output_type(gemm)
    if one.bias:
        inputs.append(Operand("bias", output, (4,)))
    result = "conv2d(x, weight)" + (" + bias" if one.bias else "")
    if one.activation:
        result = f"{one.activation.lower()}({result})"
    return Kernel(
        name=one.name,
        template="conv2d.cu.j2",
        values={field.name: getattr(one, field.name) for field in fields(one)},
        formula=(
            f"y = {result}; x and weight are {dtype}, y {output}",
            f"stride {list(target.stride)}, padding {list(target.padding)}, dilation {list(target.dilation)}",
        ),
        shape=sizes,
        inputs=tuple(inputs),
        output=Operand("y", output, (0, 7, 8, 4)),
        operands=tuple(operand.name for operand in inputs),
        groups=tuple((number,) for number in range(len(sizes))),
        numbers_after=tuple(("int", str(value)) for value in (*target.stride, *target.padding, *target.dilation)),
        derived=((7, 1, rows.add, rows.divide), (8, 2, columns.add, columns.divide)),
        cutlass=True,
    )


def _check_sizes(target: Conv2dTarget) -> None:
    """Raise RequestError for an invalid size."""
    if min(target.shape) < 0:
        raise wrong(
            target, f"shape {list(target.shape)} has a negative size", "use 0 for a size that is known at run time"
        )
    channels, multiple = target.shape[3], MULTIPLE_OF[target.dtype]
    if not channels or channels % multiple:
        what = f"{channels} channels (the last of shape) are not possible for {target.dtype}"
        raise wrong(
            target, what, f"use a multiple of {multiple}: pad with zeros" if channels else "give the number of channels"
        )
    if target.filters < 1:
        raise wrong(target, f"filters = {target.filters} is not possible", "give a number of 1 or more")
    for name, least, most in (
        ("kernel", 1, _MOST_TAPS),
        ("stride", 1, 1 << 15),
        ("padding", 0, 1 << 15),
        ("dilation", 1, 1 << 15),
    ):
        found = getattr(target, name)
        if min(found) < least or max(found) > most:
            raise wrong(target, f"{name} = {list(found)} is not possible", f"give two numbers from {least} to {most}")
    for axis, name in ((0, "height"), (1, "width")):
        size = target.shape[1 + axis]
        if size and size + line(target, axis).add < 0:
            raise wrong(target, f"the kernel is larger than the {name} {size} with its padding", "increase the padding")
