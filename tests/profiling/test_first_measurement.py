"""Targets that are measured before they are built: what a plan says of them, what is refused, and the whole command."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from buildd.profiling.devices import Gpu, recall, remember
from buildd.profiling.first_measurement import capabilities_here
from buildd.tier import shared_profiles
from buildd.tier.records import Kind, name_of
from codegen.errors import RequestError
from codegen.gemm.best_kernels import Best, Published, Setting
from codegen.gemm.capability import ANY, best_arch, guessing_notice, to_measure
from codegen.gemm.decision import declared_sizes
from codegen.gemm.kernel_options import Candidate, problem_of
from codegen.plan import Unmeasured
from codegen.project.target import GemmTarget
from codegen.tuning.survey import survey
from protocol.messages import Request
from tests.support.carry_out import KNOWLEDGE, answered, plan_for, request_for
from tests.support.cutlass import cutlass_in
from tests.support.developer import Developer
from tests.support.own_programs import lend_programs
from tests.support.profiling_cases import smi
from tests.support.tiers import http_cache
from tests.support.waiting import until

H200 = Gpu(index=0, uuid="GPU-1", name="NVIDIA H200", driver="580.1", capability="9.0")
BOTH = ("sm_80", "sm_90a")


def test_only_what_can_be_measured_here_is_measured_first() -> None:
    def missing(*wanted: str, archs: tuple[str, ...] = BOTH) -> list[Unmeasured]:
        return [Unmeasured(target="g", archs=archs, wanted=wanted, guessed=wanted)]

    assert to_measure(missing("sm_90a"), ("9.0",)) == ("g",)
    assert to_measure(missing("sm_80"), ("9.0",)) == () == to_measure(missing("sm_80"), ())
    assert to_measure(missing("sm_80"), (ANY,)) == ("g",) and to_measure(missing(), (ANY,)) == ()
    older = missing("sm_80", archs=("sm_80", "sm_86"))
    assert to_measure(older, ("8.6",)) == (), "there the entry point takes sm_86"
    assert best_arch(("sm_80", "sm_86"), "8.9") == "sm_86" and best_arch(BOTH, "10.0") == ""
    (line,) = guessing_notice([*missing("sm_80"), *missing("sm_90a") * 5])
    assert line.startswith("g, g, g, g and 2 more: nothing was measured for sm_80, sm_90a")
    assert guessing_notice([Unmeasured(target="g", archs=BOTH, wanted=BOTH, guessed=())]) == ()


def test_the_problem_that_a_target_is_measured_with() -> None:
    open_target = GemmTarget(name="g", n=64, k=32, profile=(16, 64, 32))
    assert declared_sizes(open_target) == (16, 64, 32)
    assert declared_sizes(GemmTarget(name="g", m=1, n=64, k=32, profile=True)) == (1, 64, 32)
    assert declared_sizes(GemmTarget(name="g", n=64, batched=True, profile=(9, 8, 64, 32))) == (9, 8, 64, 32)
    wrong = {
        "needs a size for each of batch, m": GemmTarget(name="g", m=1, n=64, k=32, batched=True, profile=True),
        "needs a size for each": GemmTarget(name="g", n=64, k=32, profile=True),
        "needs a size for each of m": GemmTarget(name="g", profile=(4, -4, 4)),
        "is not what m, n, k say": GemmTarget(name="g", n=64, profile=(4, 65, 4)),
        "names a kernel": GemmTarget(name="g", m=1, n=64, k=32, profile=True, stages=3),
        "cannot be measured": GemmTarget(name="g", m=1, n=64, k=32, profile=True, grouped=True),
    }
    for words, target in wrong.items():
        with pytest.raises(RequestError, match=words) as caught:
            declared_sizes(target)
        assert caught.value.next_step


def test_gpus_are_remembered_until_the_machine_may_be_another(tmp_path: Path) -> None:
    environ, store = smi(tmp_path, "exit 1"), str(tmp_path / "store")
    assert recall(store, environ) is None
    remember(store, environ, (H200,))
    assert recall(store, environ) == (H200,)
    request = request_for(tmp_path, store=store, environment={})
    assert capabilities_here(request, environ) == ("9.0",)
    for devices in ("", "-1", "7"):
        hidden = request_for(tmp_path, store=store, environment={"CUDA_VISIBLE_DEVICES": devices})
        assert capabilities_here(hidden, environ) == ()
    os.utime(tmp_path / "nvidia-smi", ns=(1, 1))
    assert recall(store, environ) is None, "another driver"
    assert capabilities_here(request, environ) == (ANY,)
    (tmp_path / "store/profiles/gpus.json").write_text("{")
    assert recall(store, environ) is None


HEAD = """\
[target.g]
kind = "gemm"
m = 512
n = 512
k = 512
profile = true
arch = ["sm_80", "sm_86"]

