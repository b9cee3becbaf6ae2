"""The CMake project of a plan: what stands in it, and that CMake builds it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from codegen.plan import Plan
from tests.support.carry_out import plan_for, request_for

PROJECT = """\
[target.ops]
kind = "cuda"
sources = ["src/a b.cu"]
include = ["include"]
define = ['WORDS="x y"']
arch = ["sm_80"]

[target.tool]
kind = "cuda"
sources = ["src/main.cu", "src/host.cpp"]
output = "executable"
libraries = ["dl"]
arch = ["sm_80"]
deps = ["ops"]
"""


def write(folder: Path) -> None:
    for name, text in {
        "buildd.toml": PROJECT,
        "include/x.h": "int answer();\n",
        "src/a b.cu": '#include "x.h"\n__global__ void k() {}\nint answer() { return sizeof(WORDS); }\n',
        "src/main.cu": '#include "../include/x.h"\nint more();\nint main() { return answer() + more(); }\n',
        "src/host.cpp": "#include <cuda_runtime.h>\nint more() { return cudaSuccess; }\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_variable_writes_a_project(tmp_path: Path, toolkit: Path) -> None:
    write(tmp_path)
    environ = {"PATH": "/usr/bin:/bin", "CUDA_HOME": str(toolkit)}
    plain = plan_for(request_for(tmp_path, environment=environ))
    assert not plain.files and not plain.notices
    plan = plan_for(request_for(tmp_path, environment={**environ, "AIT_USE_CMAKE_COMPILATION": "1"}))
    assert plan.actions == plain.actions and "buildd run -- cmake -S build/cmake" in plan.notices[-1]
    (file,) = plan.files
    text = file.content.decode()
    assert 'add_library("ops" SHARED "${ROOT}/src/a b.cu")' in text
    assert 'add_executable("tool" "${ROOT}/src/main.cu" "${ROOT}/src/host.cpp")' in text
    assert 'set_property(SOURCE "${ROOT}/src/host.cpp" PROPERTY LANGUAGE CUDA)' in text
    assert '"-I${ROOT}/include"' in text and '"-DWORDS=\\"x y\\""' in text and "arch=compute_80" in text
    assert 'target_link_libraries("tool" PRIVATE "ops" "-ldl")' in text


HIP = """
[target.both]
kind = "hip"
sources = ["src/k.hip", "src/helper.cpp"]
define = ['WORDS="x y"']
arch = ["gfx90a"]
"""


@pytest.mark.hip
def test_cmake_builds_a_project_of_hip(tmp_path: Path) -> None:
    if not shutil.which("cmake"):
        pytest.skip("no cmake")
    (tmp_path / "src").mkdir()
    (tmp_path / "buildd.toml").write_text(HIP)
    kernel = "__attribute__((device)) int twice(int x) { return 2 * x; }\nint more();\n"
    (tmp_path / "src/k.hip").write_text(f'{kernel}extern "C" int answer() {{ return sizeof(WORDS) + more(); }}\n')
    (tmp_path / "src/helper.cpp").write_text("int more() { return 3; }\n")
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "AIT_USE_CMAKE_COMPILATION": "1"}
    plan = plan_for(request_for(tmp_path, environment=environment))
    text = written(plan, tmp_path).read_text()
    assert "-cuid" not in text, "such a compile would not be cached"
    assert "LANGUAGES CXX)" in text and "CUDA" not in text.partition("project(")[2].partition("\n")[0]
    for command in (
        ("-S", str(tmp_path / "build/cmake"), "-B", str(tmp_path / "out")),
        ("--build", str(tmp_path / "out")),
    ):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert ctypes.CDLL(str(tmp_path / "out/libboth.so")).answer() == 7


@pytest.mark.hip
def test_a_project_of_cuda_and_hip_has_both_compilers(tmp_path: Path, toolkit: Path) -> None:
    write(tmp_path)
    (tmp_path / "src/k.hip").write_text("")
    (tmp_path / "src/helper.cpp").write_text("")
    (tmp_path / "buildd.toml").write_text(PROJECT + HIP)
    path = f"{os.path.dirname(shutil.which('hipcc') or '')}:/usr/bin:/bin"
    environment = {"PATH": path, "CUDA_HOME": str(toolkit), "AIT_USE_CMAKE_COMPILATION": "1"}
    text = written(plan_for(request_for(tmp_path, environment=environment)), tmp_path).read_text()
    assert "LANGUAGES CXX CUDA)" in text and 'bin/hipcc")  # for HIP' in text
    assert 'set_property(SOURCE "${ROOT}/src/k.hip" PROPERTY LANGUAGE CXX)' in text
    assert 'set_property(SOURCE "${ROOT}/src/host.cpp" PROPERTY LANGUAGE CUDA)' in text
    assert 'add_library("both" SHARED "${ROOT}/src/k.hip" "${ROOT}/src/helper.cpp")' in text


def written(plan: Plan, folder: Path) -> Path:
    """The CMakeLists.txt of a plan, on disk."""
    (file,) = [file for file in plan.files if file.path.endswith("CMakeLists.txt")]
    place = folder / file.path
    place.parent.mkdir(parents=True)
    place.write_bytes(file.content)
    return place


@pytest.mark.cuda
@pytest.mark.slow
def test_cmake_builds_it(tmp_path: Path) -> None:
    if not shutil.which("cmake") or not shutil.which("nvcc"):
        pytest.skip("no cmake, or no nvcc on the PATH")
    write(tmp_path)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "AIT_USE_CMAKE_COMPILATION": "1"}
    plan = plan_for(request_for(tmp_path, environment=environment))
    place = written(plan, tmp_path)
    for command in (("-S", str(place.parent), "-B", str(tmp_path / "out")), ("--build", str(tmp_path / "out"))):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert subprocess.run([tmp_path / "out/tool"]).returncode == 4
