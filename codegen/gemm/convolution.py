"""A convolution's sizes, and its form as a GEMM: m = results, n = filters, k = taps x channels.

Knows numbers; no kernel, type or template. The GEMM goes through the same modules as all others (`spec`, `candidates`,
`decision`, `survey`), which check for `ImplicitGemm` where they differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from codegen.project.target import Conv2dTarget, GemmTarget


class ImplicitGemm(GemmTarget, frozen=True, kw_only=True):
    """The GEMM of a convolution. Its n and k, filters and channels, determine the alignment of rows."""

    conv: Conv2dTarget

    @property
    def taps(self) -> int:
        """Number of parts of k; each part has the channels in order."""
        return self.conv.kernel[0] * self.conv.kernel[1]

    @property
    def again(self) -> float:
        """How often one column of tiles reads an element of x; repeated reads hit the caches."""
        return max(1.0, self.taps / (self.conv.stride[0] * self.conv.stride[1]))


@dataclass(frozen=True, slots=True)
class Line:
    """Number of results in one dimension: (size + add) // divide + 1."""

    add: int
    divide: int

    def of(self, size: int) -> int:
        """Return the number of results for a size; 0 if the size is known only at run time."""
        return (size + self.add) // self.divide + 1 if size else 0


def line(target: Conv2dTarget, axis: int) -> Line:
    """Return the line of the height (0) or the width (1)."""
    reach = target.dilation[axis] * (target.kernel[axis] - 1) + 1
    return Line(2 * target.padding[axis] - reach, target.stride[axis])


def implicit_gemm(target: Conv2dTarget) -> ImplicitGemm:
    """Return a convolution as a GEMM."""
    return ImplicitGemm(
        name=target.name, where=target.where, arch=target.arch, deps=target.deps, timeout_s=target.timeout_s,
        flags=target.flags, define=target.define, map_paths=target.map_paths,
        n=target.filters, k=target.shape[3], dtype=target.dtype, output_dtype=target.output_dtype,
        epilogue=target.epilogue, tile=target.tile, warps=target.warps, stages=target.stages,
        profile=target.profile, conv=target,
    )  # fmt: skip


def conv_of(gemm: GemmTarget) -> Conv2dTarget:
    """Return the convolution with the kernel that was chosen for its GEMM."""
    assert isinstance(gemm, ImplicitGemm)
    return msgspec.structs.replace(gemm.conv, tile=gemm.tile, warps=gemm.warps, stages=gemm.stages)


def gemm_sizes(target: GemmTarget, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return a problem's sizes: the number of problems if batched, then m, n, k.

    Args:
        sizes: the same, or the sizes of a convolution's x.
    """
    if not isinstance(target, ImplicitGemm):
        return sizes
    conv = target.conv
    count, height, width, channels = sizes
    results = count * line(conv, 0).of(height) * line(conv, 1).of(width)
    return (results, conv.filters, target.taps * channels)


def words_of(conv: Conv2dTarget) -> str:
    """Describe a convolution apart from its types, for rows of profiles: its sizes, 0 for sizes known only at run
    time."""
    numbers = {"x": conv.shape, "k": (conv.filters,), "kernel": conv.kernel}
    numbers |= {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation}
    return " ".join(f"{name}{','.join(map(str, each))}" for name, each in numbers.items())
