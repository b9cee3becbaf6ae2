"""The meaning of a GEMM target: its kernel for an architecture, its formula, and the error that rounding causes.

Knows the types' and epilogues' names in CUTLASS, no template and no compiler; `arch_rules` checks tiles and alignments.
"""

from __future__ import annotations

from itertools import product

from codegen.gemm.arch_rules import (
    ARCH_3X,
    ARCHS_2X,
    OUTPUTS,
    TYPES,
    alignments,
    check_100,
    check_amd,
    check_grouped,
    check_shared_80,
    check_split,
    check_tile_90,
    choice,
    cluster_90,
    default_tile_90,
    is_amd,
    rules_of,
    warp_tile_80,
    wrong,
)
from codegen.gemm.convolution import ImplicitGemm
from codegen.gemm.kernel import ARCH_100, ARCH_AMD, SCHEDULES, GemmKernel
from codegen.project.target import GemmTarget

_ACCUMULATORS = {"fp32": "float", "fp16": "cutlass::half_t", "int32": "int32_t"}
_ACTIVATIONS = {"": "", "relu": "ReLu", "gelu": "GELU", "silu": "SiLu", "sigmoid": "Sigmoid", "tanh": "Tanh"}
_COMBINED = {"": "", "add": "plus", "multiply": "multiplies"}
_SPELLED = {
    "_".join(word for word in words if word): words
    for words in product(("", "bias"), _ACTIVATIONS, _COMBINED)
    if words != ("", "", "add")  # beta adds C
}
EPILOGUES = tuple(name or "none" for name in _SPELLED)
LAYOUTS = ("rcr", "rrr", "ccr")
_AMD_TYPES = ("fp16", "bf16", "fp32")


def kernel_for(target: GemmTarget, arch: str) -> GemmKernel:
    """Return a target's kernel for an architecture.

    Raises:
        RequestError: "bad-gemm" ("bad-kernel" for a convolution), types, layout, tile, alignment or architecture do not
            fit together; "bad-arch".
    """
    if is_amd(arch):
        return _amd_kernel(target, arch)
    every = (*ARCHS_2X, ARCH_3X, ARCH_100)
    if arch not in every:
        raise wrong(target, f"there is no GEMM for {arch}", "architectures: " + ", ".join(every), "bad-arch")
    implicit, arch = isinstance(target, ImplicitGemm), rules_of(target, arch)
    kind = choice(target, "dtype", target.dtype, tuple(TYPES))
    typed = TYPES[kind]
    layout = choice(target, "layout", target.layout, LAYOUTS)
    epilogue = choice(target, "epilogue", target.epilogue, EPILOGUES)
    output = target.output_dtype or typed.outputs[0]
    choice(target, f"output_dtype for {kind}", output, typed.outputs)
    accumulator = target.accumulator or typed.accumulators[0]
    choice(target, f"accumulator for {kind}", accumulator, typed.accumulators)
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
        raise wrong(target, f'int8 cannot have the epilogue "{epilogue}"', "choose one of: none, bias, relu, bias_relu")
    for name in ("m", "n", "k", "stages", "alignment"):
        if getattr(target, name) < 0:
            raise wrong(target, f"{name} is negative", "0 stands for: known at run time, or chosen by buildd")
    check_split(target, combine)
    check_grouped(target, combine, arch)
    align, align_d = alignments(target, typed, kind, output, layout, arch)
    tile = target.tile or (default_tile_90(typed) if three else typed.tile_80)
    if min(tile) <= 0:
        raise wrong(target, f"tile {list(tile)} must be positive", f"for example tile = {list(typed.tile_80)}")
    warps = target.warps or ((4, 2, 1) if typed.simt else (2, 2, 1))
    warp = (1, 1, 1)
    stages = target.stages
    if newest:
        check_100(target, kind, combine)
    elif three:
        check_tile_90(target, typed, tile)
    else:
        warp = warp_tile_80(target, typed, tile, warps)
        stages = stages or typed.stages_80
        check_shared_80(target, typed, tile, stages, arch)
    cooperative = target.schedule == SCHEDULES[0] if target.schedule else tile[0] >= 128
    if three and not newest and target.split_k > 1 and not cooperative:
        raise wrong(target, "split_k on sm_90a needs the schedule cooperative", "use a tile with m = 128 or 256")
    return GemmKernel(
        arch=ARCHS_2X[0] if implicit else arch,
        three=three,
        element_a=typed.element,
        element_d=OUTPUTS[output][0],
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
        cluster=cluster_90(target) if three and not newest else (1, 1, 1),
        instruction=typed.instruction,
        simt=typed.simt,
        cooperative=cooperative,
        stages=stages,
        align=align,
        align_d=align_d,
        implicit=implicit,
    )


