"""What a GEMM target means: its types, tiles and alignments, checked against what CUTLASS can do.

Knows no template and no compiler. The rules are those of CUTLASS 4.2 (2.x kernels for sm_80 to sm_90, 3.x for sm_90a
and sm_100a); each error says what would be allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from codegen.convolution import ImplicitGemm
from codegen.gemm_kernel import ARCH_100, ARCH_AMD, SCHEDULES, GemmKernel, Triple
from codegen.plan import RequestError
from codegen.project import nearest
from codegen.target import GemmTarget


@dataclass(frozen=True, slots=True)
class _Type:
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


def _fp8(element: str) -> _Type:
    """Tensor cores of sm_90a have it; nothing of sm_80's figures has a meaning."""
    return _Type(element, 1, ("fp16", "bf16", "fp32"), ("fp32",), (1, 1, 1), (128, 128, 64), 3, 64, only_90=True)


_TYPES: dict[str, _Type] = {
    "fp16": _Type(
        "cutlass::half_t", 2, ("fp16", "fp32"), ("fp32", "fp16"), (16, 8, 16), (128, 128, 32), 4, 64, any_layout_90=True
    ),
    "bf16": _Type(
        "cutlass::bfloat16_t", 2, ("bf16", "fp32"), ("fp32",), (16, 8, 16), (128, 128, 32), 4, 64, any_layout_90=True
    ),
    "tf32": _Type("cutlass::tfloat32_t", 4, ("fp32",), ("fp32",), (16, 8, 8), (128, 128, 16), 4, 64),
    "fp32": _Type("float", 4, ("fp32",), ("fp32",), (1, 1, 1), (128, 128, 8), 4, 32, simt=True),
    "int8": _Type("int8_t", 1, ("int32",), ("int32",), (16, 8, 32), (128, 128, 64), 3, 64),
    "fp8_e4m3": _fp8("cutlass::float_e4m3_t"),
    "fp8_e5m2": _fp8("cutlass::float_e5m2_t"),
}
_OUTPUTS = {
    "fp16": ("cutlass::half_t", 2),
    "bf16": ("cutlass::bfloat16_t", 2),
    "fp32": ("float", 4),
    "int32": ("int32_t", 4),
}
_ACCUMULATORS = {"fp32": "float", "fp16": "cutlass::half_t", "int32": "int32_t"}
_ACTIVATIONS = {"": "", "relu": "ReLu", "gelu": "GELU", "silu": "SiLu", "sigmoid": "Sigmoid", "tanh": "Tanh"}
_COMBINED = {"": "", "add": "plus", "multiply": "multiplies"}
_SPELLED = {
    "_".join(word for word in words if word): words
    for words in product(("", "bias"), _ACTIVATIONS, _COMBINED)
    if words != ("", "", "add")  # that is what beta does
}
EPILOGUES = tuple(name or "none" for name in _SPELLED)
_MOST_SPLITS = 32
LAYOUTS = ("rcr", "rrr", "ccr")
ARCHS_2X = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90")
ARCH_3X = "sm_90a"
_TYPES_100 = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
_SHARED_BYTES = {"sm_80": 163 << 10, "sm_87": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10}
_SHARED_BYTES_90 = 227 << 10
_AMD_TYPES = ("fp16", "bf16", "fp32")
_AMD_SHARED_BYTES = 64 << 10
_AMD_RESULTS = 128
"""Of a thread, in registers."""


