"""Generator of kind "elementwise": makes one kernel of an expression over arrays, with numpy's broadcasting.

Knows shapes and the offset of each array's elements, neither the language of expressions (`expression`) nor how kernels
are compiled (`array_kernel`). A kernel's text does not contain the names of inputs: the same expression with other
names is the same kernel.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from codegen.arrays.array_kernel import (
    MOST_DIMENSIONS,
    SIZES_BYTES,
    Kernel,
    Operand,
    check_shape,
    choice,
    plan_plain,
    runs,
    wrong,
)
from codegen.arrays.expression import FUNCTIONS, parse
from codegen.context import Context, Part
from codegen.project.target import ElementwiseTarget

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MOST_INPUTS = 32


@dataclass(frozen=True, slots=True)
class _Input:
    """An input, in the form that the template needs."""

    number: int
    dtype: str
    offset: str
    """Offset of its element, or of the first element of its pack."""
    wide: bool
    """Neighbouring results use neighbouring elements of this input."""


def plan_elementwise(context: Context, target: ElementwiseTarget) -> Part:
    """Return the part of a target of kind "elementwise". Raises ProbesNeeded and RequestError."""
    return plan_plain(context, target, elementwise_kernel(target))


def elementwise_kernel(target: ElementwiseTarget) -> Kernel:
    """Return the kernel of a target. Raises RequestError: "bad-kernel", its keys do not fit together."""
    check_shape(target)
    operands = _operands(target)
    output = choice(
        target, "output_dtype", target.output_dtype or next(iter(operands.values())).dtype, tuple(SIZES_BYTES)
    )
    expression = parse(target.expression, tuple(operands), lambda what, next_step: wrong(target, what, next_step))
    for name in operands:
        if name not in expression.names:
            raise wrong(target, f'expression does not use the input "{name}"', "use it, or remove it from `inputs`")
    used = [operands[name] for name in expression.names]
    groups = runs(target.shape, lambda number: tuple(number in operand.axes for operand in used))
    inputs = [_input(number, operand, groups) for number, operand in enumerate(used)]
    sizes = [SIZES_BYTES[output], *(SIZES_BYTES[item.dtype] for item in inputs if item.wide)]
    values: dict[str, object] = {
        "expression": expression.text,
        "functions": list(expression.functions),
        "inputs": inputs,
        "output": output,
        "groups": len(groups),
        "wide": 16 // max(sizes),
    }
    # Everything that determines the text.
    identity = repr((expression.text, [(item.dtype, item.offset, item.wide) for item in inputs], output, len(groups)))
    return Kernel(
        name=f"elementwise_{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}",
        template="elementwise.j2",
        values=values,
        formula=(f"y = {' '.join(target.expression.split())}", _types_said(operands, output)),
        shape=target.shape,
        inputs=tuple(operands.values()),
        output=Operand("y", output, tuple(range(len(target.shape)))),
        operands=expression.names,
        groups=groups,
    )


def _types_said(operands: dict[str, Operand], output: str) -> str:
    return ", ".join((*(f"{operand.name} is {operand.dtype}" for operand in operands.values()), f"y is {output}"))


def _input(number: int, operand: Operand, groups: tuple[tuple[int, ...], ...]) -> _Input:
    has = [group[0] in operand.axes for group in groups]
    if all(has):
        return _Input(number, operand.dtype, "at", True)
    offset = "0"
    for index, there in enumerate(has):
        if there:
            offset = f"p{index}" if offset == "0" else f"({offset} * g{index} + p{index})"
    return _Input(number, operand.dtype, offset, has[-1])


def _operands(target: ElementwiseTarget) -> dict[str, Operand]:
    if not 1 <= len(target.inputs) <= _MOST_INPUTS:
        raise wrong(target, f"{len(target.inputs)} inputs", f'1 to {_MOST_INPUTS}, as in inputs = {{ x = "fp16" }}')
    for name in target.shapes:
        if name not in target.inputs:
            raise wrong(target, f'shapes has "{name}", which is not an input', "inputs: " + ", ".join(target.inputs))
    found: dict[str, Operand] = {}
    for name, dtype in target.inputs.items():
        if not _NAME.fullmatch(name):
            raise wrong(target, f'"{name}" is not a valid name of an input', "use a letter, then letters, digits and _")
        if name in FUNCTIONS:
            raise wrong(target, f'the input "{name}" has the name of a function', "give it another name")
        choice(target, f'type for "{name}"', dtype, tuple(SIZES_BYTES))
        found[name] = Operand(name, dtype, _axes(target, name))
    return found


def _axes(target: ElementwiseTarget, name: str) -> tuple[int, ...]:
    """Return an input's axes by numpy's rules: aligned at the last dimension; size 1 and missing dimensions are
    broadcast."""
    rank = len(target.shape)
    own = target.shapes.get(name, target.shape)
    if len(own) > min(rank, MOST_DIMENSIONS):
        raise wrong(
            target, f'shapes: "{name}" has {len(own)} dimensions, shape {rank}', "give at most as many as shape"
        )
    if name not in target.shapes:
        return tuple(range(rank))
    axes = []
    for number, size in enumerate(own, rank - len(own)):
        whole = target.shape[number]
        if size not in (1, whole):
            raise wrong(
                target,
                f'shapes: "{name}" has {size} where shape has {whole}',
                f"1 or {whole}" + (" (0: known at run time only)" if not whole or not size else ""),
            )
        axes.append(number if size == whole else -1)
    return tuple(axes)
