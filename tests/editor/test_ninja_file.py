"""build.ninja of a project: ninja builds it alone, finds nothing to do after buildd has, and knows the headers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.developer import Developer
from tests.support.toolkit import host_compiler

ninja = pytest.importorskip("ninja")
NINJA = Path(ninja.BIN_DIR) / "ninja"
needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def run_ninja(project: Path, path: str = "/usr/bin:/bin") -> str:
    ran = subprocess.run([NINJA, "-C", project], env={"PATH": path}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def export(developer: Developer) -> str:
    status, said = developer.buildd("compdb", "--ninja", "-C", str(developer.project))
    assert status == 0, said
    return said


@needs_gcc
def test_ninja_builds_alone_and_after_buildd_finds_nothing_to_do(developer: Developer) -> None:
    developer.environ["PATH"] = f"{NINJA.parent}:{developer.environ['PATH']}"
    assert "3 not built yet" in export(developer)
    run_ninja(developer.project)
    assert "no work to do" in run_ninja(developer.project)
    developer.write("src/x.h", "other\n")
    said = run_ninja(developer.project)
    assert "demo/src/a.cu.o" in said and "demo/src/b.cu.o" not in said
    by_ninja = developer.library.read_bytes()

    shutil.rmtree(developer.project / "build")
    developer.build("--no-daemon")
    assert developer.library.read_bytes() == by_ninja
    assert "ninja has nothing to do" in export(developer)
    assert "no work to do" in run_ninja(developer.project)
    developer.write("src/x.h", "and another\n")
    said = run_ninja(developer.project)
    assert (
        "demo/src/a.cu.o" in said
        and "demo/src/b.cu.o" not in said
        and developer.library.read_bytes() == developer.clean()
    )


@pytest.mark.slow
@needs_gcc
def test_what_is_not_built_is_left_to_ninja(developer: Developer) -> None:
    developer.environ["PATH"] = f"{NINJA.parent}:{developer.environ['PATH']}"
    developer.build("--no-daemon")
    developer.write("src/a.cu", "edited since\n")
    assert "2 not built yet" in export(developer)
    said = run_ninja(developer.project)
    assert (
        "demo/src/a.cu.o" in said
        and "demo/src/b.cu.o" not in said
        and developer.library.read_bytes() == developer.clean()
    )


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
    kind: str, arch: str, ending: str, developer: Developer
) -> None:
    del developer.environ["CUDA_HOME"]
    developer.environ["PATH"] = f"{NINJA.parent}:{developer.environ['PATH']}"
    shutil.rmtree(developer.project / "src")
    target = f'[target.demo]\nkind = "{kind}"\nsources = ["src/*"]\narch = ["{arch}"]\ninclude = ["inc"]\n'
    developer.write("buildd.toml", target)
    head = "#include <hip/hip_runtime.h>" if kind == "hip" else ""
    developer.write(f"src/a.{ending}", DEVICE.replace("HEAD", head))
    developer.write(f"src/b.{ending}", f"{head}\n__global__ void b(int *p) {{ *p = 1; }}\n")
    developer.write("inc/device.h", "#define N 1\n")
    developer.build("--no-daemon")
    export(developer)
    assert "no work to do" in run_ninja(developer.project)
    developer.write("inc/device.h", "#define N 2\n")
    said = run_ninja(developer.project)
    assert f"demo/src/a.{ending}.o" in said and f"demo/src/b.{ending}.o" not in said
    assert "no work to do" in run_ninja(developer.project)
    # What ninja's own run has read it knows as well.
    developer.write("inc/device.h", "#define N 3\n")
    said = run_ninja(developer.project)
    assert f"demo/src/a.{ending}.o" in said and f"demo/src/b.{ending}.o" not in said
