"""Calls of a user's own kernels: a library for the CPU stands for one for a GPU. Real torch, real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from buildd.profiling.bench import Bench, GpuFailed, Measurement
from buildd.profiling.own_calls import WORKER, question, with_paths
from buildd.store.profiles import Outcome
from codegen.project.project_file import load_project
from codegen.tuning.own_problem import OwnCall, own_calls
from tests.support.carry_out import request_for

pytestmark = pytest.mark.torch

SOURCE = """
#include <cmath>
#include <cstdlib>
extern "C" void scale(const float* x, float* out, int n, float by, void* stream) {
    for (int i = 0; i < n; ++i) out[i] = by * x[i];
}
extern "C" void late(const float* x, float* out, int n, float by, void* stream) {
    for (int i = 0; i + 1 < n; ++i) out[i] = by * x[i];
}
extern "C" void off(const float* x, float* out, int n, float by, void* stream) {
    for (int i = 0; i < n; ++i) out[i] = by * x[i] + (i == 7);
}
extern "C" void dies(const float*, float*, int, float, void*) { abort(); }
extern "C" void count(long* x, long n, void* stream) { for (long i = 0; i < n; ++i) x[i] += i; }
"""
REFERENCE = """
import torch
print("a reference may print")
def scale(x, n, by):
    return x[:n] * by
def count(x, n):
    x += torch.arange(n)
    return x
def two(x, n, by):
    return x, x
def fails(x, n, by):
    raise RuntimeError("no such case")
def hungry(x, n, by):
    return torch.empty(1 << 60)
"""
SCALED = {
    "sizes": {"n": 1000},
    "arguments": {"x": {"shape": ["n"]}, "out": {"shape": ["n"], "output": True}, "n": "n", "by": 3.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("calls")
    (made / "kernels.cc").write_text(SOURCE)
    (made / "ref.py").write_text(REFERENCE)
    command = ("g++", "-O2", "-shared", "-fPIC", "-o", "libkernels.so", "kernels.cc")
    subprocess.run(command, cwd=made, check=True)
    return made


DRIVER = """
#include <cstdio>
#include <cstring>
static int used = 0;
extern "C" int cuModuleLoadData(void** module, const void* code) {
    *module = &used;
    return std::strcmp((const char*)code, "code");
}
extern "C" int cuModuleGetFunction(void** function, void*, const char* name) {
    *function = (void*)1;
    return std::strcmp(name, "scale_kernel");
}
extern "C" int cuFuncSetAttribute(void*, int what, int bytes) { used = what == 8 ? bytes : 0; return 0; }
extern "C" int cuGetErrorString(int, const char** text) { *text = "not what was compiled"; return 0; }
extern "C" int cuLaunchKernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned, unsigned,
                              unsigned shared, void*, void** parameters, void**) {
    if (gx != 4 || gy != 2 || gz != 1 || threads != 256 || shared != 65536 || used != 65536) return 1;
    const float* x = *(const float**)parameters[0];
    const int n = *(int*)parameters[1];
    float* out = *(float**)parameters[2];
    char* scratch = *(char**)parameters[3];
    std::memset(scratch, 1, 8 * 128);  // of each program
    if (*(void**)parameters[4]) return 1;
    for (int i = 0; i < n; ++i) out[i] = 2 * x[i];
    return 0;
}
"""
KERNEL = """
import triton
@triton.jit
def scale_kernel(x, n, out, BLOCK: "constant"):
    raise NotImplementedError("it is read, not run")
