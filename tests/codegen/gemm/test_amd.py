"""GEMMs for AMD's GPUs: what is refused, that one text is for all, that it computes what it says, that hipcc takes it.

No AMD GPU is needed: tests/fakes/host-hip runs a kernel as it is generated, each of its threads as one of the host's.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.profiling.gpus import find_amd_gpus, shown_gpus
from codegen.errors import RequestError
from codegen.gemm.best_kernels import Best, Published, Setting
from codegen.gemm.capability import to_measure
from codegen.gemm.gemm import MEASURE, kernel_text, sources_of
from codegen.gemm.kernel import GemmKernel
from codegen.gemm.kernel_options import candidate_from, problem_of, smallest
from codegen.gemm.spec import kernel_for
from codegen.project.target import GemmTarget
from codegen.tuning.pick import for_capability
from codegen.tuning.survey import candidate_spec, survey
from protocol.messages import Request
from tests.support.carry_out import KNOWLEDGE, answered, carry_out_all, plan_for, request_for
from tests.support.developer import Developer
from tests.support.paths import FAKES
from tests.support.toolkit import host_compiler

HOST = FAKES / "host-hip"
MISALIGNED, INVALID = -1, -4


def target(**keys: Any) -> GemmTarget:
    return msgspec.convert({"name": "g", "where": "buildd.toml:2", **keys}, GemmTarget)


def kernel(**keys: Any) -> GemmKernel:
    return kernel_for(target(**keys), "gfx90a")


def test_one_kernel_is_for_all_architectures() -> None:
    one = kernel(epilogue="bias_gelu")
    assert one == kernel_for(target(epilogue="bias_gelu"), "gfx1100:xnack-") and one.amd
    assert one.name == "gemm_gfx_fp16_float_fp16_rcr_bias_gelu_128x128x16_t16x16x1_s2_a8_d1"
    names = {one.name}
    for keys in ({"tile": [64, 64, 16]}, {"threads": [8, 32, 1]}, {"stages": 1}, {"k": 4}, {"dtype": "fp32"}):
        other = kernel(**{"epilogue": "bias_gelu", **keys})
        names.add(other.name)
        assert kernel_text(other, "g") != kernel_text(one, "g")
    assert len(names) == 6
    ((file, unit),) = sources_of(one, "build")
    assert file.path == unit.source == f"build/kernels/{one.name}.hip"
    chosen = smallest(target(), "gfx90a")
    assert candidate_from(chosen.name) == chosen and kernel_for(chosen.of(target()), "gfx90a").threads == (16, 16, 1)
    assert problem_of(target(m=8), "gfx90a").startswith("gemm gfx90a fp16 fp16 float rcr none align8,1 m8 n0 k0")


@pytest.mark.parametrize(
    ("keys", "what", "allowed"),
    [
        ({"dtype": "int8"}, '"int8" is not a valid dtype for gfx90a', "fp16, bf16, fp32"),
        ({"output_dtype": "bf16"}, '"bf16" is not a valid output_dtype for fp16', "fp16, fp32"),
        ({"accumulator": "fp16"}, "accumulator", "fp32"),
        ({"layout": "crc"}, "not a valid layout", "rcr, rrr, ccr"),
        ({"epilogue": "bias_relo"}, 'did you mean "bias_relu"', "bias_gelu"),
        ({"grouped": True}, "no `grouped` for gfx90a", "leave"),
        ({"warps": [2, 2, 1]}, "no `warps` for gfx90a", "leave"),
        ({"split_k": 2}, "no split_k", "remove"),
        ({"tile": [100, 128, 16]}, "tile [100, 128, 16]", "multiples of 8"),
        ({"threads": [3, 3, 1]}, "threads [3, 3, 1]", "a multiple of 64"),
        ({"threads": [16, 8, 2]}, "threads [16, 8, 2]", "a multiple of 64"),
        ({"tile": [64, 24, 16]}, "do not divide", "[16, 16, 1]"),
        ({"tile": [256, 256, 16]}, "does not fit the registers", "smaller"),
        ({"stages": 3}, "stages = 3", "1 or 2"),
        ({"tile": [128, 128, 64]}, "needs 129 KiB of shared memory", "64 KiB"),
        ({"k": 6, "alignment": 4}, "not a multiple of alignment = 4", "lower"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(keys: dict[str, Any], what: str, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        kernel(**keys)
    assert caught.value.code == "bad-gemm" and caught.value.file == "buildd.toml:2"
    assert what in caught.value.message and allowed in caught.value.next_step


def host_library(folder: Path, one: GemmKernel) -> ctypes.CDLL:
    (folder / "gemm.cpp").write_bytes(kernel_text(one, "g"))
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-Wno-unknown-pragmas"]
    command = ["g++", *flags, f"-DOPERANDS={5 if one.both else 4}", "-isystem", HOST, "-o", folder / "libg.so"]
    command.append(folder / "gemm.cpp")
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "libg.so"))


def bits(value: float) -> int:
    """The bits of the nearest bf16."""
    (whole,) = struct.unpack("<I", struct.pack("<f", value))
    return (int(whole) + 0x7FFF + (int(whole) >> 16 & 1)) >> 16


def array(values: list[float], dtype: str) -> Any:
    if dtype == "fp32":
        return (ctypes.c_float * len(values))(*values)
    return (ctypes.c_uint16 * len(values))(*map(bits, values))


def numbers(found: Any, dtype: str) -> list[float]:
    if dtype == "fp32":
        return list(found)
    return [struct.unpack("<f", struct.pack("<I", one << 16))[0] for one in found]


@pytest.mark.skipif(not host_compiler(), reason="no host compiler")
@pytest.mark.parametrize(
    ("keys", "batch"),
    [
        pytest.param({"dtype": "fp32", "tile": [32, 16, 8], "threads": [8, 8, 1]}, 0, marks=pytest.mark.slow),
        ({"dtype": "fp32", "layout": "rrr", "epilogue": "bias_relu", "tile": [16, 32, 16], "threads": [4, 16, 1],
          "stages": 1, "batched": True}, 2),
        ({"dtype": "bf16", "layout": "ccr", "epilogue": "bias_tanh_multiply", "tile": [32, 32, 8],
          "threads": [8, 8, 1]}, 0),
    ],
)  # fmt: skip
def test_a_kernel_computes_what_it_says(tmp_path: Path, keys: dict[str, Any], batch: int) -> None:
    one = kernel(**keys)
    run = host_library(tmp_path, one).g_run
    m, n, k, dtype, count = 40, 24, 24, str(keys["dtype"]), max(1, batch)
    rng = random.Random(1)

    def drawn(size: int) -> list[float]:
        return [rng.randrange(-8, 9) / 8 for _ in range(size)]

    a, b, c, bias = drawn(count * m * k), drawn(count * n * k), drawn(count * m * n), drawn(n)
    third = bias if one.bias and not one.combine else c
    held = [array(values, dtype) for values in (a, b, third, *((bias,) if one.both else ()), [99.0] * (count * m * n))]
    addresses = [ctypes.c_void_p(ctypes.addressof(each)) for each in held]
    sizes = (m, n, k, *((batch,) if batch else ()))

    def called(*sizes: int, first: ctypes.c_void_p = addresses[0]) -> int:
        scales = (ctypes.c_float(0.5), ctypes.c_float(2.0))
        return int(run(first, *addresses[1:], *map(ctypes.c_int, sizes), *scales, None, None))

    assert called(*sizes) == 0
    worst = 0.0
    for at, value in enumerate(numbers(held[-1], dtype)):
        problem, row, column = at // (m * n), at // n % m, at % n
        total = 0.0
        for p in range(k):
            left = row * k + p if one.a_row else p * m + row
            total += a[problem * m * k + left] * b[problem * n * k + (p * n + column if one.b_row else column * k + p)]
        want = 0.5 * total + (bias[column] if one.bias else 0.0 if one.combine else 2.0 * c[at])
        want = {"relu": lambda v: max(v, 0.0), "tanh": math.tanh}.get(one.activation, lambda v: v)(want)
        want *= 2.0 * c[at] if one.combine else 1.0
        worst = max(worst, abs(value - want) / max(1.0, abs(want)))
    assert worst < (1e-5 if dtype == "fp32" else 8e-3)
    assert called(*sizes[:2], k - 1, *sizes[3:]) in (MISALIGNED, 0)
    if one.a_row:
        assert called(m, n, k - 1, *sizes[3:]) == MISALIGNED
    assert called(*sizes, first=ctypes.c_void_p(ctypes.addressof(held[0]) + 2)) == MISALIGNED
    assert called(-1, n, k, *sizes[3:]) == INVALID and called(0, n, k, *sizes[3:]) == 0


@pytest.mark.hip
@pytest.mark.timeout(600)
def test_hipcc_takes_it(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"dtype": "bf16", "output_dtype": "fp32", "epilogue": "bias_gelu", "n": 96}
    keys |= {"tile": [32, 32, 8], "flags": ["-O1"]}
    spec = {"kind": "gemm", "arch": ["gfx90a"], **keys}
    plan = plan_for(request_for(tmp_path, file="", specs={"g": spec}))
    for ran in carry_out_all(plan, tmp_path, tmp_path / "scratch"):
        assert "warning" not in ran.said, ran.said
    library = ctypes.CDLL(str(tmp_path / "build/g/libg.so"))
    library.g_workspace_bytes.restype = ctypes.c_size_t
    assert library.g_workspace_bytes(8, 96, 8) == 0
    run = library.g_run
    run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 3 + [ctypes.c_float] * 2 + [ctypes.c_void_p] * 2
    assert run(4096, 4096, 4096, 4096, 8, 95, 8, 1.0, 0.0, None, None) == INVALID
    assert run(4096, 4096, 4096, 4096, 8, 96, 7, 1.0, 0.0, None, None) == MISALIGNED
    assert run(4096, 4096, 4096, 4096, 0, 96, 8, 1.0, 0.0, None, None) == 0


@pytest.mark.hip
def test_candidates_are_ranked_without_a_gpu_and_the_best_is_taken(tmp_path: Path) -> None:
    environ = {"PATH": os.defpath, "CACHE_DIR": str(tmp_path)}
    table = {"kind": "gemm", "arch": ["gfx90a", "gfx1030"], "m": 4096, "n": 4096, "k": 4096, "profile": True}
    specs = {"large": table, "small": {**table, "m": 16}, "n": {**table, "arch": ["sm_80"]}}

    def request(*names: str, **variables: str) -> Request:
        return request_for(tmp_path, *names, file="", specs=specs, environment={**environ, **variables})

    found = answered(
        lambda: survey(request("large", "small", HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0"), KNOWLEDGE)
    )
    assert (found.hip, found.library, found.devices) == (True, "", ("1",)) and found.toolkit
    assert [(case.target, case.arch) for case in found.cases] == [
        ("large", "gfx1030"), ("large", "gfx90a"), ("small", "gfx1030"), ("small", "gfx90a"),
    ]  # fmt: skip
    for case in found.cases:
        assert len(case.ranked) > 100 and case.ranked == tuple(dict.fromkeys(case.ranked))
        rows = case.ranked[0].candidate.tile[0]
        assert rows >= 64 if case.target == "large" else rows <= 32, "tiles without rows compute for nothing"
    case = found.cases[1]
    assert for_capability(found.cases, "gfx90a")["large"] == case and not for_capability(found.cases, "9.0")
    name, built = candidate_spec(case, case.ranked[0])
    assert built["threads"] == list(case.ranked[0].candidate.threads or ()) and built["arch"] == ["gfx90a"]
    tried = plan_for(request_for(tmp_path, file="", specs={name: built}, environment=environ))
    with pytest.raises(RequestError, match="GPUs of two vendors"):
        answered(lambda: survey(request(), KNOWLEDGE))

    guess = plan_for(request("large"))
    assert guess.unmeasured[0].wanted == ("gfx90a", "gfx1030") == guess.unmeasured[0].guessed
    assert to_measure(guess.unmeasured, ("9.0",)) == ()
    other = case.ranked[7]
    setting = Setting(gpu="MI210", driver="", toolkit=found.toolkit, library="", flags="", capability="gfx90a")
    known = Best(setting=setting, problem=case.problem, candidate=other.candidate.name, time_us=9.0)
    (tmp_path / "buildd").mkdir()
    (tmp_path / "buildd/best.json").write_bytes(msgspec.json.encode(Published(best=(known,))))
    plan = plan_for(request("large"))
    assert plan.notices[0].startswith(f"large: {other.candidate.name} for gfx90a, the best on MI210, 9.0 us")
    assert any(file.path == f"build/kernels/{other.kernel}.hip" for file in plan.files) and plan.unmeasured == ()
    assert [file for file in tried.files if "/kernels/" in file.path] != []


def test_amd_gpus_are_what_their_driver_shows(tmp_path: Path) -> None:
    assert find_amd_gpus(str(tmp_path / "none")) == ((), "there is no AMD GPU here, or no driver for one")
    nodes = {"0": "simd_count 0\ngfx_target_version 0\n", "2": "gfx_target_version 90010\nunique_id 255\n"}
    nodes |= {"10": "gfx_target_version 110003\nunique_id 0\nodd\n", "generation_id": ""}
    for name, properties in nodes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "properties").write_text(properties)
    (tmp_path / "2" / "name").write_text("aldebaran\n")
    gpus, why = find_amd_gpus(str(tmp_path))
    assert [(gpu.index, gpu.capability, gpu.uuid, gpu.name) for gpu in gpus] == [
        (0, "gfx90a", "GPU-00000000000000ff", "aldebaran"),
        (1, "gfx1103", "GPU-amd-1", "gfx1103"),
    ]
    assert why == "" and [gpu.shown_as for gpu in gpus] == ["0", "1"]
    told: list[str] = []
    assert shown_gpus(gpus, why, ("1",), told.append, hip=True) == ((gpus[1],), "")
    assert shown_gpus(gpus, why, (), told.append, hip=True)[1] == "HIP_VISIBLE_DEVICES hides every GPU"
    assert shown_gpus(gpus, why, None, told.append, hip=True)[0] == gpus[:1] and "HIP_VISIBLE_DEVICES" in told[0]
    (tmp_path / "2" / "properties").unlink()
    (tmp_path / "10" / "properties").unlink()
    assert find_amd_gpus(str(tmp_path)) == ((), "the driver shows no AMD GPU")


@pytest.mark.hip
@pytest.mark.slow
def test_the_program_that_measures_is_one_for_amd_too(tmp_path: Path) -> None:
    shutil.copyfile(MEASURE, tmp_path / "measure.hip")
    spec = {"kind": "hip", "sources": ["measure.hip"], "arch": ["gfx90a"], "output": "executable"}
    spec |= {"flags": ["-std=c++17", "-O1"], "libraries": ["dl"]}
    for ran in carry_out_all(
        plan_for(request_for(tmp_path, file="", specs={"measure": spec})), tmp_path, tmp_path / "s"
    ):
        assert "warning" not in ran.said, ran.said
    (tmp_path / "g.c").write_text("int g_run(void) { return 0; }\nlong g_workspace_bytes(void) { return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libg.so", tmp_path / "g.c"], check=True)
    words = [str(tmp_path / "libg.so"), "g", "8", "8", "8", "bf16", "bf16", "rcr", "none", "1e-3"]
    done = subprocess.run([tmp_path / "build/measure/measure", *words], capture_output=True, text=True, timeout=60)
    if not find_amd_gpus()[0]:
        assert json.loads(done.stdout)["outcome"] == "gpu" and "no AMD GPU" in done.stdout, done


@pytest.mark.hip
@pytest.mark.slow
@pytest.mark.skipif(bool(find_amd_gpus()[0]), reason="there is an AMD GPU")
def test_the_command_without_a_gpu(developer: Developer) -> None:
    keys = 'm = 64\nn = 64\nk = 64\narch = ["gfx90a"]\n'
    developer.write("buildd.toml", f'[target.h]\nkind = "gemm"\n{keys}')
    status, said = developer.buildd("profile", "-C", str(developer.project), "h", "--top", "2", "--json")
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert status == 0 and "no AMD GPU here" in said and lines[-1]["built"] == 2, said
    assert [line["outcome"] for line in lines if line["type"] == "tried"] == ["built", "built"]
