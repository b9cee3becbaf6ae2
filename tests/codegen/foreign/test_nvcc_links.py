"""nvcc commands that compile and link one source, and an nvcc that no shim stands before."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.nvcc_project import KERNEL
from tests.support.objects import contents
from tests.support.user import User

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def cuda(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject.with_nvcc(user, request.node.name)
    made.write("include/always.h", "#define FACTOR 3\n")
    made.write("include/host.h", "#define HOST 4\n")
    made.write("k.cu", KERNEL.replace("NAME", "first").replace("SECOND", "run_first"))
    return made


def toolkit(foreign: ForeignProject) -> Path:
    real = shutil.which("nvcc", path=foreign.plain["PATH"])
    assert real is not None
    return Path(real).resolve().parents[1]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), marks=pytest.mark.slow),
        ("-Xlinker", "-rpath=/nowhere", "-lineinfo", "-Xcudafe", "--diag_suppress=177"),
    ],
)
def test_a_library_from_one_source_is_nvccs(cuda: ForeignProject, more: tuple[str, ...]) -> None:
    """As tilelang and many users of ctypes compile: with `-l` of a library that the project makes."""
    cuda.write("other.c", "int other(void) { return 5; }")
    cuda.good("gcc", "-shared", "-fPIC", "other.c", "-o", "libother.so")
    folder = f"-L{toolkit(cuda)}/lib"
    options = ("-std=c++17", "-w", "-gencode", "arch=compute_80,code=sm_80", "--compiler-options", "-fPIC")
    command = ("nvcc", *options, *more, "--shared", "k.cu", "-Iinclude", folder, "-L.", "-lother", "-o", "made.so")
    before = cuda.counts()
    cuda.good(*command)
    ours = contents(cuda.folder / "made.so")
    assert ctypes.CDLL(str(cuda.folder / "libother.so")) and ctypes.CDLL(str(cuda.folder / "made.so")).first() == 7
    (cuda.folder / "made.so").unlink()
    cuda.good(*command)
    assert cuda.counts() == (before[0] + 1, before[1] + 1)
    assert (cuda.folder / "made.so").stat().st_mode & 0o111
    assert cuda.plainly(*command).returncode == 0
    theirs = contents(cuda.folder / "made.so")
    assert {name: ours[name] for name in ("symbols", "machine code", "ptx")} == {
        name: theirs[name] for name in ("symbols", "machine code", "ptx")
    }
    cuda.write("other.c", "int other(void) { return 6; }")
    cuda.good("gcc", "-shared", "-fPIC", "other.c", "-o", "libother.so")
    missed = cuda.counts()[1]
    cuda.good(*command)
    assert cuda.counts()[1] == missed + 1, "the linker read another library"


def test_a_library_from_objects_is_nvccs(cuda: ForeignProject) -> None:
    """As AITemplate links: objects that were compiled before, in the order of the command."""
    cuda.write("other.c", "int other(void) { return 5; }")
    cuda.write("main.cu", 'extern "C" int other(); extern "C" int first(); int both() { return other() + first(); }')
    cuda.good("gcc", "-shared", "-fPIC", "other.c", "-o", "libother.so")
    for source in ("k", "main"):
        command = ("nvcc", "-arch=sm_80", "-Iinclude", "-Xcompiler=-fPIC", "-c", f"{source}.cu", "-o", f"{source}.obj")
        cuda.good(*command)
    folders = (f"-L{toolkit(cuda)}/lib", "-Lnearer", "-L.", "-Xlinker", f"-rpath={cuda.folder}")
    link = ("nvcc", "-shared", "-Xcompiler=-fPIC", "-o", "made.so", "k.obj", "main.obj", *folders, "-lother")

    def linked() -> tuple[int, int]:
        before = cuda.counts()
        (cuda.folder / "made.so").unlink(missing_ok=True)
        cuda.good(*link)
        after = cuda.counts()
        return after[0] - before[0], after[1] - before[1]

    assert linked() == (0, 1)
    ours = contents(cuda.folder / "made.so")
    assert linked() == (1, 0)
    assert (cuda.folder / "made.so").stat().st_mode & 0o111
    assert contents(cuda.folder / "made.so") == ours
    assert cuda.plainly(*link).returncode == 0
    theirs = contents(cuda.folder / "made.so")
    assert {name: ours[name] for name in ("symbols", "machine code", "ptx")} == {
        name: theirs[name] for name in ("symbols", "machine code", "ptx")
    }
    assert ctypes.CDLL(str(cuda.folder / "libother.so")) and ctypes.CDLL(str(cuda.folder / "made.so")).first() == 7
    cuda.write("main.cu", 'extern "C" int other(); int both() { return other() + 1; }')
    cuda.good("nvcc", "-arch=sm_80", "-Xcompiler=-fPIC", "-c", "main.cu", "-o", "main.obj")
    assert linked() == (0, 1), "another object"
    (cuda.folder / "nearer").mkdir()
    shutil.copy(cuda.folder / "libother.so", cuda.folder / "nearer/libother.so")
    assert linked() == (0, 1), "a library that the linker finds first"
    link = (*link[:5], "main.obj", "k.obj", *link[7:])
    assert linked() == (0, 1), "the order counts"
    assert cuda.figures().passed_through == {}
    (cuda.folder / "main.obj").unlink()
    failed = cuda.call(*link)
    assert failed.returncode != 0 and b"main.obj" in failed.stderr


def test_an_nvcc_past_the_shims_is_told_by_its_own_calls(cuda: ForeignProject) -> None:
    cuda.user.environ["BUILDD_INTERPOSE"] = "0"
    cuda.search(f"{toolkit(cuda)}/bin")
    cuda.good(f"{toolkit(cuda)}/bin/nvcc", "-arch=sm_80", "-Iinclude", "-c", "k.cu", "-o", "k.o")
    figures = cuda.figures()
    assert (figures.hits, figures.misses) == (0, 0)
    assert set(figures.passed_through) == {"inside-nvcc"} and figures.passed_through["inside-nvcc"] >= 3