[target.head]
kind = "model"
arch = ["sm_80"]
profile = true
sizes = { batch = [1, 256] }
inputs = { x = { shape = ["batch", 512] } }
constants = { w = { shape = [1024, 512] }, v = { shape = [1000, 1024] } }
outputs = ["y"]
deps = ["g"]

[target.head.ops.h]
kind = "gemm"
inputs = ["x", "w"]
epilogue = "relu"

[target.head.ops.y]
kind = "gemm"
inputs = ["h", "v"]
tile = [64, 64, 32]
"""


@pytest.mark.cuda
def test_what_a_plan_and_a_survey_say_of_a_target_and_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(HEAD)
    environ = {"PATH": "/usr/bin:/bin", "CACHE_DIR": "profiles"}

    def asked(*names: str, **variables: str) -> Request:
        return request_for(tmp_path, *names, environment={**environ, **variables}, interpreter=sys.executable)

    def cases(capability: str, **variables: str) -> list[tuple[str, str, tuple[int, int, int]]]:
        request = asked("head", **variables)
        found = answered(lambda: survey(request, KNOWLEDGE, first_on=capability))
        return [(case.target, case.arch, case.sizes) for case in found.cases]

    plan = plan_for(asked("head"))
    unknown = [(one.target, one.wanted, one.guessed) for one in plan.unmeasured]
    assert unknown == [("g", ("sm_80", "sm_86"), ("sm_80", "sm_86")), ("head", ("sm_80",), ("sm_80",))]
    assert sum("buildd uses the likeliest kernels" in notice for notice in plan.notices) == 1
    assert cases("8.0") == [("g", "sm_80", (512, 512, 512)), ("head.ops.h", "sm_80", (256, 1024, 512))]
    assert cases("9.0") == []
    bare = cutlass_in(tmp_path / "bare")
    (bare.parent / "generator.py").unlink()
    without = plan_for(asked("g", CUTLASS_PATH=str(bare)))
    assert without.unmeasured[0].guessed == ("sm_80", "sm_86"), "CUTLASS without its lists"
    assert not any(one.wanted for one in plan_for(asked("head", DISABLE_PROFILER_CODEGEN="1")).unmeasured)
    problem = problem_of(GemmTarget(name="g", m=512, n=512, k=512), "sm_86")
    tile = Candidate(tile=(64, 64, 32), warps=(2, 2, 1), stages=3).name
    imported = Best(
        setting=Setting(gpu="", driver="", toolkit="", library="", flags=""), problem=problem, candidate=tile
    )
    (tmp_path / "profiles/buildd").mkdir(parents=True)
    (tmp_path / "profiles/buildd/best.json").write_bytes(msgspec.json.encode(Published(best=(imported,))))
    assert plan_for(asked("g")).unmeasured[0].wanted == ("sm_80",), "a row of somebody else counts"
    assert cases("8.6") == [("head.ops.h", "sm_80", (256, 1024, 512))] != cases("8.6", FORCE_PROFILE="1")


PROJECT = """\
[target.g]
kind = "gemm"
m = 512
n = 512
k = 512
profile = true
arch = ["sm_80"]

[target.uses]
kind = "cuda"
sources = ["src/b.cu"]
arch = ["sm_80"]
deps = ["g"]
"""
MEASURE = f"""#!{sys.executable} -IS
import sys
print("ready", flush=True)
sys.stdin.buffer.readline()
print('{{"outcome": "started"}}', flush=True)
words = b""
while words.count(b"\\0") < 10:
    byte = sys.stdin.buffer.read(1)
    if not byte:
        sys.exit(0)
    words += byte
print("ready", flush=True)
sys.stdin.buffer.readline()
time_us = 7 if b"_64x256x32_" in words else 9
print('{{"outcome": "measured", "time_us": %d, "samples": 9}}' % time_us, flush=True)
"""


def with_measuring_toolkit(developer: Developer) -> Path:
    """A project with a GEMM, and a toolkit whose program that measures is a fake; the folder of the user's tools."""
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    tools, home = developer.folder / "tools", developer.folder / "cuda"
    tools.mkdir()
    measure = tools / "measure"
    measure.write_text(MEASURE)
    measure.chmod(0o755)
    shutil.copytree(developer.environ["CUDA_HOME"], home)
    (home / "bin/nvcc").rename(home / "bin/real-nvcc")
    (home / "bin/nvcc").write_text(
        f'#!/bin/sh\n{home}/bin/real-nvcc "$@" || exit\n'
        f'while [ $# -gt 1 ]; do case "$1 $2" in "-o "*/measure) cp {measure} "$2";; esac; shift; done\n'
    )
    (home / "bin/nvcc").chmod(0o755)
    developer.environ["CUDA_HOME"] = str(home)
    return tools