def _amd_kernel(target: GemmTarget, arch: str) -> GemmKernel:
    """Return a plain HIP kernel with tiles in fp32; one text serves all of AMD's architectures."""
    if isinstance(target, ImplicitGemm):
        raise wrong(target, f"there is no convolution for {arch}", "remove the gfx architectures", "bad-arch")
    kind = choice(target, f"dtype for {arch}", target.dtype, tuple(_AMD_TYPES))
    layout = choice(target, "layout", target.layout, LAYOUTS)
    output = target.output_dtype or kind
    choice(target, f"output_dtype for {kind}", output, tuple(dict.fromkeys((kind, "fp32"))))
    choice(target, f"accumulator for {arch}", target.accumulator or "fp32", ("fp32",))
    bias, activation, combine = _SPELLED[choice(target, "epilogue", target.epilogue, EPILOGUES).removeprefix("none")]
    for name in ("m", "n", "k", "stages", "alignment"):
        if getattr(target, name) < 0:
            raise wrong(target, f"{name} is negative", "0 stands for: known at run time, or chosen by buildd")
    for name in ("warps", "cluster", "schedule", "grouped"):
        if getattr(target, name):
            raise wrong(target, f"there is no `{name}` for {arch}", f"leave `{name}` out")
    if target.split_k != 1:
        raise wrong(target, f"there is no split_k for {arch}", "remove split_k")
    tile, threads, stages = target.tile or (128, 128, 16), target.threads or (16, 16, 1), target.stages or 2
    check_amd(target, tile, threads, stages)
    align, _ = alignments(target, TYPES[kind], kind, output, layout, arch)
    return GemmKernel(
        arch=ARCH_AMD, three=False, element_a=kind, element_d=output, element_accumulator="float",
        element_compute="float", a_row=layout[0] == "r", b_row=layout[1] == "r", bias=bool(bias),
        activation=activation, combine=combine, batched=target.batched, grouped=False, split_k=1, fp8=False, tile=tile,
        warp=(1, 1, 1), cluster=(1, 1, 1), instruction=(1, 1, 1), simt=True, cooperative=False, stages=stages,
        align=align, align_d=1, threads=threads,
    )  # fmt: skip


def output_type(target: GemmTarget) -> str:
    """Return the type of C and D."""
    return target.output_dtype or TYPES[target.dtype].outputs[0]


def tolerance(target: GemmTarget) -> float:
    """Return the largest error that rounding can cause, relative to results near 1."""
    # CUTLASS 2.x kernels add the parts of a split k in the output's type, so each part is rounded.
    rounded = max(1.0, target.split_k / 2)
    if target.accumulator == "fp16":
        return 5e-2 * rounded
    if target.dtype == "fp32":
        return 1e-4 * rounded
    return {"fp16": 2e-3, "bf16": 1.6e-2, "fp32": 2e-3, "int32": 0.0}[output_type(target)] * rounded


def formula(target: GemmTarget) -> str:
    """Return the formula of the kernel, for its header."""
    bias, activation, combine = _SPELLED[target.epilogue.removeprefix("none")]
    inner = "alpha * A @ B"
    if combine:
        inner += " + bias (a row of n)" if bias else ""
    else:
        inner += " + c (a row of n)" if bias else " + beta * C (c may be null if beta is 0)"
    inner = f"{activation}({inner})" if activation else inner
    sign = {"add": "+", "multiply": "*"}.get(combine)
    each = ", for each of `batch` problems, stored one after the other" if target.batched else ""
    if target.grouped:
        each = ", for each of `groups` problems: the host's arrays of pointers and of m, n, k; not under graph capture"
    return f"d = {inner} {sign} (beta * C){each}" if sign else f"d = {inner}{each}"


def also_takes(target: GemmTarget) -> tuple[bool, bool]:
    """Tell whether a target takes a bias, and whether it takes C. Raises RequestError: "bad-gemm", there is no such
    type, layout or epilogue."""
    kind = choice(target, "dtype", target.dtype, tuple(TYPES))
    choice(target, f"output_dtype for {kind}", output_type(target), TYPES[kind].outputs)
    choice(target, "layout", target.layout, LAYOUTS)
    bias, _, combine = _SPELLED[choice(target, "epilogue", target.epilogue, EPILOGUES).removeprefix("none")]
    return bool(bias), bool(combine)


def is_plain(target: GemmTarget) -> bool:
    """Tell whether a target's entry point takes A, B, C and D of one problem."""
    return is_measurable(target) and not target.batched


def is_measurable(target: GemmTarget) -> bool:
    """Tell whether the measuring program can call a target's entry point and check its results."""
    _, _, combine = _SPELLED.get(target.epilogue.removeprefix("none"), ("", "", ""))
    return not (target.grouped or combine)