def kernel_for(target: GemmTarget, arch: str) -> GemmKernel:
    """The kernel of a target for an architecture.

    Raises:
        RequestError: "bad-gemm" ("bad-kernel" of a convolution), types, layout, tile, alignment or architecture do not
            go together; "bad-arch".
    """
    if is_amd(arch):
        return _amd_kernel(target, arch)
    every = (*ARCHS_2X, ARCH_3X, ARCH_100)
    if arch not in every:
        raise wrong(target, f"there is no GEMM for {arch}", "architectures: " + ", ".join(every), "bad-arch")
    implicit, arch = isinstance(target, ImplicitGemm), rules_of(target, arch)
    kind = _choice(target, "dtype", target.dtype, tuple(_TYPES))
    typed = _TYPES[kind]
    layout = _choice(target, "layout", target.layout, LAYOUTS)
    epilogue = _choice(target, "epilogue", target.epilogue, EPILOGUES)
    output = target.output_dtype or typed.outputs[0]
    _choice(target, f"output_dtype for {kind}", output, typed.outputs)
    accumulator = target.accumulator or typed.accumulators[0]
    _choice(target, f"accumulator for {kind}", accumulator, typed.accumulators)
    newest = arch == ARCH_100
    three = newest or arch == ARCH_3X
    if typed.only_90 and not three:
        raise wrong(target, f"{kind} has no kernel for {arch}", f'use arch = ["{ARCH_3X}"]')
    if three and typed.simt:
        raise wrong(
            target, f"fp32 without tensor cores has no kernel for {arch}", 'use dtype = "tf32", or arch = ["sm_90"]'
        )
    if layout != "rcr" and (typed.size_bytes == 1 or (three and not typed.any_layout_90)):
        raise wrong(target, f'{kind} on {arch} cannot have the layout "{layout}"', 'use layout = "rcr"')
    bias, activation, combine = _SPELLED[epilogue.removeprefix("none")]
    if kind == "int8" and (activation not in ("", "relu") or combine):
        raise wrong(target, f'int8 cannot have the epilogue "{epilogue}"', "possible: none, bias, relu, bias_relu")
    for name in ("m", "n", "k", "stages", "alignment"):
        if getattr(target, name) < 0:
            raise wrong(target, f"{name} is negative", "0 stands for: known at run time, or chosen by buildd")
    _check_split(target, combine)
    _check_grouped(target, combine, arch)
    align, align_d = _alignments(target, typed, kind, output, layout, arch)
    tile = target.tile or (_default_tile_90(typed) if three else typed.tile_80)
    if min(tile) <= 0:
        raise wrong(target, f"tile {list(tile)} must be positive", f"for example tile = {list(typed.tile_80)}")
    warps = target.warps or ((4, 2, 1) if typed.simt else (2, 2, 1))
    warp = (1, 1, 1)
    stages = target.stages
    if newest:
        _check_100(target, kind, combine)
    elif three:
        _check_tile_90(target, typed, tile)
    else:
        warp = _warp_tile(target, typed, tile, warps)
        stages = stages or typed.stages_80
        _check_shared(target, typed, tile, stages, arch)
    cooperative = target.schedule == SCHEDULES[0] if target.schedule else tile[0] >= 128
    if three and not newest and target.split_k > 1 and not cooperative:
        raise wrong(target, "split_k on sm_90a is for the schedule cooperative", "a tile with m = 128 or 256")
    return GemmKernel(
        arch=ARCHS_2X[0] if implicit else arch,
        three=three,
        element_a=typed.element,
        element_d=_OUTPUTS[output][0],
        element_accumulator=_ACCUMULATORS[accumulator],
        element_compute="int32_t" if kind == "int8" else "float",
        a_row=layout[0] == "r",
        b_row=layout[1] == "r",
        bias=bool(bias),
        activation=_ACTIVATIONS[activation],
        combine=_COMBINED[combine],
        batched=target.batched,
        grouped=target.grouped,
        split_k=target.split_k,
        fp8=typed.only_90,
        tile=tile,
        warp=warp,
        cluster=_cluster(target) if three and not newest else (1, 1, 1),
        instruction=typed.instruction,
        simt=typed.simt,
        cooperative=cooperative,
        stages=stages,
        align=align,
        align_d=align_d,
        implicit=implicit,
    )


def is_amd(arch: str) -> bool:
    """Whether an architecture is one of AMD's: "gfx90a", "gfx90a:xnack-"."""
    return arch.startswith(ARCH_AMD)


