"""A convolution's sizes, and the GEMM that it is: m = results, n = filters, k = taps x channels.

Knows numbers; no kernel, type or template. As a GEMM it goes through the same rooms as all others (`gemm_spec`,
`gemm_candidates`, `gemm_decision`, `gemm_survey`); what is different there asks for `ImplicitGemm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from codegen.target import Conv2dTarget, GemmTarget


class ImplicitGemm(GemmTarget, frozen=True, kw_only=True):
    """The GEMM of a convolution. Its n and k say how rows are aligned: filters and channels."""

    conv: Conv2dTarget

    @property
    def taps(self) -> int:
        """So many parts of k have the channels one behind the other."""
        return self.conv.kernel[0] * self.conv.kernel[1]

    @property
    def again(self) -> float:
        """How often an element of x is read for one column of tiles; caches have it then."""
        return max(1.0, self.taps / (self.conv.stride[0] * self.conv.stride[1]))


@dataclass(frozen=True, slots=True)
class Line:
    """How many results one dimension has: (size + add) // divide + 1."""

    add: int
    divide: int

    def of(self, size: int) -> int:
        """0 where the size is known at run time only."""
        return (size + self.add) // self.divide + 1 if size else 0


def line(target: Conv2dTarget, axis: int) -> Line:
    """Of the height (0) or the width (1)."""
    reach = target.dilation[axis] * (target.kernel[axis] - 1) + 1
    return Line(2 * target.padding[axis] - reach, target.stride[axis])


def implicit_gemm(target: Conv2dTarget) -> ImplicitGemm:
    """A convolution as the GEMM that it is."""
    return ImplicitGemm(
        name=target.name, where=target.where, arch=target.arch, deps=target.deps, timeout_s=target.timeout_s,
        flags=target.flags, define=target.define, map_paths=target.map_paths,
        n=target.filters, k=target.shape[3], dtype=target.dtype, output_dtype=target.output_dtype,
        epilogue=target.epilogue, tile=target.tile, warps=target.warps, stages=target.stages,
        profile=target.profile, conv=target,
    )  # fmt: skip


def conv_of(gemm: GemmTarget) -> Conv2dTarget:
    """The convolution with the kernel that was chosen for its GEMM."""
    assert isinstance(gemm, ImplicitGemm)
    return msgspec.structs.replace(gemm.conv, tile=gemm.tile, warps=gemm.warps, stages=gemm.stages)


def gemm_sizes(target: GemmTarget, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """m, n, k of a problem, behind how many there are of it.

    Args:
        sizes: these, or those of a convolution's x.
    """
    if not isinstance(target, ImplicitGemm):
        return sizes
    conv = target.conv
    count, height, width, channels = sizes
    results = count * line(conv, 0).of(height) * line(conv, 1).of(width)
    return (results, conv.filters, target.taps * channels)


def words_of(conv: Conv2dTarget) -> str:
    """What a convolution does besides its types, for rows of profiles: sizes, 0 for those known at run time only."""
    numbers = {"x": conv.shape, "k": (conv.filters,), "kernel": conv.kernel}
    numbers |= {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation}
    return " ".join(f"{name}{','.join(map(str, each))}" for name, each in numbers.items())
