"""The meaning of a model target: its tensors by name, and its operations in an order in which they can run.

Knows how tensors and operations depend on each other; neither single operations (`operations`) nor the places of
tensors (`workspace`).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from codegen.errors import RequestError, nearest
from codegen.models.operation_keys import Asked, asked_op
from codegen.models.operations import Op, read_op
from codegen.models.tensors import MOST_DIMENSIONS, SIZES_BYTES, Sizes, Tensor
from codegen.models.views import Home, View, expanded, homes, is_aligned
from codegen.project.target import ModelTarget, ModelTensor

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}")
_SIZE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MOST_OPS = 4096
_LARGEST = 2**31 - 1
_MOST_BYTES = 1 << 46
"""Most bytes of one tensor: more than any GPU can address."""
ALIGNMENT_BYTES = 16
"""Alignment that CUTLASS's kernels need."""
_Wrong = Callable[[str, str], RequestError]


@dataclass(frozen=True, slots=True)
class Model:
    """A valid model: the types and shapes of its tensors fit."""

    sizes: Sizes
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    """Operations: producers before consumers, otherwise as declared."""
    outputs: tuple[Tensor, ...]
    homes: Mapping[str, Home]
    """Tensor -> its place."""

    @property
    def launched(self) -> tuple[Op, ...]:
        """The operations that have a kernel."""
        return tuple(op for op in self.ops if not isinstance(op.launch, View))


def read_model(target: ModelTarget, archs: tuple[str, ...]) -> Model:
    """Return the model of a target.

    Args:
        archs: NVIDIA architectures that it is compiled for; () for AMD.

    Raises:
        RequestError: "bad-model"; "bad-kernel", "bad-gemm" and "bad-arch" of an operation.
    """

    def wrong(message: str, next_step: str) -> RequestError:
        return RequestError("bad-model", f'target "{target.name}": {message}', file=target.where, next_step=next_step)

    _check_sizes(target, wrong)
    sizes = Sizes(target.sizes)
    inputs = _declared(target.inputs, "input", sizes, wrong)
    constants = _declared(target.constants, "constant", sizes, wrong)
    given = {tensor.name: tensor for tensor in inputs}
    constants_names = {tensor.name for tensor in constants}
    for tensor in constants:
        if tensor.name in given:
            raise wrong(f'"{tensor.name}" is an input and a constant', "give one of them another name")
        if any(isinstance(dim, str) for dim in tensor.shape):
            raise wrong(
                f'constant "{tensor.name}" has a size that is known only at run time',
                "make it an input, or fix the size",
            )
        given[tensor.name] = tensor
    if not 1 <= len(target.ops) <= _MOST_OPS:
        raise wrong(
            f"it has {len(target.ops)} ops", f"define 1 to {_MOST_OPS}, each as a table [target.{target.name}.ops.NAME]"
        )
    asked = {}
    for name, table in target.ops.items():
        op = asked_op(target.name, name, table, target.places.get(name, target.where))
        if not _NAME.fullmatch(name):
            raise op.wrong(
                f'"{name}" is not a valid name of a tensor', "use letters, digits, _ and .; a letter or _ first"
            )
        for one in expanded(op):
            if one.name in given or one.name in asked or (one.name != name and one.name in target.ops):
                what = "a constant" if one.name in constants_names else "an input" if one.name in given else "an op"
                raise op.wrong(f'"{one.name}" is also {what}', "give the op another name")
            asked[one.name] = one
    for op in asked.values():
        for name in op.inputs:
            if name not in given and name not in asked:
                known = (*given, *asked)
                raise op.wrong(f'there is no tensor "{name}"{nearest(name, known)}', "tensors: " + ", ".join(known))
    tensors, ops = dict(given), []
    for name in _ordered(asked):
        found = read_op(asked[name], tuple(tensors[one] for one in asked[name].inputs), sizes, archs)
        if sizes.most_bytes(found.output) > _MOST_BYTES:
            raise asked[name].wrong(f"its result {found.output} may be too large", "lower the largest sizes")
        tensors[name] = found.output
        ops.append(found)
    outputs = _outputs(target, asked, wrong)
    used = {name for op in ops for name in op.inputs} | set(outputs)
    for name in tensors:
        # Unused parts of a split cost nothing.
        if name not in used and (name in given or name in target.ops):
            what = "the op" if name in asked else "the input" if name in target.inputs else "the constant"
            raise wrong(f'nothing uses {what} "{name}"', "use it, name it in `outputs`, or remove it" if name in asked
                        else "use it, or remove it")  # fmt: skip
    for name in sizes.ranges:
        if not any(name in tensor.shape for tensor in inputs):
            raise wrong(f'no input has the size "{name}"', "name it in an input's shape, or remove it from `sizes`")
    places = homes(
        given,
        {op.name: (op.inputs, op.launch if isinstance(op.launch, View) else None) for op in ops},
        outputs,
        lambda name, message, next_step: asked[name].wrong(message, next_step),
    )
    for each in ops:
        for name in (*each.inputs, each.name) if each.wants_alignment else ():
            if not is_aligned(places[name], SIZES_BYTES[tensors[name].dtype], ALIGNMENT_BYTES):
                raise asked[each.name].wrong(
                    f'"{name}" lies in "{places[name].root}" but is not aligned to {ALIGNMENT_BYTES} bytes',
                    "its kernel needs this alignment: cut or join at other rows, or copy it with an elementwise op",
                )
    return Model(sizes, inputs, constants, tuple(ops), tuple(tensors[name] for name in outputs), places)


