"""Lists candidate kernels of a GEMM for AMD's GPUs, and ranks them with a rough model of those GPUs.

Knows no rules (`spec` removes invalid candidates) and no GPU. The estimates are for vector units, because the kernels
are plain HIP. They only decide which candidates are compiled and measured first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from codegen.gemm.kernel import GemmKernel
from codegen.gemm.kernel_options import Candidate, Sizes, batch_of

_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64))
_DEPTHS = (8, 16, 32)
_THREADS = ((16, 16), (8, 16), (16, 8), (8, 8), (8, 32), (4, 16))
_LEAST_RESULTS, _MOST_RESULTS = 4, 64
"""Results per thread: with fewer a thread waits for shared memory, with more it spills."""
_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class _Machine:
    """A GPU of an architecture, or one die of a GPU with two: vector fp32 without packing."""

    processors: int
    flops: float
    """Per second and processor."""
    bytes_s: float
    start_us: float = 6.0


_USUAL = _Machine(60, 2.2e11, 1.0e12)
_MACHINES = {
    "gfx906": _Machine(60, 2.2e11, 1.0e12),
    "gfx908": _Machine(120, 1.9e11, 1.2e12),
    "gfx90a": _Machine(104, 2.2e11, 1.6e12),
    "gfx940": _Machine(304, 2.7e11, 5.3e12),
    "gfx941": _Machine(304, 2.7e11, 5.3e12),
    "gfx942": _Machine(304, 2.7e11, 5.3e12),
    "gfx1030": _Machine(80, 2.9e11, 0.5e12),
    "gfx1100": _Machine(96, 3.2e11, 0.9e12),
}
_SHARED_BYTES = 64 << 10
_WAVES = 2048
"""Most threads of a processor."""


def shapes() -> Iterator[Candidate]:
    """Yield every plausible candidate; some are invalid for a type or an alignment."""
    for (rows, columns), depth, (down, across), stages in product(_TILES, _DEPTHS, _THREADS, (1, 2)):
        if rows % down or columns % across:
            continue
        if _LEAST_RESULTS <= rows * columns // (down * across) <= _MOST_RESULTS:
            yield Candidate(tile=(rows, columns, depth), threads=(down, across, 1), stages=stages)


def estimate_us(kernel: GemmKernel, arch: str, sizes: Sizes) -> float:
    """Estimate a kernel's time in us: the processor with the most tiles decides, or the memory does.

    For each number that a thread reads from shared memory, it does as many multiplications as its results are wide.
    """
    machine = _MACHINES.get(arch.partition(":")[0], _USUAL)
    m, n, k = sizes[-3:]
    rows, columns, depth = kernel.tile
    down, across = math.ceil(m / rows), math.ceil(n / columns)
    tiles = down * across * max(1, batch_of(sizes))
    threads = kernel.threads[0] * kernel.threads[1]
    mine, other = rows // kernel.threads[0], columns // kernel.threads[1]
    shared_bytes = kernel.stages * depth * (rows + columns + 2) * 4
    at_once = max(1, min(_SHARED_BYTES // shared_bytes, _WAVES // threads, 8))
    reuse = mine * other / (mine + other)
    share = min(1.0, reuse / 4.0) * depth / (depth + 2)
    # Loading the next tile waits for memory, unless there is something else to compute.
    share *= 1.0 if at_once > 1 or kernel.stages == 2 else 0.6
    share *= min(1.0, min(at_once, max(1.0, tiles / machine.processors)) * threads / 256)
    # A processor's tiles share it; the last round is rarely full.
    each = tiles / machine.processors
    full = max(1.0, math.ceil(each) - 0.3 * (math.ceil(each) - each) * (at_once > 1))
    flops_tile = 2.0 * rows * columns * math.ceil(k / depth) * depth
    compute_us = full * flops_tile / (machine.flops * share) * 1e6
    read = (across * m * k + down * n * k) * 0.3 + (m * k + n * k) * 0.7
    loaded = (read * _BYTES[kernel.element_a] + m * n * _BYTES[kernel.element_d]) * max(1, batch_of(sizes))
    busy = min(1.0, max(0.1, tiles / machine.processors))
    memory_us = loaded / (machine.bytes_s * busy) * 1e6
    return machine.start_us + max(compute_us, memory_us) + 0.3 * min(compute_us, memory_us)