def with_a100(developer: Developer, tools: Path) -> Path:
    """A machine with a GPU, by what `nvidia-smi` says; the file in which each question to it is a line."""
    asked = developer.folder / "asked"
    listed = f'echo "$*" >> {asked}\ncase "$*" in *query-gpu*) echo "0, GPU-1, NVIDIA A100, 580.1, 8.0";; esac'
    developer.environ["PATH"] = f"{smi(tools, listed)['PATH']}:{developer.environ['PATH']}"
    return asked


@pytest.mark.cuda
@pytest.mark.slow
def test_a_build_measures_first_what_nobody_has_measured(developer: Developer) -> None:
    tools = with_measuring_toolkit(developer)

    def build(*targets: str, **environ: str) -> str:
        before = dict(developer.environ)
        developer.environ |= environ
        said = developer.build(*targets)
        developer.environ = before
        assert said.status == 0, said.text
        return said.text

    guessed = "g: nothing was measured for sm_80, so buildd uses the likeliest kernels"
    first = build("g")
    assert first.count(guessed) == 1 and "3 compiled" in first
    asked = with_a100(developer, tools)
    assert guessed in build("g", CUDA_VISIBLE_DEVICES="") and not asked.exists()
    assert guessed in build("g", DISABLE_PROFILER_CODEGEN="1") and not asked.exists()
    measured = build("uses", "-j4")
    assert "buildd: g: measuring on NVIDIA A100 first" in measured and guessed not in measured, measured
    assert "the best of 2 tried on NVIDIA A100" in measured and " for sm_80, the best on NVIDIA A100" in measured
    questions = asked.read_text().count("query-gpu")
    again = build("uses")
    assert "measuring on" not in again and "0 compiled" in again, again
    assert "measuring on" not in build("g") and asked.read_text().count("query-gpu") == questions, "nobody was asked"
    forced = build("g", FORCE_PROFILE="1")
    assert "measuring on NVIDIA A100 first" in forced and "the best on NVIDIA A100" in forced and "hit" in forced
    wide = build("g", "-j8", FORCE_PROFILE="1")
    assert "tried on NVIDIA A100" in wide and "the best of 2 tried" not in wide, "as many as keep processors busy"
    emptied = build("g", FLUSH_PROFILE_CACHE="1")
    assert "the profiles are emptied" in emptied and "measuring on NVIDIA A100 first" in emptied, emptied
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho no driver\nexit 9\n")
    broken = build("g", FLUSH_PROFILE_CACHE="1")
    assert "nvidia-smi: no driver: nothing is measured" in broken and guessed in broken, broken


@pytest.mark.cuda
@pytest.mark.slow
def test_a_build_takes_what_another_machine_has_measured(developer: Developer) -> None:
    """The second machine has an empty store and the same GPU; it compiles no candidate and measures nothing."""
    with http_cache() as cache:
        with_a100(developer, with_measuring_toolkit(developer))
        developer.environ |= {"BUILDD_TIER": cache.url, "BUILDD_TIER_WRITE": "1"}
        _, key = developer.buildd("cache", "key")
        first = developer.build("g")
        assert "measuring on NVIDIA A100 first" in first.text, first.text
        writer = bytes.fromhex(key.strip())
        name = f"/x/ac/{name_of(Kind.PROFILES, shared_profiles.KEY, writer).hex()}"
        until(lambda: name in cache.objects)
        developer.buildd("down")
        developer.environ |= {"BUILDD_DIR": str(developer.folder / "second"), "BUILDD_TIER_WRITE": "0"}
        lend_programs(developer.folder / "second")
        assert developer.buildd("cache", "trust", key.strip(), "first")[0] == 0
        second = developer.build("g")
        assert second.status == 0 and "2 measurements on NVIDIA A100 from the shared cache" in second.text, second.text
        assert "measuring on" not in second.text and "the best on NVIDIA A100" in second.text
        assert "2 measurements" in developer.buildd("status")[1]
        assert "from the shared cache" not in developer.build("g").text, "now the store has them"
