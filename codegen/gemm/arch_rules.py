"""The rules of each architecture for a GEMM: types, tiles, alignments and shared memory.

The rules are those of CUTLASS 4.2 (2.x kernels for sm_80 to sm_90, 3.x for sm_90a and sm_100a) and of buildd's kernel
for AMD. Each error names the allowed values. Knows no template, no epilogue's meaning and no compiler; `spec` makes a
kernel from a target that passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import RequestError, nearest
from codegen.gemm.convolution import ImplicitGemm
from codegen.gemm.kernel import ARCH_100, ARCH_AMD, SCHEDULES, Triple
from codegen.project.target import GemmTarget

_MOST_SPLITS = 32
ARCHS_2X = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90")
ARCH_3X = "sm_90a"
_TYPES_100 = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
_SHARED_BYTES = {"sm_80": 163 << 10, "sm_87": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10}
_SHARED_BYTES_90 = 227 << 10
_AMD_SHARED_BYTES = 64 << 10
_AMD_RESULTS = 128
"""Most results of a thread, in registers."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """A type of A and B, with the tiles and instructions that CUTLASS has for it."""

    element: str
    size_bytes: int
    outputs: tuple[str, ...]
    accumulators: tuple[str, ...]
    instruction: Triple
    """Tensor core instruction on sm_80."""
    tile_80: Triple
    stages_80: int
    k_bytes_80: int
    """The tile's depth is a multiple of this."""
    simt: bool = False
    any_layout_90: bool = False
    only_90: bool = False


def _fp8(element: str) -> ElementType:
    """Return an fp8 type. Tensor cores of sm_90a support it; sm_80's figures do not apply."""
    return ElementType(element, 1, ("fp16", "bf16", "fp32"), ("fp32",), (1, 1, 1), (128, 128, 64), 3, 64, only_90=True)


TYPES: dict[str, ElementType] = {
    "fp16": ElementType(
        "cutlass::half_t", 2, ("fp16", "fp32"), ("fp32", "fp16"), (16, 8, 16), (128, 128, 32), 4, 64, any_layout_90=True
    ),
    "bf16": ElementType(
        "cutlass::bfloat16_t", 2, ("bf16", "fp32"), ("fp32",), (16, 8, 16), (128, 128, 32), 4, 64, any_layout_90=True
    ),
    "tf32": ElementType("cutlass::tfloat32_t", 4, ("fp32",), ("fp32",), (16, 8, 8), (128, 128, 16), 4, 64),
    "fp32": ElementType("float", 4, ("fp32",), ("fp32",), (1, 1, 1), (128, 128, 8), 4, 32, simt=True),
    "int8": ElementType("int8_t", 1, ("int32",), ("int32",), (16, 8, 32), (128, 128, 64), 3, 64),
    "fp8_e4m3": _fp8("cutlass::float_e4m3_t"),
    "fp8_e5m2": _fp8("cutlass::float_e5m2_t"),
}
OUTPUTS = {
    "fp16": ("cutlass::half_t", 2),
    "bf16": ("cutlass::bfloat16_t", 2),
    "fp32": ("float", 4),
    "int32": ("int32_t", 4),
}


def is_amd(arch: str) -> bool:
    """Tell whether an architecture is one of AMD's: "gfx90a", "gfx90a:xnack-"."""
    return arch.startswith(ARCH_AMD)


def rules_of(target: GemmTarget, arch: str) -> str:
    """Return the architecture whose rules a kernel follows: convolutions use CUTLASS 2.x even where GEMMs use 3.x."""
    other = arch not in ARCHS_2X and not is_amd(arch)
    return ARCHS_2X[-1] if isinstance(target, ImplicitGemm) and other else arch


def wrong(target: GemmTarget, message: str, next_step: str, code: str = "") -> RequestError:
    """Return an error about a target; by default with its kind's code."""
    code = code or ("bad-kernel" if isinstance(target, ImplicitGemm) else "bad-gemm")
    return RequestError(code, f'target "{target.name}": {message}', file=target.where, next_step=next_step)


