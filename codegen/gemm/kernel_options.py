"""The options of a GEMM's kernel, and the names under which its measurements are stored.

Knows the names of candidates, problems and settings; neither which kernel is chosen (`decision`) nor where candidates
come from.
"""

from __future__ import annotations

import os
import re
import shlex

import msgspec

from codegen.context import Context
from codegen.gemm.arch_rules import ARCH_3X, is_amd, rules_of
from codegen.gemm.convolution import ImplicitGemm, words_of
from codegen.gemm.kernel import Triple
from codegen.gemm.spec import kernel_for
from codegen.plan import Frozen
from codegen.project.target import GemmTarget
from codegen.reach import read_regular
from codegen.variables.aitemplate_flags import aitemplate_flags
from codegen.variables.settings import Settings

Sizes = tuple[int, ...]
"""m, n, k of a problem; a batched one has the number of problems first. For a convolution the sizes of x: n, height,
width, channels."""
_TRIPLE = r"(\d+)x(\d+)x(\d+)"
_NAME = re.compile(rf"{_TRIPLE}_([wct]){_TRIPLE}_s(\d+)(?:_(cooperative|pingpong))?")
_VERSION = re.compile(r"#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)")


class Candidate(Frozen, frozen=True):
    """A choice of a kernel's options. The architecture determines which options apply."""

    tile: Triple
    warps: Triple | None = None
    cluster: Triple | None = None
    threads: Triple | None = None
    stages: int = 0
    schedule: str = ""

    @property
    def name(self) -> str:
        """Name such as "128x128x64_c2x1x1_s0_pingpong"; `candidate_from` reads it."""
        kind, shape = ("w", self.warps) if self.warps else ("c", self.cluster or (1, 1, 1))
        kind, shape = ("t", self.threads) if self.threads else (kind, shape)
        text = f"{_by(self.tile)}_{kind}{_by(shape)}_s{self.stages}"
        return f"{text}_{self.schedule}" if self.schedule else text

    def of(self, target: GemmTarget) -> GemmTarget:
        """Return the target with exactly this kernel."""
        return msgspec.structs.replace(
            target,
            tile=self.tile,
            warps=self.warps,
            cluster=self.cluster,
            threads=self.threads,
            stages=self.stages,
            schedule=self.schedule,
        )


def candidate_from(name: str) -> Candidate | None:
    """Return the candidate of a name; None if the name is invalid."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    numbers = [int(part) for part in (*match.groups()[:3], *match.groups()[4:7])]
    tile, shape = (numbers[0], numbers[1], numbers[2]), (numbers[3], numbers[4], numbers[5])
    return Candidate(
        tile=tile,
        warps=shape if match[4] == "w" else None,
        cluster=shape if match[4] == "c" else None,
        threads=shape if match[4] == "t" else None,
        stages=int(match[8]),
        schedule=match[9] or "",
    )


def problem_of(target: GemmTarget, arch: str) -> str:
    """Describe the computation, for rows of profiles; 0 stands for a size that is known only at run time."""
    kernel = kernel_for(target, arch)
    if isinstance(target, ImplicitGemm):
        types = f"{target.dtype} {target.output_dtype or target.dtype} {kernel.element_accumulator}"
        aligned = f"align{kernel.align},{kernel.align_d}"
        return f"conv2d {arch} {types} {target.epilogue} {aligned} {words_of(target.conv)}"
    words = (
        f"gemm {arch} {target.dtype} {target.output_dtype or target.dtype} {kernel.element_accumulator}",
        f"{target.layout} {target.epilogue} align{kernel.align},{kernel.align_d} m{target.m} n{target.n} k{target.k}",
    )
    more = tuple(word for word in ("batched", "grouped") if getattr(target, word))
    more += (f"split{target.split_k}",) if target.split_k > 1 else ()
    return " ".join((*words, *more))


def flags_of(context: Context, target: GemmTarget, *, hip: bool = False) -> str:
    """Return those flags of a target's kernels that the project or the user chose."""
    added = aitemplate_flags(context.variables, "hip" if hip else "cuda", aitemplate_shaped=False)
    words = (*target.flags, *(added.optimization or ()), *added.flags, *(f"-D{name}" for name in target.define))
    return shlex.join(words)


def library_version(cutlass: str) -> str:
    """Return CUTLASS's version from its header; empty if the header has none."""
    try:
        header = read_regular(os.path.join(cutlass, "include", "cutlass", "version.h")).decode(errors="replace")
        numbers = dict(_VERSION.findall(header))
    except OSError:
        return ""
    return ".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))


def batch_of(sizes: Sizes) -> int:
    """Return the number of problems; 0 if the GEMM is not batched."""
    return sizes[0] if len(sizes) > 3 else 0


def is_open(target: GemmTarget) -> bool:
    """Tell whether the project leaves the choice of the kernel to buildd."""
    return not any(getattr(target, name) for name in ("tile", "warps", "cluster", "threads", "stages", "schedule"))


def runs_in_ci(variables: Settings) -> bool:
    """Tell whether AITemplate's variables turn profiling off and ask for the smallest kernel."""
    circle = variables.text("CI_FLAG") == "CIRCLECI" and not variables.is_on("TRICK_CI_ENV")
    return circle and not variables.is_on("FORCE_PROFILE")


def smallest(target: GemmTarget, arch: str) -> Candidate:
    """Return the kernel that compiles fastest, for CI_FLAG."""
    if is_amd(arch):
        return Candidate(tile=(64, 64, 16), threads=(16, 16, 1), stages=1)
    if rules_of(target, arch) == ARCH_3X:
        deep = 128 // {"tf32": 4, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}.get(target.dtype, 2)
        return Candidate(tile=(64, 64, deep), cluster=(1, 1, 1), schedule="pingpong")
    deep = {"tf32": 16, "fp32": 8, "int8": 64}.get(target.dtype, 32)
    return Candidate(tile=(64, 64, deep), warps=(2, 2, 1) if target.dtype != "fp32" else (2, 1, 1), stages=3)


def _by(sizes: Triple) -> str:
    return "x".join(map(str, sizes))
