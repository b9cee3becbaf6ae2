"""Cases, surveys, a fake nvidia-smi and a project with two GEMMs, for tests of profiling. Needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buildd.profiling.gpus import Gpu
from codegen.gemm.candidates import Ranked
from codegen.gemm.kernel_options import Candidate, problem_of
from codegen.gemm.spec import kernel_for
from codegen.project.target import GemmTarget
from codegen.tuning.survey import Case, Survey
from tests.support.paths import FAKES

MEASURE = (str(FAKES / "fake-measure"),)

A100 = Gpu(index=0, uuid="GPU-a", name="NVIDIA A100", driver="580.1", capability="8.0")

TILES = [((128, 128, 32), 4), ((128, 128, 32), 3), ((64, 64, 32), 10), ((64, 64, 64), 5), ((128, 64, 32), 6)]
TILES += [((128, 64, 64), 3)]

TARGET = GemmTarget(name="g", m=64, n=64, k=64, arch=("sm_80",))


def case_of(count: int, target: GemmTarget = TARGET) -> Case:
    ranked = []
    for number, (tile, stages) in enumerate(TILES[:count]):
        candidate = Candidate(tile=tile, warps=(2, 2, 1), stages=stages)
        kernel = kernel_for(candidate.of(target), "sm_80").name
        ranked.append(Ranked(candidate=candidate, kernel=kernel, estimate_us=10.0 + number))
    sizes = (target.m, target.n, target.k)
    return Case(target.name, "sm_80", problem_of(target, "sm_80"), sizes, target, tuple(ranked))


def survey_of(*cases: Case, **fields: Any) -> Survey:
    given: dict[str, Any] = {
        "toolkit": "13.0.88",
        "library": "4.2.0",
        "flags": {case.target: "" for case in cases},
        "build": "build",
        "cuda": "",
        "host_compiler": "",
        "devices": None,
        "environment": {},
        **dict.fromkeys(("no_candidates", "continuous_integration", "again", "only_known"), False),
    }
    return Survey(cases=cases, **{**given, **fields})


def smi(folder: Path, script: str) -> dict[str, str]:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


LISTED = """cat << END
0, GPU-11, NVIDIA H200, 580.1, 9.0
1, GPU-12, NVIDIA H200, 580.1, 9.0
a line that is none
END"""

PROJECT = """\
[target.g]
kind = "gemm"
m = 512
n = 512
k = 512
arch = ["sm_80"]

[target.open]
kind = "gemm"
arch = ["sm_80"]
"""
