"""A GEMM's kernel for one architecture, ready for its template, and its name.

Knows no rules: `spec` decides which kernels are valid.
"""

from __future__ import annotations

from dataclasses import dataclass

Triple = tuple[int, int, int]
SCHEDULES = ("cooperative", "pingpong")
ARCH_100 = "sm_100a"
"""Compile-only: one kernel per type, which was never run or measured."""
ARCH_AMD = "gfx"
"""Stands for all of AMD's architectures: their kernels share one text."""


@dataclass(frozen=True, slots=True)
class GemmKernel:
    """One kernel for one architecture, ready for its template."""

    arch: str
    three: bool
    """The kernel uses CUTLASS 3.x."""
    element_a: str
    element_d: str
    element_accumulator: str
    element_compute: str
    a_row: bool
    b_row: bool
    bias: bool
    activation: str
    combine: str
    """Operation that joins the result with C: "", "plus" or "multiplies"."""
    batched: bool
    grouped: bool
    split_k: int
    fp8: bool
    tile: Triple
    warp: Triple
    cluster: Triple
    instruction: Triple
    simt: bool
    cooperative: bool
    stages: int
    align: int
    align_d: int
    implicit: bool = False
    """The kernel is a convolution's: one text for all architectures."""
    threads: Triple = (1, 1, 1)
    """Threads per block along m, n, k; plain kernels only."""

    @property
    def name(self) -> str:
        """Identity of the kernel as a C identifier: equal kernels of two targets have one name."""
        form = (f"c{_by(self.cluster)}", self.schedule) if self.three else (f"w{_by(self.warp)}",)
        form = (f"t{_by(self.threads)}",) if self.amd else form[:1] if self.arch == ARCH_100 else form
        words = (
            *(("conv2d",) if self.implicit else ("gemm", self.arch.replace("_", ""))),
            *(_short(self.element_a), _short(self.element_accumulator)),
            *(_short(self.element_d), f"{'r' if self.a_row else 'c'}{'r' if self.b_row else 'c'}r"),
            *(("bias",) if self.bias else ()),
            *((self.activation.lower(),) if self.activation else ()),
            *((self.combine,) if self.combine else ()),
            *(("batched",) if self.batched else ()),
            *(("grouped",) if self.grouped else ()),
            *((f"k{self.split_k}",) if self.split_k > 1 else ()),
            *(_by(self.tile), *form, f"s{self.stages}", f"a{self.align}", f"d{self.align_d}"),
        )
        return "_".join(words)

    @property
    def schedule(self) -> str:
        return SCHEDULES[0] if self.cooperative else SCHEDULES[1]

    @property
    def amd(self) -> bool:
        """The kernel is plain HIP, for AMD's GPUs."""
        return self.arch == ARCH_AMD

    @property
    def light(self) -> bool:
        """The kernel uses CUTLASS 3.x with buildd's own epilogue instead of CUTLASS's."""
        stored = self.element_d in ("cutlass::half_t", "cutlass::bfloat16_t") and self.element_accumulator == "float"
        return self.three and self.arch != ARCH_100 and stored and not self.combine

    @property
    def both(self) -> bool:
        """The kernel has a bias in addition to C."""
        return self.bias and bool(self.combine)


def _by(sizes: Triple) -> str:
    return "x".join(map(str, sizes))


def _short(element: str) -> str:
    return element.rpartition("::")[2].removesuffix("_t")
