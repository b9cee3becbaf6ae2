"""The worker of `buildd ejkernel`: which libraries, where from, where to. cmake is a small script here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.python.worker import FOLDER

CMAKE = """#!/bin/sh
echo "$PWD cmake $*" >> "$LOG"
if [ "$1" != --build ]; then
  for word; do case $word in *ARCHS=*) echo "${word#*=}" > "$4/archs";; esac; done
  exit "${CONFIGURED:-0}"
fi
[ -z "$BROKEN" ] || exit 3
for arch in $(tr ';' ' ' < "$2/archs"); do echo "code for $arch" > "$2/libejkernel_it_cuda_sm$arch.so"; done
"""


class Machine:
    """A Python with an ejkernel, as a wheel or as a checkout, and tools on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.environ = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(folder / "site"),
            "LOG": str(self.log),
        }
        (folder / "bin").mkdir()
        for name, text in {"cmake": CMAKE, "nvcc": "#!/bin/sh\n", "nvidia-smi": "#!/bin/sh\nexit 9\n"}.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.site = folder / "site"
        for package in ("ejkernel", "jaxlib"):
            (self.site / package).mkdir(parents=True)
            (self.site / package / "__init__.py").write_text("raise ImportError('the worker imports nothing')\n")

    def library(self, name: str, sources: str) -> Path:
        """Add a library with its sources in a folder; where ejkernel looks for it."""
        place = self.site / "ejkernel/kernels/_cuda" / name
        place.mkdir(parents=True)
        (place / "_build.py").write_text("")
        (self.site / sources).mkdir(parents=True)
        (self.site / sources / "CMakeLists.txt").write_text("")
        return place / "_build"

    def run(self, archs: str, *names: str, **variables: str) -> tuple[int, str, str]:
        done = subprocess.run(
            # -S: without the packages of these tests, CUTLASS among them.
            [sys.executable, "-S", str(FOLDER / "ejkernel_worker.py"), archs, "2", *names],
            env={**self.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_libraries_stand_where_ejkernel_looks_one_for_each_architecture(machine: Machine) -> None:
    wheel, checkout = (
        machine.library("of_a_wheel", "of_a_wheel"),
        machine.library("of_a_checkout", "csrc/of_a_checkout"),
    )
    wheel.mkdir()
    old = wheel / "libejkernel_it_cuda_sm90.so"
    old.write_text("old")
    with old.open() as loaded:
        status, output, errors = machine.run("9.0;sm_80,90")
        assert (status, errors) == (0, "")
        assert loaded.read() == "old", "a program that loads it has the whole old one"
    for place in (wheel, checkout):
        libraries = sorted(path.name for path in place.glob("*.so"))
        assert libraries == ["libejkernel_it_cuda_sm80.so", "libejkernel_it_cuda_sm90.so"]
        assert sorted(path.name for path in place.iterdir()) == ["buildd.lock", *libraries]
        assert (place / libraries[1]).read_text() == "code for 90\n" and os.access(place / libraries[1], os.X_OK)
        assert str(place / libraries[0]) in output
    log = machine.log.read_text()
    assert f"-S {machine.site / 'csrc/of_a_checkout'} " in log and f"-S {machine.site / 'of_a_wheel'} " in log
    assert f"-DEJKERNEL_JAX_FFI_INCLUDE={machine.site / 'jaxlib/include'}" in log
    assert f"-DCMAKE_CUDA_COMPILER={machine.folder / 'bin/nvcc'}" in log and "CUTLASS" not in log


def test_only_the_named_ones_with_the_users_cutlass(machine: Machine) -> None:
    place, other = machine.library("one", "one"), machine.library("two", "two")
    for folder in ("theirs/cutlass", "rooted/include/cutlass"):
        (machine.folder / folder).mkdir(parents=True)
        (machine.folder / folder / "cutlass.h").write_text("")
    rooted, theirs = str(machine.folder / "rooted"), str(machine.folder / "theirs")
    assert machine.run("", "one", EJKERNEL_CUDA_ARCH="sm_86", CUTLASS_PATH=rooted)[0] == 0
    assert f"-DCMAKE_CUDA_STANDARD_INCLUDE_DIRECTORIES={rooted}/include" in machine.log.read_text()
    ours = {"CUTLASS_PATH": rooted, "EJKERNEL_CUTLASS_INCLUDE": theirs}
    assert machine.run("", "one", EJKERNEL_CUDA_ARCHS="86", **ours)[0] == 0
    assert f"-DCMAKE_CUDA_STANDARD_INCLUDE_DIRECTORIES={theirs}" in machine.log.read_text()
    assert (place / "libejkernel_it_cuda_sm86.so").exists() and not other.exists()


def test_a_library_that_needs_cutlass_says_so_before_it_compiles(machine: Machine) -> None:
    machine.library("one", "one")
    (machine.site / "one/CMakeLists.txt").write_text('target_include_directories(x PRIVATE "${CUTLASS_INCLUDE}")\n')
    status, _, errors = machine.run("90")
    assert status == 1 and "error: one: it needs CUTLASS's headers" in errors and "nvidia-cutlass" in errors
    assert not machine.log.exists(), "cmake has not run"


def test_a_library_that_fails_is_named_and_leaves_nothing(machine: Machine) -> None:
    place = machine.library("one", "one")
    status, _, errors = machine.run("90", BROKEN="1")
    assert status == 1 and "error: one: its build ended with status 3" in errors
    status, _, errors = machine.run("90", CONFIGURED="1")
    assert status == 1 and "error: one: cmake cannot configure it" in errors
    assert [path.name for path in place.iterdir()] == ["buildd.lock"]


def test_after_a_failure_the_others_are_built(machine: Machine) -> None:
    machine.library("one", "one")
    second = machine.library("two", "two")
    (second.parent.parent / "one/_build").write_text("a file where a folder has to be")
    status, output, errors = machine.run("90")
    assert status == 1 and "error: one: " in errors
    assert str(second / "libejkernel_it_cuda_sm90.so") in output


@pytest.mark.parametrize(
    ("archs", "names", "said"),
    [
        ("90", ["three"], "ejkernel has no CUDA library 'three'; it has one"),
        ("hopper", [], "'hopper' is no architecture"),
        ("", [], "no NVIDIA GPU; name architectures with --arch"),
    ],
)
def test_what_it_cannot_do_is_said(machine: Machine, archs: str, names: list[str], said: str) -> None:
    machine.library("one", "one")
    status, output, errors = machine.run(archs, *names)
    assert (status, output) == (2, "") and said in errors


def test_without_ejkernel_or_without_tools(machine: Machine) -> None:
    machine.library("one", "one")
    (machine.folder / "bin/nvcc").unlink()
    assert "there is no nvcc on PATH" in machine.run("90", PATH=str(machine.folder / "bin"))[2]
    status, _, errors = machine.run("90", PYTHONPATH="")
    assert status == 2 and "has no ejkernel; name the Python that has it with --python" in errors