def _amd_kernel(target: GemmTarget, arch: str) -> GemmKernel:
    """Plain HIP, with what a tile is made of in fp32; one text for all of AMD's architectures."""
    if isinstance(target, ImplicitGemm):
        raise wrong(target, f"there is no convolution for {arch}", "leave the gfx architectures out", "bad-arch")
    kind = _choice(target, f"dtype for {arch}", target.dtype, tuple(_AMD_TYPES))
    layout = _choice(target, "layout", target.layout, LAYOUTS)
    output = target.output_dtype or kind
    _choice(target, f"output_dtype for {kind}", output, tuple(dict.fromkeys((kind, "fp32"))))
    _choice(target, f"accumulator for {arch}", target.accumulator or "fp32", ("fp32",))
    bias, activation, combine = _SPELLED[_choice(target, "epilogue", target.epilogue, EPILOGUES).removeprefix("none")]
    for name in ("m", "n", "k", "stages", "alignment"):
        if getattr(target, name) < 0:
            raise wrong(target, f"{name} is negative", "0 stands for: known at run time, or chosen by buildd")
    for name in ("warps", "cluster", "schedule", "grouped"):
        if getattr(target, name):
            raise wrong(target, f"there is no `{name}` for {arch}", f"leave `{name}` out")
    if target.split_k != 1:
        raise wrong(target, f"there is no split_k for {arch}", "leave it out")
    tile, threads, stages = target.tile or (128, 128, 16), target.threads or (16, 16, 1), target.stages or 2
    _check_amd(target, tile, threads, stages)
    align, _ = _alignments(target, _TYPES[kind], kind, output, layout, arch)
    return GemmKernel(
        arch=ARCH_AMD, three=False, element_a=kind, element_d=output, element_accumulator="float",
        element_compute="float", a_row=layout[0] == "r", b_row=layout[1] == "r", bias=bool(bias),
        activation=activation, combine=combine, batched=target.batched, grouped=False, split_k=1, fp8=False, tile=tile,
        warp=(1, 1, 1), cluster=(1, 1, 1), instruction=(1, 1, 1), simt=True, cooperative=False, stages=stages,
        align=align, align_d=1, threads=threads,
    )  # fmt: skip


def _check_amd(target: GemmTarget, tile: Triple, threads: Triple, stages: int) -> None:
    if min(tile) <= 0 or any(size % 8 for size in tile):
        raise wrong(target, f"tile {list(tile)} is not possible", "multiples of 8, for example tile = [128, 128, 16]")
    count = threads[0] * threads[1]
    if min(threads) <= 0 or threads[2] != 1 or count % 64 or count > 1024:
        raise wrong(
            target, f"threads {list(threads)} are not possible", "a multiple of 64 up to 1024, as in [16, 16, 1]"
        )
    if tile[0] % threads[0] or tile[1] % threads[1]:
        raise wrong(target, f"threads {list(threads)} do not divide tile {list(tile)}", "for example [16, 16, 1]")
    if tile[0] * tile[1] > _AMD_RESULTS * count:
        raise wrong(target, f"tile {list(tile)} does not fit the registers of {count} threads", "a smaller tile")
    if stages not in (1, 2):
        raise wrong(target, f"stages = {stages} is not possible", "1 or 2")
    needed = stages * (tile[0] + tile[1] + 2) * tile[2] * 4
    if needed > _AMD_SHARED_BYTES:
        raise wrong(
            target,
            f"tile {list(tile)} with {stages} stages needs {needed >> 10} KiB of shared memory",
            f"there are {_AMD_SHARED_BYTES >> 10} KiB: fewer stages or a smaller tile",
        )


def rules_of(target: GemmTarget, arch: str) -> str:
    """The architecture whose rules a kernel follows: convolutions are of CUTLASS 2.x, also where others are of 3.x."""
    other = arch not in ARCHS_2X and not is_amd(arch)
    return ARCHS_2X[-1] if isinstance(target, ImplicitGemm) and other else arch


def output_type(target: GemmTarget) -> str:
    """Of C and D."""
    return target.output_dtype or _TYPES[target.dtype].outputs[0]


def tolerance(target: GemmTarget) -> float:
    """Largest error that rounding explains, relative to results near 1."""
    # Kernels of CUTLASS 2.x add the parts of a split k in the output's type: each is rounded.
    rounded = max(1.0, target.split_k / 2)
    if target.accumulator == "fp16":
        return 5e-2 * rounded
    if target.dtype == "fp32":
        return 1e-4 * rounded
    return {"fp16": 2e-3, "bf16": 1.6e-2, "fp32": 2e-3, "int32": 0.0}[output_type(target)] * rounded


def formula(target: GemmTarget) -> str:
    """What the kernel computes, for its header."""
    bias, activation, combine = _SPELLED[target.epilogue.removeprefix("none")]
    inner = "alpha * A @ B"
    if combine:
        inner += " + bias (a row of n)" if bias else ""
    else:
        inner += " + c (a row of n)" if bias else " + beta * C (c may be null if beta is 0)"
    inner = f"{activation}({inner})" if activation else inner
    sign = {"add": "+", "multiply": "*"}.get(combine)
    each = ", for each of `batch` problems, one behind the other" if target.batched else ""
    if target.grouped:
        each = ", for each of `groups` problems: the host's arrays of pointers and of m, n, k; not under graph capture"
    return f"d = {inner} {sign} (beta * C){each}" if sign else f"d = {inner}{each}"


