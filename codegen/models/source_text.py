"""Writes a model's own sources: its interface in C, the driver that launches kernels, the standalone test.

Knows C and the places of tensors, not what operations compute. Equal specs give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from codegen.arrays.array_kernel import INTERFACE
from codegen.gemm.gemm import newest_first
from codegen.gemm.kernel import GemmKernel
from codegen.models.operations import GemmLaunch, Op, PlainLaunch
from codegen.models.spec import Model
from codegen.models.tensors import SIZES_BYTES, Dim, Tensor
from codegen.models.views import Home, View
from codegen.models.workspace import ALIGNMENT_BYTES, Life, grouped, packed
from codegen.rendering import template


@dataclass(frozen=True, slots=True)
class Streams:
    """How independent operations run."""

    extra: int = 0
    """Number of streams in addition to the caller's."""
    most: int = 1
    """Most operations that run in parallel."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A model with its chosen kernels; `texts_of` makes it."""

    name: str
    symbol: str
    model: Model
    kernels: Mapping[str, tuple[GemmKernel, ...]]
    """Name of a GEMM operation -> its kernels, one per architecture."""
    hip: bool
    ops: tuple[Op, ...]
    """The operations in launch order."""
    groups: tuple[int, ...]
    """Sizes of the groups of operations that run in parallel."""
    streams: int
    places: Mapping[str, str]
    """Tensor -> its address, in C."""
    tensor_bytes: int
    """Total bytes of the tensors in the workspace."""
    picks: Mapping[tuple[GemmKernel, ...], int]
    """Kernels among which the driver chooses by device -> their number."""

    def header(self) -> bytes:
        return template("model.h.j2").render(**self._values()).encode()

    def driver(self) -> bytes:
        values = self._values()
        return (
            template("model.j2")
            .render(
                **values,
                arrays=[*values["inputs"], *values["outputs"]],  # type: ignore[misc]
                prototypes=list(dict.fromkeys(line for op in self.ops for line in self._prototypes(op))),
                picks=[
                    {
                        "kernels": newest_first(found),
                        "both": found[0].both,
                        "batched": found[0].batched,
                        "scratch": _needs_scratch(found),
                    }
                    for found in self.picks
                ],
                scratch=[call for op in self.ops for call in self._scratch(op)],
                ops=[
                    {
                        "name": op.name,
                        "said": f"{op.output}: {op.what} of {', '.join(op.inputs)}",
                        "call": self._call(op),
                        "scratch": isinstance(op.launch, GemmLaunch),
                    }
                    for op in self.ops
                ],
                groups=self.groups,
                tensor_bytes=self.tensor_bytes,
                description=json.dumps(json.dumps(self.description(), separators=(",", ":"))),
            )
            .encode()
        )

    def standalone(self) -> bytes:
        return template("model_test.j2").render(finite=True, **self._values()).encode()

    def description(self) -> dict[str, object]:
        """The content of NAME_describe."""

        def said(tensors: Iterable[Tensor]) -> list[dict[str, object]]:
            return [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in tensors]

        return {
            "interface": INTERFACE,
            "kind": "model",
            "sizes": {name: list(ends) for name, ends in self.model.sizes.ranges.items()},
            "constants": said(self.model.constants),
            "inputs": said(self.model.inputs),
            "outputs": said(self.model.outputs),
        }

    def _values(self) -> dict[str, object]:
        sizes = self.model.sizes

        def shaped(tensors: Iterable[Tensor]) -> list[_Shown]:
            return [
                _Shown(one, [d if isinstance(d, int) else -1 - sizes.number(d) for d in one.shape]) for one in tensors
            ]

        count = len(self.ops)
        return {
            "title": f"{self.name}: a model of {count} operation{'s'[: count != 1]}",
            "symbol": self.symbol,
            "macro": self.symbol.upper(),
            "hip": self.hip,
            "api": "hip" if self.hip else "cuda",
            "alignment_bytes": ALIGNMENT_BYTES,
            "sizes": [(name, *ends) for name, ends in sizes.ranges.items()],
            "constants": shaped(self.model.constants),
            "inputs": shaped(self.model.inputs),
            "outputs": shaped(self.model.outputs),
            "streams": self.streams,
        }

    def _prototypes(self, op: Op) -> list[str]:
        assert not isinstance(op.launch, View)
        if isinstance(op.launch, PlainLaunch):
            kernel = op.launch.kernel
            words = ["const void*"] * len(op.launch.operands) + ["void*"] + ["long long"] * len(op.launch.groups)
            words += [kind for kind, _ in kernel.numbers_after]
            return [f"int {kernel.name}_run({', '.join((*words, 'Stream'))})"]
        sizes = ", ".join(["int"] * len(op.launch.sizes))
        kernels = self.kernels[op.name]
        found = [f"size_t {one.name}_workspace_bytes({sizes})" for one in kernels if _needs_scratch(kernels)]
        for one in kernels:
            pointers = ", ".join(["const void*"] * (4 if one.both else 3) + ["void*"])
            found.append(f"int {one.name}_run({pointers}, {sizes}, float, float, void*, Stream)")
        return found

    def _call(self, op: Op) -> str:
        assert not isinstance(op.launch, View)
        result = self.places[op.name]
        given = [self.places[name] for name in op.launch.operands]
        if isinstance(op.launch, PlainLaunch):
            words = [*given, result, *(self._product(group) for group in op.launch.groups)]
            words += [value for _, value in op.launch.kernel.numbers_after]
            return f"{op.launch.kernel.name}_run({', '.join((*words, 'stream'))})"
        launch = op.launch
        a, b, *more = given
        # As in a GEMM's kernels: the bias takes the place of C if there is no C.
        third = [more[-1], more[0]] if launch.bias and launch.c else [*more, *(["nullptr"] if not more else [])]
        sizes = [f"static_cast<int>({self._product(dims)})" for dims in launch.sizes]
        beta = "1.0f" if launch.c else "0.0f"
        words = ["run", a, b, *third, result, *sizes, beta, "scratch", "stream"]
        return f"pick{self.picks[self.kernels[op.name]]}({', '.join(words)})"

    def _scratch(self, op: Op) -> list[str]:
        if not isinstance(op.launch, GemmLaunch) or not _needs_scratch(self.kernels[op.name]):
            return []
        most = ", ".join(str(self.model.sizes.most(dims)) for dims in op.launch.sizes)
        return [f"pick{self.picks[self.kernels[op.name]]}_bytes(found, {most})"]

    def _product(self, dims: Iterable[Dim]) -> str:
        return self.model.sizes.in_c(dims, "run.sizes")


