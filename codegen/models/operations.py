"""One operation of a model: derives its launch and its result from its keys and its input tensors.

Sizes and types come from the tensors; the kind checks its own keys. Knows no other operation of the model and no
kernel's text: an operation has the same kernel as a target with its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from codegen.arrays.array_kernel import Kernel
from codegen.arrays.elementwise import elementwise_kernel
from codegen.arrays.rowwise import OPS, PARAMETERS, rowwise_kernel
from codegen.errors import nearest
from codegen.gemm.conv2d import conv2d_kernel
from codegen.gemm.spec import also_takes, output_type
from codegen.models.operation_keys import Asked, check_count, converted
from codegen.models.tensors import Dim, Sizes, Tensor, shown
from codegen.models.views import View, is_view, read_view
from codegen.project.target import Conv2dTarget, ElementwiseTarget, GemmTarget, GeneratedTarget, RowwiseTarget

_LARGEST = 2**31 - 1
"""Largest size that a GEMM takes."""
TargetT = TypeVar("TargetT", bound=GeneratedTarget)


@dataclass(frozen=True, slots=True)
class PlainLaunch:
    """A kernel of arrays."""

    kernel: Kernel
    operands: tuple[str, ...]
    """Tensors in the order in which the kernel takes them."""
    groups: tuple[tuple[Dim, ...], ...]
    """The sizes that the kernel takes, each a product."""
    conv: Conv2dTarget | None = None
    """The convolution, if the kernel is one."""


@dataclass(frozen=True, slots=True)
class GemmLaunch:
    """A GEMM, whose kernel depends on the architecture."""

    target: GemmTarget
    operands: tuple[str, ...]
    """A and B, then the bias and C if it has them."""
    bias: bool
    c: bool
    sizes: tuple[tuple[Dim, ...], ...]
    """m, n, k and, if batched, the number of problems; each a product."""


@dataclass(frozen=True, slots=True)
class Op:
    """An operation."""

    output: Tensor
    inputs: tuple[str, ...]
    launch: PlainLaunch | GemmLaunch | View
    what: str
    """Description for readers of the generated source."""

    @property
    def name(self) -> str:
        return self.output.name

    @property
    def wants_alignment(self) -> bool:
        """The kernel is CUTLASS's and reads and writes 16 bytes at once."""
        return isinstance(self.launch, GemmLaunch) or (
            isinstance(self.launch, PlainLaunch) and self.launch.kernel.cutlass
        )


def read_op(op: Asked, given: tuple[Tensor, ...], sizes: Sizes, archs: tuple[str, ...]) -> Op:
    """Return an operation with its launch and its result.

    Args:
        given: the operation's inputs.
        archs: NVIDIA architectures that the model is compiled for; () for AMD.

    Raises:
        RequestError: "bad-model", a type or shape does not fit; and the errors of its kind.
    """
    if op.kind in ("gemm", "conv2d") and not archs:
        raise op.wrong(f"{op.kind} is for NVIDIA's GPUs only", "remove the gfx architectures", "bad-arch")
    if is_view(op):
        tensor, view = read_view(op, given, sizes)
        return Op(output=tensor, inputs=op.inputs, launch=view, what=op.kind)
    if op.kind == "gemm":
        return _gemm(op, given, sizes)
    if op.kind == "conv2d":
        return _conv2d(op, given, archs)
    return _rowwise(op, given) if op.kind == "rowwise" else _elementwise(op, given)


def _gemm(op: Asked, given: tuple[Tensor, ...], sizes: Sizes) -> Op:
    dtype = op.keys.get("dtype", given[0].dtype)
    target = _target(op, GemmTarget, dtype=dtype)
    bias, c = also_takes(target)
    check_count(op, given, ("A", "B", *(("bias",) if bias else ()), *(("C",) if c else ())))
    held, result = "fp32" if dtype == "tf32" else str(dtype), output_type(target)
    a, b = given[:2]
    if min(len(a.shape), len(b.shape)) < 2:
        raise op.wrong(f"A is {a}, B {b}", "give each two dimensions or more")
    rows, columns = target.layout[:1] == "r", target.layout[1:2] == "r"
    batched = len(b.shape) > 2
    batch = a.shape[:-2] if batched else ()
    # Rows of A are contiguous across all leading dimensions.
    lead = a.shape[len(batch) : -1] if rows else a.shape[len(batch) + 1 :]
    k = a.shape[-1] if rows else a.shape[len(batch)]
    if not rows and len(a.shape) != len(batch) + 2:
        raise op.wrong(
            f'A is {a}, in the layout "{target.layout}"', "use two dimensions, k first, after those of a batch"
        )
    n = b.shape[-1] if columns else b.shape[-2]
    wanted = [
        ("A", held, a.shape),
        ("B", held, (*batch, k, n) if columns else (*batch, n, k)),
        *((("bias", result, (n,)),) if bias else ()),
        *((("C", result, (*batch, *lead, n)),) if c else ()),
    ]
    _check(op, given, wanted)
    products = (tuple(lead), (n,), (k,), *((tuple(batch),) if batched else ()))
    for what, dims in zip(("m", "n", "k", "batch"), products, strict=False):
        if sizes.most(dims) > _LARGEST:
            raise op.wrong(f"{what} may be {sizes.most(dims)}", f"lower the largest of its sizes to at most {_LARGEST}")
    fixed = {
        name: sizes.most(dims) if all(isinstance(dim, int) for dim in dims) else 0
        for name, dims in zip(("m", "n", "k"), products, strict=False)
    }
    return Op(
        output=Tensor(op.name, result, (*batch, *lead, n)),
        inputs=op.inputs,
        launch=GemmLaunch(msgspec.structs.replace(target, batched=batched, **fixed), op.inputs, bias, c, products),
        what=f"gemm {target.layout} {target.epilogue}",
    )


