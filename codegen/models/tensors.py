"""Tensors of a model and their sizes, some of which are known only at run time.

Knows no operation. A size is a number, or a name with a smallest and a largest value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

Dim = int | str
MOST_DIMENSIONS = 8
SIZES_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "int8": 1, "int32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array of a model: an input, a constant, or the result of an operation."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {shown(self.shape)}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that are known only at run time, in order."""

    ranges: Mapping[str, tuple[int, int]]

    def most(self, dims: Iterable[Dim]) -> int:
        """Return the largest product of these sizes."""
        return prod(dim if isinstance(dim, int) else self.ranges[dim][1] for dim in dims)

    def most_bytes(self, tensor: Tensor) -> int:
        return SIZES_BYTES[tensor.dtype] * self.most(tensor.shape)

    def number(self, name: str) -> int:
        return list(self.ranges).index(name)

    def in_c(self, dims: Iterable[Dim], array: str) -> str:
        """Return the product of these sizes as a C expression.

        Args:
            array: name of the array with the sizes of a run.
        """
        dims = tuple(dims)
        known = prod(dim for dim in dims if isinstance(dim, int))
        words = [f"{array}[{self.number(dim)}]" for dim in dims if isinstance(dim, str)]
        return " * ".join(([f"{known}LL"] if known != 1 or not words else []) + words)


def shown(shape: Iterable[Dim]) -> str:
    """Return a shape for messages: "[batch, 64]"."""
    return f"[{', '.join(map(str, shape))}]"
