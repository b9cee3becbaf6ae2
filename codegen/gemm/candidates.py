"""Ranks the kernels that may be best for a GEMM: the valid ones from CUTLASS's own lists, the likeliest first.

Knows the list of CUTLASS's generator (`cutlass_listing`, run by a probe) and a rough model of each architecture; needs
no GPU. The order only decides which candidates are compiled and measured first: estimates are never stored.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import msgspec

from codegen.compilers.pip_command import install_extra
from codegen.context import Context
from codegen.errors import RequestError
from codegen.gemm import amd
from codegen.gemm.arch_rules import ARCH_3X, is_amd, rules_of
from codegen.gemm.convolution import ImplicitGemm
from codegen.gemm.kernel import GemmKernel, Triple
from codegen.gemm.kernel_options import Candidate, Sizes, batch_of
from codegen.gemm.spec import kernel_for
from codegen.plan import Frozen, Probe
from codegen.project.target import GemmTarget

_SCRIPT = os.path.join(os.path.dirname(__file__), "cutlass_listing.py")
_SOURCES = ("generator.py", "library.py", "manifest.py", "sm90_utils.py", "gemm_operation.py")


@dataclass(frozen=True, slots=True)
class _Machine:
    """A typical GPU of an architecture, with dense rates of half precision."""

    processors: int
    flops: float
    """Per second and processor."""
    bytes_s: float
    shared_bytes: int
    start_us: float = 3.0


_MACHINES = {
    "sm_80": _Machine(108, 2.9e12, 1.9e12, 163 << 10),
    "sm_86": _Machine(84, 1.8e12, 0.9e12, 99 << 10),
    "sm_87": _Machine(16, 1.4e12, 0.2e12, 163 << 10),
    "sm_89": _Machine(128, 2.6e12, 1.0e12, 99 << 10),
    "sm_90": _Machine(132, 4.5e12, 3.3e12, 227 << 10),
    "sm_90a": _Machine(132, 7.5e12, 3.9e12, 227 << 10),
}
_RATES = {"fp16": 1.0, "bf16": 1.0, "tf32": 0.5, "fp32": 0.06, "int8": 2.0, "fp8_e4m3": 2.0, "fp8_e5m2": 2.0}
_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4, "int8": 1, "int32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1}


_MOST_ACCUMULATORS = 192
"""Most registers of a thread for results. With more, the rest of its 255 registers are too few, and it spills."""


_LATER = 0.3
"""Penalty for candidates with the same tile that come before, times the root of their number."""


class Ranked(Frozen, frozen=True):
    """A candidate for a problem, with its estimated time."""

    candidate: Candidate
    kernel: str
    """`GemmKernel.name`."""
    estimate_us: float


_Row = tuple[str, Triple, Triple, int | str]
"""Accumulator, tile, warps or cluster, stages or schedule."""


def candidates(context: Context, target: GemmTarget, arch: str, sizes: Sizes) -> tuple[Ranked, ...]:
    """Return every valid candidate, the likeliest first.

    Args:
        target: has the fixed sizes; nothing of its kernel is chosen yet.
        sizes: the number of problems if batched, then m, n, k (`convolution.gemm_sizes`).

    Raises:
        ProbesNeeded, RequestError: CUTLASS's lists are not available.
    """
    if is_amd(arch):
        return _of_shapes(target, arch, sizes)
    accumulator = target.accumulator or ("int32" if target.dtype == "int8" else "fp32")
    # CUTLASS's generator uses the same tiles for convolutions and GEMMs.
    list_arch = ARCH_3X if rules_of(target, arch) == ARCH_3X else "sm_80"
    found: dict[str, Ranked] = {}
    for accumulates, tile, shape, form in _rows(context, list_arch, target.dtype):
        if accumulates != accumulator:
            continue
        if isinstance(form, str):
            candidate = Candidate(tile=tile, cluster=shape, schedule=form)
        else:
            candidate = Candidate(tile=tile, warps=shape, stages=form)
        try:
            kernel = kernel_for(candidate.of(target), arch)
        except RequestError:
            continue  # shared memory, alignment, a shape that buildd's templates do not support
        if kernel.three and _accumulators(kernel) > _MOST_ACCUMULATORS:
            continue
        found.setdefault(kernel.name, Ranked(candidate=candidate, kernel=kernel.name, estimate_us=0.0))
        found[kernel.name] = msgspec.structs.replace(
            found[kernel.name], estimate_us=estimate_us(kernel, target, arch, sizes)
        )
    return _varied(sorted(found.values(), key=lambda one: (one.estimate_us, one.kernel)))


def _of_shapes(target: GemmTarget, arch: str, sizes: Sizes) -> tuple[Ranked, ...]:
    """Return the candidates for AMD's GPUs, from buildd's own list."""
    found: dict[str, Ranked] = {}
    for candidate in amd.shapes():
        try:
            kernel = kernel_for(candidate.of(target), arch)
        except RequestError:
            continue
        promised_us = amd.estimate_us(kernel, arch, sizes)
        found.setdefault(kernel.name, Ranked(candidate=candidate, kernel=kernel.name, estimate_us=promised_us))
    return _varied(sorted(found.values(), key=lambda one: (one.estimate_us, one.kernel)))


def _varied(ranked: list[Ranked]) -> tuple[Ranked, ...]:
    """Reorder candidates: each further one with the same tile comes later, so that the first few differ in more than
    cluster and schedule."""
    alike: dict[Triple, int] = {}
    placed: list[tuple[float, str, Ranked]] = []
    for one in ranked:
        count = alike[one.candidate.tile] = alike.get(one.candidate.tile, -1) + 1
        placed.append((one.estimate_us * (1 + _LATER * math.sqrt(count)), one.kernel, one))
    return tuple(one for *_, one in sorted(placed, key=lambda place: place[:2]))


def estimate_us(kernel: GemmKernel, target: GemmTarget, arch: str, sizes: Sizes) -> float:
    """Estimate a kernel's time in us by waves of tiles: the processor with the most tiles decides, or the memory does.

    A tile's rate grows with its computations per loaded byte; several small tiles share a processor.
    """
    machine = _MACHINES[rules_of(target, arch)]
    m, n, k = sizes[-3:]
    rows, columns, depth = kernel.tile
    cluster_rows, cluster_columns, _ = kernel.cluster
    tiles_m = math.ceil(math.ceil(m / rows) / cluster_rows) * cluster_rows
    tiles_n = math.ceil(math.ceil(n / columns) / cluster_columns) * cluster_columns
    count = max(1, batch_of(sizes))
    tiles = tiles_m * tiles_n * target.split_k * count
    k_each = math.ceil(k / target.split_k)
    size = _BYTES[target.dtype]
    stages = kernel.stages or max(2, (machine.shared_bytes - rows * columns * 2) // ((rows + columns) * depth * size))
    at_once = max(1, min(machine.shared_bytes // (stages * (rows + columns) * depth * size), 3))
    if kernel.three:
        # Pingpong: one of two tiles computes while the other stores; in a single round each runs alone.
        at_once = 1 if kernel.cooperative or tiles <= machine.processors else 2
    # The processors of a cluster load shared data once.
    intensity = rows * columns / (rows / cluster_columns + columns / cluster_rows)
    share = min(1.0, 0.35 + intensity / (140 if kernel.three else 100))
    if kernel.three:
        # An instruction reads its operands from shared memory, which is too slow if it has few columns.
        share = min(share, 0.35 + columns / 185)
    rate = machine.flops * _RATES[target.dtype] * share * (1.0 if at_once > 1 or kernel.three else 0.93)
    rounds = math.ceil(tiles / machine.processors)
    # The last round is rarely full; with several tiles at once its tail is shorter.
    full = tiles / machine.processors
    effective = max(1.0, rounds - (rounds - full) * 0.3 * (at_once > 1))
    # A convolution reads the channels once per tap, and most of its reads of x hit the caches.
    taps, again = (target.taps, target.again) if isinstance(target, ImplicitGemm) else (1, 1.0)
    flops_tile = 2.0 * rows * columns * (taps * math.ceil(k_each / taps / depth) * depth)
    compute_us = effective * flops_tile / rate * 1e6
    # Nothing is computed while a cooperative tile is stored, nor while a lone tile is stored, by half as many threads.
    stores = (rounds if kernel.cooperative else 2 * (tiles <= machine.processors)) if kernel.three else 0
    stored_us = stores * rows * columns * 2 / machine.bytes_s * machine.processors * 1e6
    # A few processors cannot use the full memory bandwidth.
    taken = min(1.0, 0.3 + 0.7 * tiles * at_once / machine.processors)
    # A tile is loaded whole, including the part outside the matrix.
    whole_m, whole_n = max(m, tiles_m * rows), max(n, tiles_n * columns)
    loaded = (
        (tiles_n / cluster_columns * whole_m * k / again + tiles_m / cluster_rows * whole_n * k) * size * 0.25
        + (m * k / again + n * k) * size * 0.75
        + m * n * 2 * target.split_k
    )
    memory_us = count * loaded / (machine.bytes_s * taken) * 1e6
    return machine.start_us + stored_us + max(compute_us, memory_us) + 0.3 * min(compute_us, memory_us)


def _accumulators(kernel: GemmKernel) -> int:
    """Return the result registers per thread of a 3.x kernel: two groups of 128 threads share a cooperative tile, a
    pingpong tile has one."""
    return kernel.tile[0] * kernel.tile[1] // (256 if kernel.cooperative else 128)


def _rows(context: Context, arch: str, dtype: str) -> list[_Row]:
    """Return CUTLASS's list for a type and an architecture. Later architectures of the same kind have no list of their
    own."""
    cutlass = context.toolchains.cutlass()
    # A wheel has the package above its sources, a checkout has it in python/.
    for folder in (os.path.dirname(os.path.dirname(cutlass)), os.path.join(cutlass, "python"), cutlass):
        package = os.path.join(folder, "cutlass_library")
        if os.path.isfile(os.path.join(package, "generator.py")):
            break
    else:
        raise RequestError(
            "no-candidates",
            f"CUTLASS in {cutlass} has no cutlass_library, which lists its kernels",
            file=cutlass,
            next_step=f"install it with `{install_extra('cuda')}`",
        )
    sources = (_SCRIPT, *(os.path.join(package, name) for name in _SOURCES))
    probe = Probe(
        argv=(context.request.interpreter or "/usr/bin/python3", "-I", "-B", _SCRIPT, folder, arch, dtype),
        environment=(("LC_ALL", "C.UTF-8"), ("PYTHONHASHSEED", "0")),
        files=tuple(path for path in sources if os.path.isfile(path)),
        timeout_s=120.0,
    )
    (answer,) = context.knowledge.ask(probe)
    try:
        if answer.status:
            raise ValueError(answer.stderr.strip().rpartition("\n")[2])
        return msgspec.json.decode(answer.stdout, type=list[_Row])
    except ValueError as error:
        raise RequestError(
            "no-candidates",
            f"CUTLASS's list of kernels is not available: {error}",
            file=package,
            next_step="buildd knows the lists of CUTLASS 4.2; point CUTLASS_PATH at that version",
        ) from error
