"""Generator of kind "rowwise": softmax, layer norm and RMS norm over the last axes; sums, means and maxima over any
axes.

Knows the meaning of a target and its template, not how it is compiled (`array_kernel`). For the last axes, neighbouring
threads process one row; a reduction over other axes follows the array's strides.
"""

from __future__ import annotations

from codegen.arrays.array_kernel import SIZES_BYTES, Kernel, Operand, check_shape, choice, plan_plain, runs, wrong
from codegen.context import Context, Part
from codegen.project.target import RowwiseTarget

REDUCTIONS = ("sum", "mean", "max")
PARAMETERS = {"softmax": (), "layer_norm": ("weight", "bias"), "rms_norm": ("weight",)}
OPS = (*PARAMETERS, *REDUCTIONS)


def plan_rowwise(context: Context, target: RowwiseTarget) -> Part:
    """Return the part of a target of kind "rowwise". Raises ProbesNeeded and RequestError."""
    return plan_plain(context, target, rowwise_kernel(target))


def rowwise_kernel(target: RowwiseTarget) -> Kernel:
    """Return the kernel of a target. Raises RequestError: "bad-kernel", its keys do not fit together."""
    op = choice(target, "op", target.op, OPS)
    dtype = choice(target, "dtype", target.dtype, tuple(SIZES_BYTES))
    output = choice(target, "output_dtype", target.output_dtype or dtype, tuple(SIZES_BYTES))
    check_shape(target)
    if not 0 < target.eps < 1:
        raise wrong(target, f"eps = {target.eps} is not possible", "use a small number above 0, such as 1e-5")
    parameters = _parameters(target)
    rank = len(target.shape)
    axes = _axes(target)
    kept = tuple(number for number in range(rank) if number not in axes)
    last = axes == tuple(range(rank - len(axes), rank))
    if op not in REDUCTIONS and not last:
        raise wrong(
            target,
            f"{op} over axes {list(target.axes)}",
            "use the last axes, as in axes = [-1], and transpose the array",
        )
    reduces = op in REDUCTIONS
    x = Operand("x", dtype, tuple(range(rank)))
    y = Operand("y", output, kept if reduces else x.axes)
    over = ", ".join(str(axis) for axis in axes)
    formula = f"y = {op}({', '.join(('x', *parameters))}) over axes {over}; x is {dtype}, y {output}"
    words: tuple[str, ...] = (op, dtype, output)
    groups: tuple[tuple[int, ...], ...] = (kept, axes)
    values: dict[str, object] = {"op": op, "dtype": dtype, "output": output}
    if last:
        values |= {"reduces": reduces, "norm": not reduces and op != "softmax", "parameters": list(parameters)}
        # A reduction writes one element per row, so the width of its output does not matter.
        values |= {"wide": 16 // max(SIZES_BYTES[dtype], SIZES_BYTES[dtype if reduces else output])}
        words = (*words, *parameters)
    else:
        groups = runs(target.shape, lambda number: number in axes)
        over_kept = [group[0] in kept for group in groups]
        values |= {
            "groups": len(groups),
            "kept": [number for number, is_kept in enumerate(over_kept) if is_kept],
            "reduced": [number for number, is_kept in enumerate(over_kept) if not is_kept],
        }
        words = (*words, "".join("k" if is_kept else "r" for is_kept in over_kept))
    return Kernel(
        name="_".join(words),
        template="rowwise.j2" if last else "reduce.j2",
        values=values,
        formula=(formula,),
        shape=target.shape,
        inputs=(x, *(Operand(name, dtype, axes) for name in parameters)),
        output=y,
        operands=("x", *parameters),
        groups=groups,
        numbers_after=(("float", f"{target.eps!r}f"),) if values.get("norm") else (),
    )


def _parameters(target: RowwiseTarget) -> tuple[str, ...]:
    possible = PARAMETERS.get(target.op, ())
    wanted = {"weight": target.weight, "bias": target.bias}
    for name, value in wanted.items():
        if value and name not in possible:
            raise wrong(target, f"{target.op} has no {name}", f"remove `{name}`")
    return tuple(name for name in possible if wanted[name] is not False)


def _axes(target: RowwiseTarget) -> tuple[int, ...]:
    """Return the axes counted from the first, each once."""
    rank = len(target.shape)
    for axis in target.axes:
        if not -rank <= axis < rank:
            raise wrong(target, f"axes has {axis}, and shape {rank} dimensions", f"-{rank} to {rank - 1}")
    found = sorted({axis % rank for axis in target.axes})
    if len(found) != len(target.axes) or not found:
        what = "names an axis twice" if found else "is empty"
        raise wrong(target, f"axes {what}", "for example axes = [-1]")
    return tuple(found)
