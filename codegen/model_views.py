"""Operations of a model that launch nothing: their tensors are the memory of others, or a part of it.

Knows shapes, and which tensor lies in which; not where that one lies (`model_memory`), and no kernel. A reshape, and a
permute that moves dimensions of size 1 alone, are all of their input; a slice is some of its rows; what a concat joins
is written where it stands in the result. All tensors are contiguous: nothing else can be had without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

import msgspec

from codegen.model_asked import VIEWS, Asked, check_count, converted
from codegen.plan import RequestError
from codegen.tensors import MOST_DIMENSIONS, Dim, Sizes, Tensor, shown

_COPY = 'an op of kind "elementwise" makes a copy: expression = "{}"'


@dataclass(frozen=True, slots=True)
class View:
    """What takes the place of a launch."""

    joins: bool = False
    """Its inputs lie in its tensor; else that lies in its only input."""
    whole: bool = False
    """It is all of its input."""
    offsets: tuple[tuple[Dim, ...], ...] = ()
    """Elements before it in the input, or before each input in it: a product."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a tensor lies: in that of another one, which lies in none."""

    root: str
    offsets: tuple[tuple[Dim, ...], ...] = ()
    """Elements before it: the sum of these products."""


class _Reshape(msgspec.Struct, frozen=True):
    shape: tuple[int | str, ...]


class _Permute(msgspec.Struct, frozen=True):
    axes: tuple[int, ...]


class _Slice(msgspec.Struct, frozen=True):
    start: int = 0
    stop: int | None = None
    together: int | None = None
    """Rows that the parts of a split have."""


class _Split(msgspec.Struct, frozen=True):
    sizes: tuple[int, ...]


def is_view(op: Asked) -> bool:
    return op.kind in VIEWS


def expanded(op: Asked) -> tuple[Asked, ...]:
    """A split as the slices that it is: NAME_0, NAME_1, and so on. Raises RequestError: "bad-model"."""
    if op.kind != "split":
        return (op,)
    rows = converted(op, _Split, op.keys).sizes
    if not rows or min(rows) < 1:
        raise op.wrong(f"sizes = {list(rows)} is not possible", "the rows of each part, as in sizes = [64, 64]")
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
    """The tensor of an operation, and where it lies. Raises RequestError: "bad-model"."""
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
            "as many elements, with the same names of sizes; one number may be -1: what is left",
        )
    made = tuple(have // known if dim == -1 else dim for dim in shape)
    return Tensor(op.name, x.dtype, made), View(whole=True)


def _permute(op: Asked, x: Tensor, sizes: Sizes) -> tuple[Tensor, View]:
    axes = converted(op, _Permute, op.keys).axes
    if sorted(axes) != list(range(len(x.shape))):
        raise op.wrong(f"axes = {list(axes)} is not possible for {x}", f"each of 0 to {len(x.shape) - 1} once")
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
        raise op.wrong(f'"{x.name}" is {x}, and the parts have {keys.together} rows', "`sizes` are all rows together")
    stop = keys.stop if keys.stop is not None else rows
    if not isinstance(stop, int) or not 0 <= keys.start < stop <= least:
        raise op.wrong(
            f'"{x.name}" is {x}: rows {keys.start} to {stop} are not there',
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
    """Where all tensors of a model lie. An output is a root, whatever it is a view of.

    Args:
        given: inputs and constants.
        views: operation -> its inputs, and what it is where it launches nothing; producers before consumers.
        wrong: makes an error of an operation, its message and the next step.

    Raises:
        RequestError: two places for one tensor, or none that the model may write.
    """
    given = set(given)
    same: dict[str, str] = {name: name for name in given}
    """Tensor -> the first one that has all of its memory."""
    within: dict[str, tuple[str, tuple[Dim, ...]]] = {}
    """Of those -> which one it is a part of, and the elements before it."""
    for name, (inputs, view) in views.items():
        same[name] = same[inputs[0]] if view is not None and view.whole else name
        if view is None or view.whole:
            continue
        if not view.joins:
            within[name] = same[inputs[0]], view.offsets[0]
            continue
        for one, before in zip(inputs, view.offsets, strict=True):
            if same[one] in given:
                raise wrong(name, f'"{one}" is given to the model: it does not lie in "{name}"', _COPY.format(one))
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
    """Whether what lies there is as well aligned as its root, whatever the sizes that are known at run time only."""
    numbers = (prod(dim for dim in product if isinstance(dim, int)) for product in home.offsets)
    return all(number * size_bytes % alignment_bytes == 0 for number in numbers)
