"""AIT_ENABLE_STANDALONE for kernels over arrays: the program compiles for both vendors, and finds what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.carry_out import carry_out_all, plan_for, request_for
from tests.support.cuda_on_host import on_the_host

CONV: dict[str, Any] = {"kind": "conv2d", "shape": [0, 8, 8, 8], "filters": 16, "kernel": [3, 3], "stride": [2, 2]}
ROWS: dict[str, Any] = {"kind": "rowwise", "op": "layer_norm", "shape": [0, 64], "dtype": "fp32"}
WAVE: dict[str, Any] = {
    "kind": "elementwise",
    "expression": "x / y",
    "inputs": {"x": "fp32", "y": "bf16"},
    "shape": [0, 8],
}
ON = {"AIT_ENABLE_STANDALONE": "1"}
RUN = """
#include <math.h>
#include <stdlib.h>

static int calls;

/* A sum for a norm: FAULT 1 differs from run to run, FAULT 2 makes an infinity, FAULT 3 is refused. */
int t_run(const float *x, const float *weight, const float *bias, float *y, long long d0, long long d1, void *stream) {
  if (FAULT == 3 || d1 != 64) return -4;
  for (long long i = 0; i < d0 * d1; i++) y[i] = x[i] * weight[i % d1] + bias[i % d1];
  if (FAULT == 1) y[d0 * d1 - 1] += (float)(calls++ % 2);
  if (FAULT == 2) y[0] = INFINITY;
  return (void)stream, 0;
}
"""


@pytest.mark.cuda
def test_the_program_finds_what_is_wrong(tmp_path: Path) -> None:
    plan = plan_for(request_for(tmp_path, file="", specs={"t": ROWS | {"arch": ["sm_80"]}}, environment=environment()))
    (source,) = (file.content for file in plan.files if file.path.endswith("t_test.cu"))
    found = {}
    library = tmp_path / "t.so"  # loaded by its path, so the program need not be compiled for each fault
    (tmp_path / "t.c").write_text(RUN)
    build = ["gcc", "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "t.c"]
    subprocess.run([*build, "-DFAULT=0"], check=True)
    program = on_the_host(tmp_path, source, library)
    for fault in range(4):
        subprocess.run([*build, f"-DFAULT={fault}"], check=True)
        done = subprocess.run([program, "3"], capture_output=True, text=True, timeout=60)
        found[fault] = done.stderr.strip() or json.loads(done.stdout)["outcome"]
    assert found == {
        0: "measured",
        1: "t-test: two runs on the same numbers differ",
        2: "t-test: y has what is no finite number",
        3: "t-test: t_run returned -4",
    }
    for words in (["0"], ["3", "64"]):
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stderr.endswith("[d0]\n")


@pytest.mark.parametrize(
    ("arch", "table"),
    [
        pytest.param("sm_80", ROWS, marks=[pytest.mark.cuda, pytest.mark.slow], id="rowwise"),
        pytest.param("sm_80", WAVE, marks=pytest.mark.cuda, id="elementwise"),
        pytest.param("sm_80", CONV, marks=[pytest.mark.cuda, pytest.mark.slow], id="conv2d"),
        pytest.param("gfx90a", ROWS, marks=[pytest.mark.hip, pytest.mark.slow], id="rowwise on AMD"),
    ],
)
def test_the_program_compiles_beside_its_library(tmp_path: Path, arch: str, table: dict[str, Any]) -> None:
    spec = table | {"arch": [arch]}
    plan = plan_for(request_for(tmp_path, file="", specs={"t.1": spec}, environment=environment()))
    assert [artifact.path for artifact in plan.artifacts] == ["build/t.1/libt.1.so", "build/t.1-test/t.1-test"]
    assert not any("warning" in ran.said for ran in carry_out_all(plan, tmp_path, tmp_path / "scratch"))
    done = subprocess.run([tmp_path / "build/t.1-test/t.1-test", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "usage: " in done.stderr and done.stderr.endswith("[d0]\n")


def environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), **ON}