def _conv2d(op: Asked, given: tuple[Tensor, ...], archs: tuple[str, ...]) -> Op:
    epilogue = str(op.keys.get("epilogue", "none"))
    check_count(op, given, ("x", "weight", *(("bias",) if epilogue.startswith("bias") else ())))
    x, weight = given[:2]
    for tensor, known in ((x, x.shape[1:]), (weight, weight.shape)):
        if len(tensor.shape) != 4 or not all(isinstance(dim, int) for dim in known):
            raise op.wrong(
                f'"{tensor.name}" is {tensor}', "use four dimensions; all but the number of images must be known"
            )
    target = _target(
        op,
        Conv2dTarget,
        **{"dtype": x.dtype, **op.keys},
        shape=_fixed(x.shape),
        filters=weight.shape[0],
        kernel=weight.shape[1:3],
    )
    kernel = conv2d_kernel(target, archs)
    made = _plain(op, given, kernel, (x.shape[0], *kernel.shape[1:]))
    assert isinstance(made.launch, PlainLaunch)
    return replace(made, launch=replace(made.launch, conv=target))


def _rowwise(op: Asked, given: tuple[Tensor, ...]) -> Op:
    what = str(op.keys.get("op", ""))
    if what not in OPS:
        raise op.wrong(
            f'"{what}" is no op{nearest(what, OPS)}' if what else "it has no `op`", "choose one of: " + ", ".join(OPS)
        )
    parameters = [name for name in PARAMETERS.get(what, ()) if op.keys.get(name) is not False]
    check_count(op, given, ("x", *parameters))
    target = _target(op, RowwiseTarget, dtype=given[0].dtype, shape=_fixed(given[0].shape))
    return _plain(op, given, rowwise_kernel(target), given[0].shape)


def _elementwise(op: Asked, given: tuple[Tensor, ...]) -> Op:
    if len(set(op.inputs)) != len(op.inputs):
        raise op.wrong(
            "`inputs` names a tensor twice", "name each tensor once: the expression may use it several times"
        )
    rank = max(len(tensor.shape) for tensor in given)
    shape: list[Dim] = []
    for number in range(rank):
        found = {tensor.shape[number - rank] for tensor in given if len(tensor.shape) >= rank - number} - {1}
        if len(found) > 1:
            sides = ", ".join(f"{tensor.name} {shown(tensor.shape)}" for tensor in given)
            raise op.wrong(
                f"shapes do not fit together: {sides}", "make sizes equal or 1, counted from the last dimension"
            )
        shape.append(found.pop() if found else 1)
    target = _target(
        op,
        ElementwiseTarget,
        **op.keys,
        inputs={tensor.name: tensor.dtype for tensor in given},
        shape=_fixed(shape),
        shapes={tensor.name: _fixed(tensor.shape) for tensor in given if tensor.shape != tuple(shape)},
    )
    return _plain(op, given, elementwise_kernel(target), tuple(shape))


def _plain(op: Asked, given: tuple[Tensor, ...], kernel: Kernel, dims: tuple[Dim, ...]) -> Op:
    """Args: dims: the sizes that the kernel's arrays refer to by index."""

    def shape(axes: tuple[int, ...]) -> tuple[Dim, ...]:
        return tuple(1 if axis < 0 else dims[axis] for axis in axes)

    _check(op, given, [(operand.name, operand.dtype, shape(operand.axes)) for operand in kernel.inputs])
    by_operand = dict(zip((operand.name for operand in kernel.inputs), op.inputs, strict=True))
    return Op(
        output=Tensor(op.name, kernel.output.dtype, shape(kernel.output.axes)),
        inputs=op.inputs,
        launch=PlainLaunch(
            kernel=kernel,
            operands=tuple(by_operand[name] for name in kernel.operands),
            groups=tuple(tuple(dims[number] for number in group) for group in kernel.groups),
        ),
        what=" ".join(
            str(op.keys.get({"rowwise": "op", "elementwise": "expression"}.get(op.kind, ""), op.kind)).split()
        ),
    )


def _target(op: Asked, struct: type[TargetT], **made: object) -> TargetT:
    """Return the operation as a separate target of its kind."""
    table = {**op.keys, **made, "name": op.title, "where": op.where}
    return converted(op, struct, table)


def _fixed(shape: tuple[Dim, ...] | list[Dim]) -> tuple[int, ...]:
    """Return a shape in a target's form: 0 for a size that is known only at run time."""
    return tuple(dim if isinstance(dim, int) else 0 for dim in shape)


def _check(op: Asked, given: tuple[Tensor, ...], wanted: list[tuple[str, str, tuple[Dim, ...]]]) -> None:
    """Check the types and shapes of inputs against what the operation takes."""
    for tensor, (what, dtype, shape) in zip(given, wanted, strict=True):
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            said = f'"{tensor.name}"' + (f" ({what})" if what != tensor.name else "")
            raise op.wrong(f"{said} is {tensor}", f"it must be {dtype} {shown(shape)}")
