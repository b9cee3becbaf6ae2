"""What a tree says about the compilers that it calls, and the advice for one that calls them past us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildd.trees import configured
from codegen.foreign.called_tool import MARK

PLAIN = "CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++\nCMAKE_CXX_COMPILER_AR:FILEPATH=/usr/bin/ar\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (("cmake", "--build", "out"), "/p/out"),
        (("/usr/bin/cmake", "--build=out", "-j4"), "/p/out"),
        (("cmake", "-S", ".", "-B", "out"), "/p/out"),
        (("cmake", "-Bout"), "/p/out"),
        (("ninja", "-C", "/q/out", "all"), "/q/out"),
        (("make", "-j8", "-Cout"), "/p/out"),
        (("make", "--directory=out"), "/p/out"),
        (("make", "all"), "/p"),
        (("./build.sh", "-C", "out"), "/p"),
        (("ninja", "-C"), "/p/"),
    ],
)
def test_the_tree_that_a_command_builds(command: tuple[str, ...], folder: str) -> None:
    assert configured.folder_of(command, "/p") == folder


def test_a_tree_of_cmake_without_a_launcher_is_named(tmp_path: Path) -> None:
    write(tmp_path / "build" / "CMakeCache.txt", PLAIN)
    build = ("cmake", "--build", "build")
    wanted = ["build was configured without buildd; next: buildd run -- cmake build"]
    assert list(configured.advice(build, str(tmp_path), {})) == wanted
    write(tmp_path / "build" / "CMakeCache.txt", f"{PLAIN}CMAKE_CXX_COMPILER_LAUNCHER:STRING=/x/buildd-cc\n")
    assert list(configured.advice(build, str(tmp_path), {})) == []


def test_a_tree_whose_compiler_is_a_shim_is_ours(tmp_path: Path) -> None:
    (tmp_path / "shims" / MARK).mkdir(parents=True)
    write(tmp_path / "CMakeCache.txt", f"CMAKE_C_COMPILER:FILEPATH={tmp_path}/shims/cc\n")
    assert list(configured.advice(("make",), str(tmp_path), {})) == []


@pytest.mark.parametrize(
    ("makefile", "said"),
    [
        (
            "NVCC ?= /usr/local/cuda/bin/nvcc\na.o: a.cu\n\t$(NVCC) -c a.cu\n",
            "the makefile calls /usr/local/cuda/bin/nvcc by path, past buildd; next: buildd run -- make NVCC=nvcc",
        ),
        (
            "CXX = /usr/bin/g++\nNVCC := /opt/cuda/bin/nvcc\n",
            "the makefile calls /usr/bin/g++, /opt/cuda/bin/nvcc by path, past buildd; "
            "next: buildd run -- make CXX=g++ NVCC=nvcc",
        ),
        (
            "CUDA_HOME ?= /usr/local/cuda\na.o:\n\t$(CUDA_HOME)/bin/nvcc -c a.cu\n",
            "the makefile calls nvcc below CUDA_HOME, past buildd; next: buildd run -- make CUDA_HOME=/place",
        ),
        (
            "a.o:\n\t/usr/bin/gcc -c a.c\n",
            "the makefile calls /usr/bin/gcc by path, past buildd; let it call compilers by name",
        ),
    ],
)
def test_a_makefile_that_calls_compilers_by_path(tmp_path: Path, makefile: str, said: str) -> None:
    write(tmp_path / "Makefile", makefile)
    assert list(configured.advice(("make",), str(tmp_path), {"PYTORCH_NVCC": "/place/bin/nvcc"})) == [said]


@pytest.mark.parametrize(
    "makefile", ["CC = gcc\na.o:\n\t$(CC) -c a.c\n", "x:\n\tcp /usr/bin/gcc.conf /usr/lib/gcc/x .\n"]
)
def test_a_makefile_that_calls_them_by_name_is_right(tmp_path: Path, makefile: str) -> None:
    write(tmp_path / "Makefile", makefile)
    assert list(configured.advice(("make",), str(tmp_path), {})) == []


def test_ninja_files_that_call_compilers_by_path(tmp_path: Path) -> None:
    write(tmp_path / "build.ninja", "nvcc = /usr/local/cuda/bin/nvcc\nrule c\n  command = g++ -c $in\n")
    said = "build.ninja calls /usr/local/cuda/bin/nvcc by path, past buildd; configure it below buildd run"
    assert list(configured.advice(("ninja",), str(tmp_path), {})) == [said]


def test_trees_that_are_gone_or_mended_are_not_left(tmp_path: Path) -> None:
    permanent = tmp_path / "data"
    for name, launcher in (
        ("one", f"{permanent}/launchers/1/bin/buildd-cc"),
        ("two", ""),
        ("three", "/usr/bin/ccache"),
    ):
        write(tmp_path / name / "CMakeCache.txt", f"CMAKE_C_COMPILER_LAUNCHER:STRING={launcher}\n")
    lines = [f"{tmp_path}/{name}\n" for name in ("one", "two", "x/../one", "three", "gone")]
    write(permanent / "trees", "".join(lines) + "relative\n")
    assert configured.left_trees(permanent) == [str(tmp_path / "one")]
    assert configured.left_trees(Path(os.devnull)) == []
