"""Occupancy: the numbers of NVIDIA's occupancy calculator."""

from __future__ import annotations

import pytest

from buildd.artifacts.occupancy import max_threads, occupancy
from protocol.messages import Kernel


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "bound", "percent", "threads"),
    [
        ("sm_80", 32, 0, -1, 100, 1024),
        ("sm_80", 33, 0, -1, 75, 1024),  # 40 registers a thread: 51 warps, of which each part of the SM takes 12
        ("sm_80", 64, 0, -1, 50, 1024),
        ("sm_80", 128, 0, -1, 25, 512),
        ("sm_90a", 168, 0, 384, 19, 384),  # a CUTLASS kernel: one block of 12 warps of 64
        ("sm_80", 255, 0, -1, 12, 256),
        ("sm_86", 40, 0, -1, 100, 1024),
        ("sm_75", 64, 0, -1, 100, 1024),
        ("sm_80", 32, 48 << 10, 128, 19, 128),  # three blocks of four warps: 164 KiB hold three times 49
        ("sm_90", 32, 48 << 10, 1024, 100, 1024),
        ("sm_80", 16, 0, 32, 50, 32),  # 32 blocks of one warp
    ],
)
def test_known_kernels(arch: str, registers: int, shared: int, bound: int, percent: int, threads: int) -> None:
    kernel = Kernel(name="k", arch=arch, registers=registers, shared_bytes=shared, max_threads=bound)
    assert (round(100 * occupancy(kernel)), max_threads(kernel)) == (percent, threads)


def test_what_is_not_known_is_not_said() -> None:
    assert occupancy(Kernel(name="k", arch="sm_999", registers=32)) == -1
    assert occupancy(Kernel(name="k", arch="sm_80")) == -1
    amd = Kernel(name="k", arch="gfx90a", registers=32, max_threads=256)
    assert (occupancy(amd), max_threads(amd)) == (-1, 256)
