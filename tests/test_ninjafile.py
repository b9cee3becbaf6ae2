"""build.ninja of a project: ninja builds it alone, finds nothing to do after buildd has, and knows the headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from estate import Estate

from tests.toolkit import host_compiler

ninja = pytest.importorskip("ninja")
NINJA = Path(ninja.BIN_DIR) / "ninja"
needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def run_ninja(project: Path, path: str = "/usr/bin:/bin") -> str:
    ran = subprocess.run([NINJA, "-C", project], env={"PATH": path}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def export(estate: Estate) -> str:
    status, said = estate.buildd("compdb", "--ninja", "-C", str(estate.project))
    assert status == 0, said
    return said


@needs_gcc
def test_ninja_builds_alone_and_after_buildd_finds_nothing_to_do(estate: Estate) -> None:
    estate.environ["PATH"] = f"{NINJA.parent}:{estate.environ['PATH']}"
    assert "3 of them are not built yet" in export(estate)
    run_ninja(estate.project)
    assert "no work to do" in run_ninja(estate.project)
    estate.write("src/x.h", "other\n")
    said = run_ninja(estate.project)
    assert "demo/src/a.cu.o" in said and "demo/src/b.cu.o" not in said
    by_ninja = estate.library.read_bytes()

    shutil.rmtree(estate.project / "build")
    estate.build("--no-daemon")
    assert estate.library.read_bytes() == by_ninja
    assert "ninja finds nothing to do" in export(estate)
    assert "no work to do" in run_ninja(estate.project)
    estate.write("src/x.h", "and another\n")
    said = run_ninja(estate.project)
    assert "demo/src/a.cu.o" in said and "demo/src/b.cu.o" not in said and estate.library.read_bytes() == estate.clean()


@pytest.mark.slow
@needs_gcc
def test_what_is_not_built_is_left_to_ninja(estate: Estate) -> None:
    estate.environ["PATH"] = f"{NINJA.parent}:{estate.environ['PATH']}"
    estate.build("--no-daemon")
    estate.write("src/a.cu", "edited since\n")
    assert "2 of them are not built yet" in export(estate)
    said = run_ninja(estate.project)
    assert "demo/src/a.cu.o" in said and "demo/src/b.cu.o" not in said and estate.library.read_bytes() == estate.clean()


CUDA = pytest.param("cuda", "sm_80", "cu", marks=pytest.mark.cuda)
HIP = pytest.param("hip", "gfx90a", "hip", marks=pytest.mark.hip)
DEVICE = """\
HEAD
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#include "device.h"
#else
#define N 0
#endif
__global__ void a(int *p) { *p = N; }
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "arch", "ending"), [CUDA, HIP])
def test_what_only_the_device_reads_ninja_knows_of_real_compilers(
    kind: str, arch: str, ending: str, estate: Estate
) -> None:
    del estate.environ["CUDA_HOME"]
    estate.environ["PATH"] = f"{NINJA.parent}:{estate.environ['PATH']}"
    shutil.rmtree(estate.project / "src")
    target = f'[target.demo]\nkind = "{kind}"\nsources = ["src/*"]\narch = ["{arch}"]\ninclude = ["inc"]\n'
    estate.write("buildd.toml", target)
    head = "#include <hip/hip_runtime.h>" if kind == "hip" else ""
    estate.write(f"src/a.{ending}", DEVICE.replace("HEAD", head))
    estate.write(f"src/b.{ending}", f"{head}\n__global__ void b(int *p) {{ *p = 1; }}\n")
    estate.write("inc/device.h", "#define N 1\n")
    estate.build("--no-daemon")
    export(estate)
    assert "no work to do" in run_ninja(estate.project)
    estate.write("inc/device.h", "#define N 2\n")
    said = run_ninja(estate.project)
    assert f"demo/src/a.{ending}.o" in said and f"demo/src/b.{ending}.o" not in said
    assert "no work to do" in run_ninja(estate.project)
    # What ninja's own run has read it knows as well.
    estate.write("inc/device.h", "#define N 3\n")
    said = run_ninja(estate.project)
    assert f"demo/src/a.{ending}.o" in said and f"demo/src/b.{ending}.o" not in said