def also_takes(target: GemmTarget) -> tuple[bool, bool]:
    """Whether it takes a bias, and C. Raises RequestError: "bad-gemm", there is no such type, layout or epilogue."""
    kind = _choice(target, "dtype", target.dtype, tuple(_TYPES))
    _choice(target, f"output_dtype for {kind}", output_type(target), _TYPES[kind].outputs)
    _choice(target, "layout", target.layout, LAYOUTS)
    bias, _, combine = _SPELLED[_choice(target, "epilogue", target.epilogue, EPILOGUES).removeprefix("none")]
    return bool(bias), bool(combine)


def is_plain(target: GemmTarget) -> bool:
    """Whether its entry point takes A, B, C and D of one problem."""
    return is_measurable(target) and not target.batched


def is_measurable(target: GemmTarget) -> bool:
    """Whether what measures GEMMs knows how its entry point is called, and what comes out."""
    _, _, combine = _SPELLED.get(target.epilogue.removeprefix("none"), ("", "", ""))
    return not (target.grouped or combine)


def wrong(target: GemmTarget, message: str, next_step: str, code: str = "") -> RequestError:
    """An error of a target; without a code that of its kind."""
    code = code or ("bad-kernel" if isinstance(target, ImplicitGemm) else "bad-gemm")
    return RequestError(code, f'target "{target.name}": {message}', file=target.where, next_step=next_step)


