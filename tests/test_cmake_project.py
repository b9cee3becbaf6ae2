"""The CMake project of a plan: what stands in it, and that CMake builds it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.carry_out import plan_for, request_for

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


@pytest.mark.cuda
@pytest.mark.slow
def test_cmake_builds_it(tmp_path: Path) -> None:
    if not shutil.which("cmake") or not shutil.which("nvcc"):
        pytest.skip("no cmake, or no nvcc on the PATH")
    write(tmp_path)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "AIT_USE_CMAKE_COMPILATION": "1"}
    plan = plan_for(request_for(tmp_path, environment=environment))
    (file,) = [file for file in plan.files if file.path.endswith("CMakeLists.txt")]
    place = tmp_path / file.path
    place.parent.mkdir(parents=True)
    place.write_bytes(file.content)
    for command in (("-S", str(place.parent), "-B", str(tmp_path / "out")), ("--build", str(tmp_path / "out"))):
        done = subprocess.run(["cmake", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert subprocess.run([tmp_path / "out/tool"]).returncode == 4