def _check_sizes(target: ModelTarget, wrong: _Wrong) -> None:
    for name, (least, most) in target.sizes.items():
        if not _SIZE.fullmatch(name):
            raise wrong(f'"{name}" is not a valid name of a size', "use letters, digits and _; a letter or _ first")
        if not 1 <= least <= most <= _LARGEST:
            raise wrong(
                f'size "{name}" goes from {least} to {most}',
                f"give a smallest and a largest value from 1 to {_LARGEST}",
            )


def _declared(tensors: Mapping[str, ModelTensor], what: str, sizes: Sizes, wrong: _Wrong) -> tuple[Tensor, ...]:
    found = []
    for name, said in tensors.items():
        if not _NAME.fullmatch(name):
            raise wrong(
                f'"{name}" is not a valid name of a tensor', "use letters, digits, _ and .; a letter or _ first"
            )
        if said.dtype not in SIZES_BYTES:
            known = tuple(SIZES_BYTES)
            raise wrong(
                f'{what} "{name}": "{said.dtype}" is not a dtype{nearest(said.dtype, known)}',
                "choose one of: " + ", ".join(known),
            )
        if not 1 <= len(said.shape) <= MOST_DIMENSIONS:
            raise wrong(f'{what} "{name}" has {len(said.shape)} dimensions', f"1 to {MOST_DIMENSIONS}")
        for dim in said.shape:
            if isinstance(dim, str) and dim not in sizes.ranges:
                raise wrong(
                    f'{what} "{name}": there is no size "{dim}"{nearest(dim, sizes.ranges)}',
                    f"name it in `sizes` with its smallest and largest, as in sizes = {{ {dim} = [1, 64] }}",
                )
            if isinstance(dim, int) and not 1 <= dim <= _LARGEST:
                raise wrong(
                    f'{what} "{name}" has the size {dim}',
                    "use 1 or more; name a size that is known only at run time in `sizes`",
                )
        tensor = Tensor(name, said.dtype, said.shape)
        if sizes.most_bytes(tensor) > _MOST_BYTES:
            raise wrong(f'{what} "{name}" is {tensor}, which may be too large', "lower its largest sizes")
        found.append(tensor)
    return tuple(found)


def _outputs(target: ModelTarget, ops: Iterable[str], wrong: _Wrong) -> tuple[str, ...]:
    if not target.outputs:
        raise wrong("it has no outputs", 'name some ops, as in outputs = ["y"]')
    if len(set(target.outputs)) != len(target.outputs):
        raise wrong("`outputs` names a tensor twice", "name each tensor once")
    ops = tuple(ops)
    for name in target.outputs:
        if name not in ops:
            given = name in target.inputs or name in target.constants
            what = (
                f'output "{name}" is an input or a constant of the model'
                if given
                else f'there is no op "{name}"{nearest(name, ops)}'
            )
            raise wrong(what, "outputs are ops: " + ", ".join(ops))
    return target.outputs


def _ordered(asked: Mapping[str, Asked]) -> list[str]:
    """Return the names of operations in order. Raises RequestError: "bad-model", a cycle."""
    place = {name: number for number, name in enumerate(asked)}
    names = list(asked)
    waiting = {name: len({one for one in op.inputs if one in asked}) for name, op in asked.items()}
    readers: dict[str, list[str]] = {name: [] for name in asked}
    for name, op in asked.items():
        for one in dict.fromkeys(op.inputs):
            if one in asked:
                readers[one].append(name)
    ready = [place[name] for name, count in waiting.items() if not count]
    found: list[str] = []
    while ready:
        name = names[heapq.heappop(ready)]
        found.append(name)
        for reader in readers[name]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, place[reader])
    if len(found) < len(asked):
        done = set(found)
        # Every remaining operation waits for another remaining one, so following them leads to a cycle.
        name = next(name for name in names if name not in done)
        chain: list[str] = []
        while name not in chain:
            chain.append(name)
            name = next(one for one in asked[name].inputs if one in asked and one not in done)
        cycle = [*chain[chain.index(name) :], name]
        raise asked[name].wrong(f"it depends on itself: {' <- '.join(cycle)}", "break the cycle")
    return found