def _choice(target: GemmTarget, key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise wrong(target, f'"{value}" is no {key}{nearest(value, allowed)}', "possible: " + ", ".join(allowed))
    return value


def _alignments(target: GemmTarget, typed: _Type, kind: str, output: str, layout: str, arch: str) -> tuple[int, int]:
    """Elements by which A and B, and D, are aligned: 16 bytes, or what the fixed sizes allow."""
    full = 1 if typed.simt and not is_amd(arch) else 16 // typed.size_bytes
    contiguous = {"A": "k" if layout[0] == "r" else "m", "B": "n" if layout[1] == "r" else "k"}
    sizes = {name: getattr(target, name) for name in dict.fromkeys(contiguous.values()) if getattr(target, name)}
    align = target.alignment or full
    if align > full or align & (align - 1):
        raise wrong(target, f"alignment {align} is not possible for {kind}", f"a power of two up to {full}")
    for name, size in sizes.items():
        while size % align:
            if target.alignment:
                raise wrong(
                    target,
                    f"{name} = {size} is no multiple of alignment = {align}",
                    "lower `alignment`, or leave it out",
                )
            align //= 2
    # cp.async copies 4 bytes at least; TMA, and int8's tensor core operands, want whole 16.
    tma = arch in (ARCH_3X, ARCH_100)
    least = full if kind == "int8" or tma else 1 if is_amd(arch) else max(1, 4 // typed.size_bytes)
    if align < least:
        wanted = " and ".join(dict.fromkeys(contiguous.values()))
        raise wrong(
            target,
            f"{kind} on {arch} in the layout {layout} is too badly aligned ({align} elements)",
            f"{wanted} must be a multiple of {least}",
        )
    full_d = 1 if typed.simt else 16 // _OUTPUTS[output][1]
    align_d = full_d
    while target.n and target.n % align_d:
        align_d //= 2
    if tma and align_d < full_d:
        raise wrong(target, f"n = {target.n} is too badly aligned for {arch}", f"n must be a multiple of {full_d}")
    return align, align_d


def _check_split(target: GemmTarget, combine: str) -> None:
    if not 1 <= target.split_k <= _MOST_SPLITS:
        raise wrong(target, f"split_k = {target.split_k} is not possible", f"1 to {_MOST_SPLITS}; 1 does not split")
    if target.split_k > 1 and (target.batched or combine):
        what = "batched" if target.batched else f'the epilogue "{target.epilogue}"'
        raise wrong(target, f"split_k and {what} do not go together", "leave one of them out")


def _check_grouped(target: GemmTarget, combine: str, arch: str) -> None:
    if not target.grouped:
        return
    if target.dtype not in ("fp16", "bf16"):
        raise wrong(target, f"{target.dtype} cannot be grouped", "possible: fp16, bf16")
    if arch in (ARCH_3X, ARCH_100):
        raise wrong(target, f"there is no grouped GEMM for {arch}", 'use arch = ["sm_90"]', "bad-arch")
    if target.batched or combine or target.split_k > 1:
        what = "batched" if target.batched else "split_k" if not combine else f'the epilogue "{target.epilogue}"'
        raise wrong(target, f"grouped and {what} do not go together", "leave one of them out")


def _warp_tile(target: GemmTarget, typed: _Type, tile: Triple, warps: Triple) -> Triple:
    if min(warps) <= 0 or warps[2] != 1 or any(size % count for size, count in zip(tile, warps, strict=True)):
        raise wrong(
            target,
            f"warps {list(warps)} do not divide tile {list(tile)}",
            "for example warps = [2, 2, 1] (the last is 1)",
        )
    count = warps[0] * warps[1]
    if count > 16:
        raise wrong(target, f"{count} warps are too many", "at most 16")
    warp = (tile[0] // warps[0], tile[1] // warps[1], tile[2])
    if warp[0] % 32 or warp[1] % 32 or (tile[2] * typed.size_bytes) % typed.k_bytes_80:
        depth = typed.k_bytes_80 // typed.size_bytes
        raise wrong(
            target,
            f"tile {list(tile)} with warps {list(warps)} gives warp tiles of {list(warp)}",
            f"each warp needs multiples of 32 x 32, and a depth that is a multiple of {depth}",
        )
    if warp[0] * warp[1] > 128 * 64:
        raise wrong(target, f"a warp tile of {list(warp)} does not fit the registers", "at most 64 x 128: more warps")
    return warp


def _check_shared(target: GemmTarget, typed: _Type, tile: Triple, stages: int, arch: str) -> None:
    if stages < 2:
        raise wrong(target, "stages = 1 is not possible", "2 or more")
    needed = stages * (tile[0] + tile[1]) * tile[2] * typed.size_bytes
    limit = _SHARED_BYTES.get(arch, _SHARED_BYTES_90)
    if needed > limit:
        raise wrong(
            target,
            f"tile {list(tile)} with {stages} stages needs {needed >> 10} KiB of shared memory",
            f"{arch} has {limit >> 10} KiB: fewer stages or a smaller tile",
        )


def _default_tile_90(typed: _Type) -> Triple:
    return (128, 128, 128 // typed.size_bytes)


def _check_tile_90(target: GemmTarget, typed: _Type, tile: Triple) -> None:
    step = 32 // typed.size_bytes
    if tile[0] not in (64, 128, 256) or tile[1] % 32 or tile[1] > 256 or tile[2] % step:
        raise wrong(
            target,
            f"tile {list(tile)} is not possible on sm_90a",
            f"m: 64, 128 or 256; n: a multiple of 32 up to 256; k: a multiple of {step}",
        )
    if (
        target.schedule
        and tile[0] == {"cooperative": 64, "pingpong": 256}[_choice(target, "schedule", target.schedule, SCHEDULES)]
    ):
        raise wrong(
            target,
            f"tile {list(tile)} cannot be {target.schedule}",
            "cooperative: m = 128 or 256; pingpong: m = 64 or 128",
        )
    if target.warps:
        raise wrong(target, "warps have no meaning on sm_90a", "leave `warps` out, or give sm_90a its own target")
    stages = max(target.stages, 2)
    needed = stages * (tile[0] + tile[1]) * tile[2] * typed.size_bytes
    if target.stages == 1 or needed > _SHARED_BYTES_90:
        raise wrong(
            target,
            f"tile {list(tile)} with {target.stages or stages} stages needs {needed >> 10} KiB of shared memory",
            f"between 2 stages and {_SHARED_BYTES_90 >> 10} KiB: a smaller tile, or leave `stages` out",
        )


def _check_100(target: GemmTarget, kind: str, combine: str) -> None:
    if kind not in _TYPES_100:
        raise wrong(target, f"{kind} has no kernel for {ARCH_100}", "possible: " + ", ".join(_TYPES_100))
    for name in ("tile", "warps", "cluster", "threads", "stages", "schedule", "batched"):
        if getattr(target, name):
            raise wrong(target, f"{ARCH_100} has one kernel for each type, without `{name}`", f"leave `{name}` out")
    if combine or target.split_k > 1:
        what = f'the epilogue "{target.epilogue}"' if combine else "split_k"
        raise wrong(target, f"{ARCH_100} has no kernel with {what}", "leave it out, or give sm_100a its own target")


def _cluster(target: GemmTarget) -> Triple:
    cluster = target.cluster or (2, 1, 1)
    if any(size not in (1, 2, 4, 8) for size in cluster) or cluster[2] != 1 or cluster[0] * cluster[1] > 8:
        raise wrong(
            target, f"cluster {list(cluster)} is not possible", "for example [2, 1, 1]; at most 8 blocks, the last is 1"
        )
    return cluster
