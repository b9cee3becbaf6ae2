"""How many threads of a kernel one multiprocessor of an NVIDIA GPU holds at once, as far as its needs decide it.

Source of the numbers: "Technical specifications per compute capability" in the CUDA C++ Programming Guide, and the
granularities of the CUDA Occupancy Calculator. Dynamic shared memory and the block size of a launch are not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.messages import Kernel

MOST_THREADS = 1024
"""Threads of a block, on every GPU."""
_WARP = 32
_REGISTERS = 65536
"""Registers of a multiprocessor; a block has at most as many."""
_REGISTER_UNIT = 256
"""A warp gets a multiple of it."""
_WARP_UNIT = 4
"""A multiprocessor has four parts, among which warps are divided."""
_SHARED_UNIT = 128
_SHARED_RESERVED = 1024
"""Shared memory of each block that the system keeps for itself, from compute capability 8.0 on."""


@dataclass(frozen=True, slots=True)
class _Multiprocessor:
    warps: int
    blocks: int
    shared_bytes: int


_KNOWN = {
    70: _Multiprocessor(64, 32, 96 << 10),
    72: _Multiprocessor(64, 32, 96 << 10),
    75: _Multiprocessor(32, 16, 64 << 10),
    80: _Multiprocessor(64, 32, 164 << 10),
    86: _Multiprocessor(48, 16, 100 << 10),
    87: _Multiprocessor(48, 16, 164 << 10),
    89: _Multiprocessor(48, 24, 100 << 10),
    90: _Multiprocessor(64, 32, 228 << 10),
    100: _Multiprocessor(64, 32, 228 << 10),
    103: _Multiprocessor(64, 32, 228 << 10),
    120: _Multiprocessor(48, 24, 100 << 10),
    121: _Multiprocessor(48, 24, 100 << 10),
}


def max_threads(kernel: Kernel) -> int:
    """The most threads that a block of it can have: its launch bounds, or as many as the registers suffice for; -1 if
    that is not known."""
    number = _number(kernel.arch)
    if not number or kernel.registers < 0:
        return kernel.max_threads
    possible = min(MOST_THREADS, _warps_by_registers(kernel.registers) * _WARP)
    return min(possible, kernel.max_threads) if kernel.max_threads > 0 else possible


def occupancy(kernel: Kernel) -> float:
    """The part of a multiprocessor's warps that can be the kernel's, 0 to 1, with the best size of a block; -1 if that
    is not known."""
    place = _KNOWN.get(_number(kernel.arch))
    if place is None or kernel.registers < 0:
        return -1.0
    best = 0
    for warps in range(1, max_threads(kernel) // _WARP + 1):
        blocks = min(place.blocks, place.warps // warps, _warps_by_registers(kernel.registers) // warps)
        if shared := _shared_bytes(kernel, _number(kernel.arch)):
            blocks = min(blocks, place.shared_bytes // shared)
        best = max(best, blocks * warps)
    return best / place.warps


def _number(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(match[1]) if match else 0


def _warps_by_registers(registers: int) -> int:
    each = -(-max(1, registers) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    return _REGISTERS // each // _WARP_UNIT * _WARP_UNIT


def _shared_bytes(kernel: Kernel, number: int) -> int:
    if kernel.shared_bytes <= 0:
        return 0
    needed = -(-kernel.shared_bytes // _SHARED_UNIT) * _SHARED_UNIT
    return needed + (_SHARED_RESERVED if number >= 80 else 0)