"""
DESCRIBED = {
    **{"name": "scale_kernel", "num_warps": 8, "warp_size": 32, "shared": 65536, "cluster_dims": [1, 1, 1]},
    **{"global_scratch_size": 128, "profile_scratch_size": 0, "launch_cooperative_grid": False},
}


def call_of(folder: Path, symbol: str, reference: str = "ref.py:scale", **measure: Any) -> OwnCall:
    table = {"kind": "cuda", "sources": ["a.cu"], "arch": ["sm_90"]}
    table["measure"] = {**SCALED, "symbol": symbol, "reference": reference, **measure}
    request = request_for(folder, "t", specs={"t": table}, file="")
    (call,) = own_calls(load_project(request).targets[0])
    found = with_paths(call, str(folder), "build", {"t": str(folder / "libkernels.so")})
    assert found is not None
    return found


def measured(calls: Sequence[OwnCall], device: str = "cpu", more: Mapping[str, str] | None = None) -> list[Measurement]:
    async def work() -> list[Measurement]:
        bench = Bench((sys.executable, str(WORKER), device), {"PATH": "/usr/bin:/bin", **(more or {})}, "0")
        try:
            return [await bench.measure(question(call), nullcontext_turn, lambda: 0.0) for call in calls]
        finally:
            await bench.close()

    return asyncio.run(work())


class nullcontext_turn(nullcontext[None]):
    """A turn that anybody may have."""


def test_right_results_are_timed_with_a_function_or_a_library_as_the_reference(folder: Path) -> None:
    in_place = {"sizes": {"n": 50}, "arguments": {"x": {"shape": ["n"], "dtype": "int64", "in_place": True}}}
    in_place["arguments"]["n"] = {"value": "n", "dtype": "int64"}
    found = measured(
        [
            call_of(folder, "scale"),
            call_of(folder, "scale", "libkernels.so:scale"),
            call_of(folder, "count", "ref.py:count", **in_place),
        ]
    )
    assert [each.outcome for each in found] == [Outcome.MEASURED] * 3, found
    assert all(each.time_us > 0 and each.samples >= 10 and each.error < 1e-6 for each in found)


@pytest.mark.parametrize(
    ("symbol", "reference", "outcome", "words"),
    [
        ("late", "ref.py:scale", Outcome.WRONG, "out[999] is nan"),
        ("off", "ref.py:scale", Outcome.WRONG, "out[7] is"),
        ("dies", "ref.py:scale", Outcome.CRASHED, "signal 6"),
        ("nothing", "ref.py:scale", Outcome.REFUSED, "has no function nothing"),
        ("scale", "ref.py:nothing", Outcome.REFUSED, "ref.py:nothing failed: AttributeError"),
        ("scale", "ref.py:two", Outcome.REFUSED, "must return 1 tensor"),
        ("scale", "ref.py:fails", Outcome.REFUSED, "RuntimeError: no such case"),
        ("scale", "ref.py:hungry", Outcome.REFUSED, "failed"),
        ("scale", "libnone.so:scale", Outcome.REFUSED, "libnone.so"),
        ("scale", "libkernels.so:off", Outcome.WRONG, "out[7]"),
    ],
)
def test_another_end_is_told(folder: Path, symbol: str, reference: str, outcome: Outcome, words: str) -> None:
    (found,) = measured([call_of(folder, symbol, reference)])
    assert found.outcome is outcome and words in found.note, found


def test_a_triton_kernel_is_launched_with_its_arguments_in_the_kernels_order(folder: Path) -> None:
    """Through a driver that computes on the host, and checks what it is given."""
    (folder / "driver.cc").write_text(DRIVER)
    command = ("g++", "-O2", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.cc")
    subprocess.run(command, cwd=folder, check=True)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "ref.py").write_text(REFERENCE + "def twice(x, n):\n    return 2 * x\n")
    table = {
        "kind": "triton",
        "source": "kernel.py",
        "kernel": "scale_kernel",
        "signature": {"out": "*fp32", "x": "*fp32", "n": "i32"},
        "constants": {"BLOCK": 256},
        "num_warps": 8,
        "arch": ["sm_90"],
        "measure": {
            "sizes": {"n": 1000},
            "arguments": {"x": {"shape": ["n"]}, "n": "n", "out": {"shape": ["n"], "output": True}},
            "grid": ["cdiv(n, BLOCK)", 2],
            "reference": "ref.py:twice",
        },
    }
    (known,) = own_calls(load_project(request_for(folder, "t", specs={"t": table}, file="")).targets[0])
    call = with_paths(known, str(folder), "build", {})
    assert call is not None
    code = Path(call.path)
    code.parent.mkdir(parents=True)
    code.write_bytes(b"code\0")
    description = code.with_suffix(".json")
    description.write_text(json.dumps(DESCRIBED))
    driver = {"LD_LIBRARY_PATH": str(folder)}
    (found,) = measured([call], more=driver)
    assert found.outcome is Outcome.MEASURED and found.error == 0.0, found
    description.write_text(json.dumps({**DESCRIBED, "name": "other"}))
    (found,) = measured([call], more=driver)
    assert found.outcome is Outcome.REFUSED and "cuModuleGetFunction: not what was compiled" in found.note
    description.write_text(json.dumps({**DESCRIBED, "cluster_dims": [2, 1, 1]}))
    (found,) = measured([call], more=driver)
    assert found.outcome is Outcome.REFUSED and "clusters" in found.note


def test_without_a_gpu_it_is_the_gpus_fault(folder: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(GpuFailed):
        measured([call_of(folder, "scale")], "cuda")