def choice(target: GemmTarget, key: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a value that is one of the allowed. Raises RequestError if it is not."""
    if value not in allowed:
        raise wrong(
            target, f'"{value}" is not a valid {key}{nearest(value, allowed)}', "choose one of: " + ", ".join(allowed)
        )
    return value


def alignments(
    target: GemmTarget, typed: ElementType, kind: str, output: str, layout: str, arch: str
) -> tuple[int, int]:
    """Return the alignment of A and B, and of D, in elements: 16 bytes, or less if the fixed sizes require it."""
    full = 1 if typed.simt and not is_amd(arch) else 16 // typed.size_bytes
    contiguous = {"A": "k" if layout[0] == "r" else "m", "B": "n" if layout[1] == "r" else "k"}
    sizes = {name: getattr(target, name) for name in dict.fromkeys(contiguous.values()) if getattr(target, name)}
    align = target.alignment or full
    if align > full or align & (align - 1):
        raise wrong(target, f"alignment {align} is not possible for {kind}", f"use a power of two up to {full}")
    for name, size in sizes.items():
        while size % align:
            if target.alignment:
                raise wrong(
                    target,
                    f"{name} = {size} is not a multiple of alignment = {align}",
                    "lower or remove `alignment`",
                )
            align //= 2
    # cp.async copies at least 4 bytes; TMA, and int8's tensor core operands, need 16.
    tma = arch in (ARCH_3X, ARCH_100)
    least = full if kind == "int8" or tma else 1 if is_amd(arch) else max(1, 4 // typed.size_bytes)
    if align < least:
        wanted = " and ".join(dict.fromkeys(contiguous.values()))
        raise wrong(
            target,
            f"{kind} on {arch} in the layout {layout} needs a larger alignment than {align} elements",
            f"make {wanted} a multiple of {least}",
        )
    full_d = 1 if typed.simt else 16 // OUTPUTS[output][1]
    align_d = full_d
    while target.n and target.n % align_d:
        align_d //= 2
    if tma and align_d < full_d:
        raise wrong(target, f"n = {target.n} is not aligned enough for {arch}", f"make n a multiple of {full_d}")
    return align, align_d


def check_split(target: GemmTarget, combine: str) -> None:
    """Raise RequestError if a target's k cannot be split as it asks."""
    if not 1 <= target.split_k <= _MOST_SPLITS:
        raise wrong(target, f"split_k = {target.split_k} is not possible", f"use 1 to {_MOST_SPLITS}; 1 does not split")
    if target.split_k > 1 and (target.batched or combine):
        what = "batched" if target.batched else f'the epilogue "{target.epilogue}"'
        raise wrong(target, f"split_k cannot be combined with {what}", "remove one of them")


def check_grouped(target: GemmTarget, combine: str, arch: str) -> None:
    """Raise RequestError if a grouped target has no kernel for an architecture."""
    if not target.grouped:
        return
    if target.dtype not in ("fp16", "bf16"):
        raise wrong(target, f"{target.dtype} cannot be grouped", "choose one of: fp16, bf16")
    if arch in (ARCH_3X, ARCH_100):
        raise wrong(target, f"there is no grouped GEMM for {arch}", 'use arch = ["sm_90"]', "bad-arch")
    if target.batched or combine or target.split_k > 1:
        what = "batched" if target.batched else "split_k" if not combine else f'the epilogue "{target.epilogue}"'
        raise wrong(target, f"grouped cannot be combined with {what}", "remove one of them")


def warp_tile_80(target: GemmTarget, typed: ElementType, tile: Triple, warps: Triple) -> Triple:
    """Return the tile of each warp on sm_80 to sm_90. Raises RequestError if the warps do not fit the tile."""
    if min(warps) <= 0 or warps[2] != 1 or any(size % count for size, count in zip(tile, warps, strict=True)):
        raise wrong(
            target,
            f"warps {list(warps)} do not divide tile {list(tile)}",
            "use for example warps = [2, 2, 1] (the last is 1)",
        )
    count = warps[0] * warps[1]
    if count > 16:
        raise wrong(target, f"{count} warps are too many", "use at most 16")
    warp = (tile[0] // warps[0], tile[1] // warps[1], tile[2])
    if warp[0] % 32 or warp[1] % 32 or (tile[2] * typed.size_bytes) % typed.k_bytes_80:
        depth = typed.k_bytes_80 // typed.size_bytes
        raise wrong(
            target,
            f"tile {list(tile)} with warps {list(warps)} gives warp tiles of {list(warp)}",
            f"give each warp multiples of 32 x 32, and a depth that is a multiple of {depth}",
        )
    if warp[0] * warp[1] > 128 * 64:
        raise wrong(
            target, f"a warp tile of {list(warp)} does not fit the registers", "use more warps: at most 64 x 128 each"
        )
    return warp


def check_shared_80(target: GemmTarget, typed: ElementType, tile: Triple, stages: int, arch: str) -> None:
    """Raise RequestError if the stages of a tile do not fit the shared memory of sm_80 to sm_90."""
    if stages < 2:
        raise wrong(target, "stages = 1 is not possible", "use 2 or more")
    needed = stages * (tile[0] + tile[1]) * tile[2] * typed.size_bytes
    limit = _SHARED_BYTES.get(arch, _SHARED_BYTES_90)
    if needed > limit:
        raise wrong(
            target,
            f"tile {list(tile)} with {stages} stages needs {needed >> 10} KiB of shared memory",
            f"use fewer stages or a smaller tile: {arch} has {limit >> 10} KiB",
        )


def default_tile_90(typed: ElementType) -> Triple:
    """Return the tile on sm_90a for a target that names none."""
    return (128, 128, 128 // typed.size_bytes)


def check_tile_90(target: GemmTarget, typed: ElementType, tile: Triple) -> None:
    """Raise RequestError if a tile, its schedule or its stages are not possible on sm_90a."""
    step = 32 // typed.size_bytes
    if tile[0] not in (64, 128, 256) or tile[1] % 32 or tile[1] > 256 or tile[2] % step:
        raise wrong(
            target,
            f"tile {list(tile)} is not possible on sm_90a",
            f"use m: 64, 128 or 256; n: a multiple of 32 up to 256; k: a multiple of {step}",
        )
    if (
        target.schedule
        and tile[0] == {"cooperative": 64, "pingpong": 256}[choice(target, "schedule", target.schedule, SCHEDULES)]
    ):
        raise wrong(
            target,
            f"tile {list(tile)} cannot be {target.schedule}",
            "cooperative: m = 128 or 256; pingpong: m = 64 or 128",
        )
    if target.warps:
        raise wrong(target, "warps do not apply to sm_90a", "remove `warps`, or give sm_90a its own target")
    stages = max(target.stages, 2)
    needed = stages * (tile[0] + tile[1]) * tile[2] * typed.size_bytes
    if target.stages == 1 or needed > _SHARED_BYTES_90:
        raise wrong(
            target,
            f"tile {list(tile)} with {target.stages or stages} stages needs {needed >> 10} KiB of shared memory",
            f"use at least 2 stages and at most {_SHARED_BYTES_90 >> 10} KiB: a smaller tile, or no `stages`",
        )


def cluster_90(target: GemmTarget) -> Triple:
    """Return the cluster on sm_90a. Raises RequestError if it is not possible."""
    cluster = target.cluster or (2, 1, 1)
    if any(size not in (1, 2, 4, 8) for size in cluster) or cluster[2] != 1 or cluster[0] * cluster[1] > 8:
        raise wrong(
            target,
            f"cluster {list(cluster)} is not possible",
            "use for example [2, 1, 1]; at most 8 blocks, the last is 1",
        )
    return cluster


def check_100(target: GemmTarget, kind: str, combine: str) -> None:
    """Raise RequestError if a target sets what sm_100a's only kernel of a type does not have."""
    if kind not in _TYPES_100:
        raise wrong(target, f"{kind} has no kernel for {ARCH_100}", "choose one of: " + ", ".join(_TYPES_100))
    for name in ("tile", "warps", "cluster", "threads", "stages", "schedule", "batched"):
        if getattr(target, name):
            raise wrong(target, f"{ARCH_100} has one kernel for each type, without `{name}`", f"leave `{name}` out")
    if combine or target.split_k > 1:
        what = f'the epilogue "{target.epilogue}"' if combine else "split_k"
        raise wrong(target, f"{ARCH_100} has no kernel with {what}", "remove it, or give sm_100a its own target")


def check_amd(target: GemmTarget, tile: Triple, threads: Triple, stages: int) -> None:
    """Raise RequestError if a tile, its threads or its stages are not possible on AMD."""
    if min(tile) <= 0 or any(size % 8 for size in tile):
        raise wrong(
            target, f"tile {list(tile)} is not possible", "use multiples of 8, for example tile = [128, 128, 16]"
        )
    count = threads[0] * threads[1]
    if min(threads) <= 0 or threads[2] != 1 or count % 64 or count > 1024:
        raise wrong(
            target, f"threads {list(threads)} are not possible", "use a multiple of 64 up to 1024, as in [16, 16, 1]"
        )
    if tile[0] % threads[0] or tile[1] % threads[1]:
        raise wrong(target, f"threads {list(threads)} do not divide tile {list(tile)}", "use for example [16, 16, 1]")
    if tile[0] * tile[1] > _AMD_RESULTS * count:
        raise wrong(target, f"tile {list(tile)} does not fit the registers of {count} threads", "use a smaller tile")
    if stages not in (1, 2):
        raise wrong(target, f"stages = {stages} is not possible", "use 1 or 2")
    needed = stages * (tile[0] + tile[1] + 2) * tile[2] * 4
    if needed > _AMD_SHARED_BYTES:
        raise wrong(
            target,
            f"tile {list(tile)} with {stages} stages needs {needed >> 10} KiB of shared memory",
            f"use fewer stages or a smaller tile: there are {_AMD_SHARED_BYTES >> 10} KiB",
        )
