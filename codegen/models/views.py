"""Operations of a model that launch nothing: their tensors share the memory of others.

Knows shapes, and which tensor lies inside which; neither the address of the outer one (`workspace`) nor kernels. A
reshape, and a permute that only moves dimensions of size 1, share all of their input; a slice shares some rows; the
inputs of a concat are written directly into its result. All tensors are contiguous: any other view would need a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

import msgspec

from codegen.errors import RequestError
from codegen.models.operation_keys import VIEWS, Asked, check_count, converted
from codegen.models.tensors import MOST_DIMENSIONS, Dim, Sizes, Tensor, shown

_COPY = 'an op of kind "elementwise" makes a copy: expression = "{}"'


@dataclass(frozen=True, slots=True)
class View:
    """The counterpart of a launch for an operation without a kernel."""

    joins: bool = False
    """The inputs lie inside the result; otherwise the result lies inside its only input."""
    whole: bool = False
    """The result is its whole input."""
    offsets: tuple[tuple[Dim, ...], ...] = ()
    """Number of elements before the result in the input, or before each input in the result: a product."""


@dataclass(frozen=True, slots=True)
class Home:
    """The place of a tensor inside a root, which lies in no other tensor."""

    root: str
    offsets: tuple[tuple[Dim, ...], ...] = ()
    """Number of elements before it: the sum of these products."""


class _Reshape(msgspec.Struct, frozen=True):
    shape: tuple[int | str, ...]


class _Permute(msgspec.Struct, frozen=True):
    axes: tuple[int, ...]


class _Slice(msgspec.Struct, frozen=True):
    start: int = 0
    stop: int | None = None
    together: int | None = None
    """Total number of rows of a split's parts."""


class _Split(msgspec.Struct, frozen=True):
    sizes: tuple[int, ...]


def is_view(op: Asked) -> bool:
    return op.kind in VIEWS


def expanded(op: Asked) -> tuple[Asked, ...]:
    """Return a split as its slices: NAME_0, NAME_1, and so on. Raises RequestError: "bad-model"."""
    if op.kind != "split":
        return (op,)
    rows = converted(op, _Split, op.keys).sizes
    if not rows or min(rows) < 1:
        raise op.wrong(f"sizes = {list(rows)} is not possible", "give the rows of each part, as in sizes = [64, 64]")
    ends = tuple(accumulate(rows))
    return tuple(
        replace(
            op,
            name=f"{op.name}_{number}",
            title=f"{op.title}_{number}",
            kind="slice",
            keys={"start": end - size, "stop": end, "together": ends[-1]},
        )
        for number, (size, end) in enumerate(zip(rows, ends, strict=True))
    )


def read_view(op: Asked, given: tuple[Tensor, ...], sizes: Sizes) -> tuple[Tensor, View]:
    """Return the tensor of an operation, and its view. Raises RequestError: "bad-model"."""
    if op.kind == "concat":
        return _concat(op, given)
    check_count(op, given, ("x",))
    return {"reshape": _reshape, "permute": _permute, "slice": _slice}[op.kind](op, given[0], sizes)


