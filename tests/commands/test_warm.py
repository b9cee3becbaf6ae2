"""A machine without a GPU warms, another one imports and has nothing left to compile. Real nvcc, the real commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_programs import lend_programs
from tests.support.toolkit import small_toolkit

pytestmark = pytest.mark.cuda

KERNEL = """#include "scale.h"
__global__ void scale(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= FACTOR; }
"""
PROJECT = """[toolchain]
cuda = "TOOLKIT"

[target.scale]
kind = "cuda"
sources = ["src/*.cu"]
include = ["include"]
arch = ["sm_80"]

[target.other]
kind = "cuda"
output = "ptx"
sources = ["src/scale.cu"]
include = ["include"]
arch = ["sm_90"]
"""


def checkout(folder: Path) -> Path:
    for sub in ("src", "include"):
        (folder / sub).mkdir(parents=True)
    (folder / "src/scale.cu").write_text(KERNEL)
    (folder / "include/scale.h").write_text("#define FACTOR 3.0f\n")
    (folder / "buildd.toml").write_text(PROJECT.replace("TOOLKIT", str(small_toolkit())))
    return folder


def buildd(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "buildd", *arguments],
        env={**os.environ, "BUILDD_DIR": str(store), "BUILDD_DISABLE": "1", "XDG_CONFIG_HOME": str(store.parent)},
        capture_output=True,
        text=True,
    )


def test_warm_here_export_import_there_and_prove_it(tmp_path: Path) -> None:
    ci, gpu = checkout(tmp_path / "ci"), checkout(tmp_path / "gpu machine")
    first, second = tmp_path / "first", tmp_path / "second"
    bundle = tmp_path / "cache.bundle"
    for store in (first, second):
        lend_programs(store)

    early = buildd("cache", "export", str(bundle), "scale", "-C", str(ci), store=first)
    assert early.returncode == 2 and "run `buildd warm` for these targets first" in early.stderr
    assert not bundle.exists()

    warmed = buildd("warm", "scale", "-C", str(ci), store=first)
    assert warmed.returncode == 0, warmed.stderr
    assert not (ci / "build").exists(), "warming writes no outputs"
    assert buildd("cache", "export", str(bundle), "scale", "-C", str(ci), store=first).returncode == 0
    again = tmp_path / "again.bundle"
    assert buildd("cache", "export", str(again), "scale", "-C", str(ci), store=first).returncode == 0
    assert bundle.read_bytes() == again.read_bytes()

    cold = buildd("warm", "--prove", "scale", "-C", str(gpu), store=second)
    assert cold.returncode == 1 and "scale/src/scale.cu.o" in cold.stdout + cold.stderr
    assert buildd("cache", "import", str(bundle), store=second).returncode == 0
    proved = buildd("warm", "--prove", "scale", "-C", str(gpu), store=second)
    assert proved.returncode == 0, proved.stdout + proved.stderr
    other = buildd("warm", "--prove", "other", "-C", str(gpu), store=second)
    assert other.returncode == 1, "what was not asked for is not in the bundle"

    built = buildd("build", "scale", "-C", str(gpu), "--json", store=second)
    events = [json.loads(line)["body"] for line in built.stdout.splitlines()]
    assert events[-1]["type"] == "done" and events[-1]["hits"] == 2 and not events[-1].get("misses")
    (library,) = [event["path"] for event in events if event["type"] == "artifact"]
    assert (gpu / library).read_bytes().startswith(b"\x7fELF")
