"""The installed torch and Triton have the functions whose timings take turns."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from buildd.shims.framework_environment import HOOKS

pytestmark = [pytest.mark.torch, pytest.mark.triton]

PROGRAM = """
from torch._inductor.runtime import benchmarking
import triton.runtime.autotuner as autotuner
kinds = [kind for kind in vars(benchmarking).values() if isinstance(kind, type) and "benchmark_gpu" in vars(kind)]
assert isinstance(benchmarking.benchmarker, tuple(kinds)), kinds
print(*(kind.__name__ for kind in kinds if not hasattr(kind.benchmark_gpu, "__wrapped__")))
print(hasattr(autotuner.Autotuner._bench, "__wrapped__"))
"""


def test_every_timing_function_is_wrapped(tmp_path: object) -> None:
    environ = {**os.environ, "BUILDD_DIR": str(tmp_path), "PYTHONPATH": HOOKS}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split("\n")[:2] == ["", "True"], done.stdout + done.stderr