def _needs_scratch(kernels: Iterable[GemmKernel]) -> bool:
    """Tell whether a kernel may need scratch memory: CUTLASS 2.x kernels that split k do."""
    return any(kernel.three or kernel.split_k > 1 for kernel in kernels)


def texts_of(
    name: str,
    symbol: str,
    model: Model,
    kernels: Mapping[str, tuple[GemmKernel, ...]],
    asked: Streams,
    *,
    hip: bool,
) -> Texts:
    """Return a model's texts. Decides when its operations run and where its tensors lie."""
    made = {op.name: op for op in model.launched}
    writers: dict[str, tuple[str, ...]] = {}
    """Tensor -> the launches that write it."""
    for op in model.ops:
        through = tuple(dict.fromkeys(one for name in op.inputs for one in writers.get(name, ())))
        writers[op.name] = (op.name,) if op.name in made else through
    needs = {
        op.name: tuple(dict.fromkeys(one for name in op.inputs for one in writers.get(name, ())))
        for op in model.launched
    }
    groups = grouped(needs, asked.most if asked.extra else 1)
    when = {one: number for number, group in enumerate(groups) for one in group}
    used: dict[str, list[int]] = {}
    """Tensor that contains others -> the groups that write or read part of it."""
    for op in model.launched:
        for name in (op.name, *op.inputs):
            used.setdefault(model.homes[name].root, []).append(when[op.name])
    places = {one.name: f"run.constants[{number}]" for number, one in enumerate(model.constants)}
    places |= {one.name: f"run.arrays[{number}]" for number, one in enumerate((*model.inputs, *model.outputs))}
    offsets, tensor_bytes = packed(
        Life(op.name, model.sizes.most_bytes(op.output), min(used[op.name]), max(used[op.name]))
        for op in model.ops
        if op.name not in places and model.homes[op.name].root == op.name
    )
    places |= {one: f"run.workspace + {offset}" for one, offset in offsets.items()}
    constants = {one.name for one in model.constants}
    places |= {
        op.name: _within(model, op.output, places[home.root], home, is_constant=home.root in constants)
        for op in model.ops
        if (home := model.homes[op.name]).root != op.name
    }
    return Texts(
        name=name,
        symbol=symbol,
        model=model,
        kernels=kernels,
        hip=hip,
        ops=tuple(made[one] for group in groups for one in group),
        groups=tuple(map(len, groups)),
        streams=min(1 + asked.extra, max(map(len, groups))),
        places=places,
        tensor_bytes=tensor_bytes,
        picks={found: number for number, found in enumerate(dict.fromkeys(kernels.values()))},
    )


def _within(model: Model, tensor: Tensor, root: str, home: Home, *, is_constant: bool) -> str:
    """Return the address of a tensor inside another one, in C."""
    if not home.offsets:
        return root
    size = SIZES_BYTES[tensor.dtype]
    base = root if root.startswith("run.workspace") else f"static_cast<{'const ' * is_constant}char*>({root})"
    return " + ".join([base, *(model.sizes.in_c((size, *product), "run.sizes") for product in home.offsets)])


@dataclass(frozen=True, slots=True)
class _Shown:
    """A tensor in the form that templates need."""

    tensor: Tensor
    shape: list[int]
    """A negative entry x refers to the size with index -1 - x."""

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    def __str__(self) -> str:
        return f"{self.tensor.name}: {self.tensor}"
