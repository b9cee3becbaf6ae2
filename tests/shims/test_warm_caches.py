"""Caches of other tools: what they built before stays warm under `buildd run`, and afterwards without it.

JITs name their compilers in files that their build tool compares: another path, and everything is built again.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.user import User

NINJA = shutil.which("ninja", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin") or ""
GXX = shutil.which("g++") or ""
pytestmark = pytest.mark.skipif(not (GXX and NINJA), reason="no g++ or ninja (Debian: apt install g++ ninja-build)")
NVCC = f'#!/bin/sh\ncase $1 in --version) echo "release 13.0, V13.0.88"; exit;; esac\nexec {GXX} -x c++ "$@"\n'
"""An nvcc as far as a JIT sees it; a real one takes seconds."""
JIT = """
import os, shutil, subprocess, sys
way, cache = sys.argv[1:]
found = {
    "which": lambda: subprocess.check_output(["sh", "-c", "which nvcc || command -v nvcc"], text=True).strip(),
    "shutil": lambda: shutil.which("nvcc"),
    "home": lambda: f"{os.environ['CUDA_HOME']}/bin/nvcc",
    "torch": lambda: os.environ.get("PYTORCH_NVCC") or shutil.which("nvcc"),
}[way]()
version = subprocess.check_output([found, "--version"], text=True)
cxx = shutil.which(os.environ.get("CXX", "c++"))
text = f'''# {version.strip()}
cuda_home = {os.path.dirname(os.path.dirname(found))}
launcher = {os.environ.get("CMAKE_CUDA_COMPILER_LAUNCHER", "")}
rule cuda
  command = $launcher $cuda_home/bin/nvcc -fPIC -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule host
  command = {cxx} -fPIC -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = {cxx} -shared $in -o $out
build {cache}/k.cuda.o: cuda k.cpp
build {cache}/b.o: host b.cpp
build {cache}/op.so: link {cache}/k.cuda.o {cache}/b.o
'''
os.makedirs(cache, exist_ok=True)
open(f"{cache}/build.ninja", "w").write(text)
subprocess.run(["ninja", "-v", "-f", f"{cache}/build.ninja", f"{cache}/op.so"], check=True)
"""
"""Finds its compilers, and writes them down, as FlashInfer, tvm-ffi and torch's extensions do."""


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def project(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    folder = user.folder / re.sub(r"\W+", "-", request.node.name)
    tools = folder.with_name(f"{folder.name}-cuda") / "bin"
    tools.mkdir(parents=True)
    made = ForeignProject(user, folder, str(tools))
    made.write(f"../{folder.name}-cuda/bin/nvcc", NVCC).chmod(0o755)
    (tools / "ninja").symlink_to(NINJA)
    user.environ["CUDA_HOME"] = str(tools.parent)
    try:
        made.search(str(tools))
    finally:
        del user.environ["CUDA_HOME"]
    for name in "kb":
        made.write(f"{name}.cpp", f'#include "{name}.h"\nchar const *{name} = VALUE;\n')
        made.write(f"{name}.h", f'#define VALUE "{request.node.name}"\n')
    made.write("jit.py", JIT)
    return made


def build(project: ForeignProject, way: str, *, below: bool) -> tuple[bool, str]:
    """Whether ninja had anything to do, and what the JIT wrote down."""
    done = project.call(sys.executable, "jit.py", way, "cache", environ=project.environ if below else project.plain)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return b"no work to do" not in done.stdout, (project.folder / "cache" / "build.ninja").read_text()


@pytest.mark.parametrize("way", ["which", "shutil", "home", "torch"])
def test_a_jits_cache_is_the_same_with_and_without_us(project: ForeignProject, way: str) -> None:
    works, plain = build(project, way, below=False)
    assert works
    assert build(project, way, below=True) == (False, plain), "what was built without us is built again"
    shutil.rmtree(project.folder / "cache")
    assert build(project, way, below=True) == (True, plain)
    assert project.counts() == (0, 2), "its compiles went past us"
    assert build(project, way, below=False) == (False, plain), "what was built with us is built again"
    shutil.rmtree(project.folder / "cache")
    assert build(project, way, below=True) == (True, plain)
    assert project.counts() == (2, 2)


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_a_tree_of_cmake_is_not_built_again_when_it_is_configured_again(project: ForeignProject) -> None:
    project.write(
        "CMakeLists.txt", "cmake_minimum_required(VERSION 3.18)\nproject(p CXX)\nadd_library(p k.cpp b.cpp)\n"
    )
    configure = ("cmake", "-S", ".", "-B", "build", "-G", "Ninja")
    assert project.plainly(*configure).returncode == 0
    assert project.plainly("cmake", "--build", "build").returncode == 0
    cache = (project.folder / "build" / "CMakeCache.txt").read_text()
    for call in (project.good, project.plainly, project.good):
        call(*configure)
        assert b"no work to do" in call("cmake", "--build", "build").stdout
    assert (project.folder / "build" / "CMakeCache.txt").read_text() == cache


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_a_tree_of_cmake_that_was_made_below_us_is_not_built_again_without_us(project: ForeignProject) -> None:
    project.write(
        "CMakeLists.txt", "cmake_minimum_required(VERSION 3.18)\nproject(p CXX)\nadd_library(p k.cpp b.cpp)\n"
    )
    configure = ("cmake", "-S", ".", "-B", "build", "-G", "Ninja")
    project.good(*configure)
    project.good("cmake", "--build", "build")
    for call in (project.plainly, project.good):
        call(*configure)
        assert b"no work to do" in call("cmake", "--build", "build").stdout


MAKEFILE = """
NVCC ?= $(CUDA_HOME)/bin/nvcc
CXX ?= g++
VERSION := $(shell which $(NVCC) >/dev/null && $(NVCC) --version | grep release | sed 's/.*release //')
B ?= build
all: $(B)/op.so
$(B)/%.d: %.cpp
\t@mkdir -p $(B)
\t@mk=$$($(NVCC) -DVERSION="$(VERSION)" -MM $<); echo "$(B)/$*.o: $${mk#*:}" > $@
$(B)/%.o: %.cpp $(B)/%.d
\t$(NVCC) -fPIC -c $< -o $@
$(B)/op.so: $(B)/k.o $(B)/b.o
\t$(CXX) -shared $^ -o $@
-include $(wildcard $(B)/*.d)
"""
"""As nccl's: it names the compiler by its path, asks for its version, and has a rule for dependencies."""


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_a_makefile_that_names_the_toolkit_builds_nothing_again(project: ForeignProject) -> None:
    project.write("Makefile", MAKEFILE)

    def works(*, below: bool, place: str = "build") -> bool:
        done = project.call("make", f"B={place}", environ=project.environ if below else project.plain)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return b"Nothing to be done" not in done.stdout

    assert works(below=False)
    assert [works(below=each) for each in (True, False)] == [False, False], "what was built without us is built again"
    assert project.counts() == (0, 0)
    shutil.rmtree(project.folder / "build")
    assert works(below=True)
    misses = project.counts()[1]
    assert misses >= 2, "its compiles went past us"
    assert [works(below=each) for each in (False, True)] == [False, False], "what was built with us is built again"
    shutil.rmtree(project.folder / "build")
    assert works(below=True) and project.counts() == (misses, misses)


KERNELS = """
import hashlib, os, subprocess, sys
nvcc, cache = f"{os.environ['CUDA_HOME']}/bin/nvcc", sys.argv[1]
version = subprocess.check_output([nvcc, "--version"], text=True)
for name in "kb":
    digest = hashlib.sha256(f"{version}{nvcc}{open(name + '.cpp').read()}".encode()).hexdigest()
    place = f"{cache}/{digest}"
    if os.path.exists(place):
        continue
    os.makedirs(f"{place}.tmp")
    assert os.system(f"cd {place}.tmp && {nvcc} -I{os.getcwd()} -S {os.getcwd()}/{name}.cpp -o kernel.s") == 0
    os.rename(f"{place}.tmp", place)
    print("built", name)
"""
"""As DeepGEMM's: a folder for each kernel, named after the compiler's path and version and the text."""


def test_a_jit_that_calls_the_compiler_for_each_kernel(project: ForeignProject) -> None:
    project.write("kernels.py", KERNELS)

    def built(*, below: bool, cache: str = "cache") -> int:
        environ = project.environ if below else project.plain
        done = project.call(sys.executable, "kernels.py", cache, environ=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.count(b"built")

    assert [built(below=each) for each in (False, True, False)] == [2, 0, 0]
    shutil.rmtree(project.folder / "cache")
    assert [built(below=each) for each in (True, False, True)] == [2, 0, 0]
    assert project.counts() == (0, 2)
    shutil.rmtree(project.folder / "cache")
    assert built(below=True) == 2 and project.counts() == (2, 2)
