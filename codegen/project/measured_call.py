"""The table [target.NAME.measure]: how a kernel of the user's own is called to be checked and timed.

Knows the keys; `codegen.tuning.own_problem` knows what they mean for each kind.
"""

from __future__ import annotations

import msgspec


class CallArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An argument of a call: a tensor if it has a shape, otherwise a number."""

    shape: tuple[int | str, ...] | None = None
    """Numbers, names of sizes, and expressions of them ("n * 4")."""
    dtype: str = ""
    """torch's name of the type. By default the one in a Triton kernel's signature; for others float32, and int32 for
    whole numbers."""
    output: bool = False
    """The kernel writes the tensor. Before that it holds NaN, or the smallest number of its type."""
    in_place: bool = False
    """The kernel reads and writes the tensor."""
    high: int = 100
    """Upper bound (exclusive) of random whole numbers."""
    value: int | float | str = 0
    """A number, or an expression of sizes."""


class MeasuredCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a kernel is called, and what it has to compute."""

    reference: str
    """"FILE.py:FUNCTION", which takes the inputs and returns the outputs, or "FILE.so:FUNCTION", which takes what the
    kernel takes; relative to the project."""
    arguments: dict[str, CallArgument | int | float | str]
    """By name, in the order in which a library's function takes them. A text is an expression of sizes."""
    sizes: dict[str, int] = {}
    """Names for `arguments`, `grid` and `operations`."""
    grid: tuple[int | str, ...] = ()
    """Triton only: up to three numbers of programs, or expressions of sizes and of the kernel's constants."""
    symbol: str = ""
    """Libraries only: name of the function, which is `extern "C"`. Its last argument is a CUDA stream."""
    tolerance: float | None = None
    """Largest relative error; by default what suits the types of the outputs."""
    operations: str = ""
    """Number of operations, an expression of sizes: for TFLOP/s."""
