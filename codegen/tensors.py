"""Tensors of a model and their sizes, of which some are known at run time only.

Knows no operation. A size is a number, or the name of one that has a smallest and a largest value.
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
    """An array of a model: given to it, or made by one of its operations."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {shown(self.shape)}"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that are known at run time only, in their order."""

    ranges: Mapping[str, tuple[int, int]]

    def most(self, dims: Iterable[Dim]) -> int:
        """The largest product of these."""
        return prod(dim if isinstance(dim, int) else self.ranges[dim][1] for dim in dims)

    def most_bytes(self, tensor: Tensor) -> int:
        return SIZES_BYTES[tensor.dtype] * self.most(tensor.shape)

    def number(self, name: str) -> int:
        return list(self.ranges).index(name)

    def in_c(self, dims: Iterable[Dim], array: str) -> str:
        """Their product as an expression.

        Args:
            array: holds the sizes of a run.
        """
        dims = tuple(dims)
        known = prod(dim for dim in dims if isinstance(dim, int))
        words = [f"{array}[{self.number(dim)}]" for dim in dims if isinstance(dim, str)]
        return " * ".join(([f"{known}LL"] if known != 1 or not words else []) + words)


def shown(shape: Iterable[Dim]) -> str:
    """ "[batch, 64]"."""
    return f"[{', '.join(map(str, shape))}]"