def _reshape(op: Asked, x: Tensor, sizes: Sizes) -> tuple[Tensor, View]:
    shape = converted(op, _Reshape, op.keys).shape
    named, wanted = (sorted(dim for dim in dims if isinstance(dim, str)) for dims in (x.shape, shape))
    numbers = [dim for dim in shape if isinstance(dim, int)]
    have, known = prod(dim for dim in x.shape if isinstance(dim, int)), prod(size for size in numbers if size > 0)
    left = numbers.count(-1)
    fits = named == wanted and 1 <= len(shape) <= MOST_DIMENSIONS and all(size > 0 or size == -1 for size in numbers)
    if not fits or left > 1 or (have % known if left else have != known):
        raise op.wrong(
            f'"{x.name}" is {x}, which cannot be {shown(shape)}',
            "keep the number of elements and the names of sizes; one number may be -1, for the rest",
        )
    made = tuple(have // known if dim == -1 else dim for dim in shape)
    return Tensor(op.name, x.dtype, made), View(whole=True)


def _permute(op: Asked, x: Tensor, sizes: Sizes) -> tuple[Tensor, View]:
    axes = converted(op, _Permute, op.keys).axes
    if sorted(axes) != list(range(len(x.shape))):
        raise op.wrong(f"axes = {list(axes)} is not possible for {x}", f"name each of 0 to {len(x.shape) - 1} once")
    moved = [axis for axis in axes if x.shape[axis] != 1]
    if moved != sorted(moved):
        raise op.wrong(
            f'"{x.name}" is {x}: axes = {list(axes)} would have to move its elements',
            "a permute moves dimensions of size 1 only; a GEMM takes transposed operands as its `layout` says",
        )
    return Tensor(op.name, x.dtype, tuple(x.shape[axis] for axis in axes)), View(whole=True)


def _slice(op: Asked, x: Tensor, sizes: Sizes) -> tuple[Tensor, View]:
    keys = converted(op, _Slice, op.keys)
    rows = x.shape[0]
    least = rows if isinstance(rows, int) else sizes.ranges[rows][0]
    if keys.together is not None and keys.together != rows:
        raise op.wrong(
            f'"{x.name}" is {x}, and the parts have {keys.together} rows', "make the sum of `sizes` the number of rows"
        )
    stop = keys.stop if keys.stop is not None else rows
    if not isinstance(stop, int) or not 0 <= keys.start < stop <= least:
        raise op.wrong(
            f'"{x.name}" is {x}: it has no rows {keys.start} to {stop}',
            f"start and stop, which is not in it any more: from 0 to {least}"
            + ("" if isinstance(rows, int) else f", the smallest {rows}"),
        )
    return Tensor(op.name, x.dtype, (stop - keys.start, *x.shape[1:])), View(offsets=((keys.start, *x.shape[1:]),))


def _concat(op: Asked, given: tuple[Tensor, ...]) -> tuple[Tensor, View]:
    first = given[0]
    rows: list[int] = []
    for tensor in given:
        count = tensor.shape[0]
        if (tensor.dtype, tensor.shape[1:]) != (first.dtype, first.shape[1:]) or not isinstance(count, int):
            raise op.wrong(
                f'"{tensor.name}" is {tensor}', f"{first.dtype} [rows, ...], rows a number, the rest as {first.name}"
            )
        rows.append(count)
    ends = tuple(accumulate(rows))
    before = tuple((end - count, *first.shape[1:]) for count, end in zip(rows, ends, strict=True))
    return Tensor(op.name, first.dtype, (ends[-1], *first.shape[1:])), View(joins=True, offsets=before)


def homes(
    given: Iterable[str],
    views: Mapping[str, tuple[tuple[str, ...], View | None]],
    outputs: Iterable[str],
    wrong: Callable[[str, str, str], RequestError],
) -> dict[str, Home]:
    """Return the places of all tensors of a model. An output is always a root.

    Args:
        given: the model's inputs and constants.
        views: operation -> its inputs, and its view if it launches nothing; producers before consumers.
        wrong: makes an error from an operation, a message and a next step.

    Raises:
        RequestError: a tensor would have two places, or no place that the model may write.
    """
    given = set(given)
    same: dict[str, str] = {name: name for name in given}
    """Tensor -> the first tensor with the same memory."""
    within: dict[str, tuple[str, tuple[Dim, ...]]] = {}
    """First tensor -> the tensor that contains it, and the number of elements before it."""
    for name, (inputs, view) in views.items():
        same[name] = same[inputs[0]] if view is not None and view.whole else name
        if view is None or view.whole:
            continue
        if not view.joins:
            within[name] = same[inputs[0]], view.offsets[0]
            continue
        for one, before in zip(inputs, view.offsets, strict=True):
            if same[one] in given:
                raise wrong(
                    name,
                    f'"{one}" is an input or a constant of the model: it cannot lie in "{name}"',
                    _COPY.format(one),
                )
            if same[one] in within:
                raise wrong(name, f'"{one}" lies in "{within[same[one]][0]}" already', _COPY.format(one))
            within[same[one]] = name, before
    roots: dict[str, str] = {}
    for name in outputs:
        mine = same[name]
        if mine in given:
            raise wrong(name, f'the output "{name}" would be "{mine}", which is given', _COPY.format(mine))
        if mine in within:
            raise wrong(name, f'the output "{name}" would lie in "{within[mine][0]}"', _COPY.format(name))
        if mine in roots:
            raise wrong(name, f'the outputs "{roots[mine]}" and "{name}" would be one array', _COPY.format(name))
        roots[mine] = name

    def home(name: str) -> Home:
        at, offsets = same[name], []
        while at in within:
            at, before = within[at]
            offsets.append(before)
        return Home(roots.get(at, at), tuple(one for one in offsets if 0 not in one))

    return {name: home(name) for name in same}


def is_aligned(home: Home, size_bytes: int, alignment_bytes: int) -> bool:
    """Tell whether a place is as well aligned as its root for all sizes that are known only at run time."""
    numbers = (prod(dim for dim in product if isinstance(dim, int)) for product in home.offsets)
    return all(number * size_bytes % alignment_bytes == 0 for number in numbers)
