"""Compiles of foreign builds in steps: what nvcc itself would make, say, read and end with."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
from pathlib import Path

import pytest

from codegen.foreign.command_line import parse
from codegen.foreign.compile_plan import steps_key
from tests.support.foreign_project import ForeignProject, prerequisites
from tests.support.nvcc_project import KERNEL
from tests.support.objects import anonymous, contents
from tests.support.user import User


def test_what_is_asked_once_for_all_sources_outputs_and_depfiles() -> None:
    one = parse(("/x/nvcc", "-arch=sm_80", "-c", "src/a.cu", "-o", "a.o", "-MD", "-MF", "a.d", "-MT", "a.o"), "/p")
    same = parse(("/x/nvcc", "-c", "-arch=sm_80", "lib/b.cu", "-o", "x/b.obj", "-MMD", "-MP"), "/q")
    assert steps_key(one, ()) != steps_key(same, ()), "the order of flags may matter"
    same = parse(("/x/nvcc", "-arch=sm_80", "lib/b.cu", "-c", "-o", "x/b.obj", "-MMD", "-MP"), "/q")
    assert steps_key(one, ()) == steps_key(same, ())
    assert steps_key(one, ()) != steps_key(parse(("/x/nvcc", "-arch=sm_80", "-c", "src/a.cpp"), "/p"), ())


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def cuda(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject.with_nvcc(user, request.node.name)
    made.write("include/always.h", "#define FACTOR 3\n")
    made.write("include/host.h", "#define HOST 4\n")
    made.write("src/k.cu", KERNEL.replace("NAME", "first").replace("SECOND", "run_first"))
    made.write("build/obj/empty", "")
    return made


def steps(foreign: ForeignProject) -> tuple[int, int, int]:
    """Steps that were found and that ran, and compiles that ran whole, since the daemon began."""
    counters = foreign.status().counters
    return counters["step_hits"], counters["step_misses"], counters["whole"]


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (
            "-gencode arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90] -Xptxas=-O1"
            " --compiler-options \"'-fPIC'\"",
            12,
        ),
        ("-x cu -arch=sm_80 -dc -G -g -DX='a b' -Werror all-warnings -Xcompiler -fPIC,-Wall", 7),
        pytest.param(
            *("-arch=sm_90 -Xfatbin -compress-all -t0 --brief-diagnostics=true -forward-unknown-opts -g0 -shared", 9),
            marks=pytest.mark.slow,
        ),
        ("-arch=sm_90 --split-compile=2 -lineinfo -opt-info inline -diag-suppress 177 --threads=2", 7),
        pytest.param(
            *("-gencode arch=compute_120f,code=sm_120 -gencode arch=compute_120,code=compute_120", 12),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_object_and_the_depfile_are_nvccs(cuda: ForeignProject, flags: str, count: int) -> None:
    source = "../src/k.cu" if "-x" not in flags else str(cuda.folder / "src/k.cu")
    command = ("nvcc", *shlex.split(flags), "-I../include", "-c", source, "-o", "obj/k.o", "-MD", "-MF", "k.d")
    folder = cuda.folder / "build"
    before = steps(cuda)
    done = cuda.call(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    after = steps(cuda)
    assert (after[1] - before[1], after[2] - before[2]) == (count, 0)
    ours, target = contents(folder / "obj/k.o"), prerequisites((folder / "k.d").read_bytes())
    plain = cuda.plainly(*command, cwd=folder)
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
    theirs = contents(folder / "obj/k.o")
    assert "run_first" in ours["symbols"]
    for name, text in theirs.items():
        assert ours[name] == text, name
    wanted = prerequisites((folder / "k.d").read_bytes())
    assert target[0] == wanted[0] and target[1][0] == wanted[1][0]
    listed = {os.path.normpath(path) for path in target[1]}
    assert {os.path.normpath(path) for path in wanted[1]} <= listed
    assert not [path for path in listed if path.startswith(str(cuda.user.store))], "no file of a step is an input"


WHOLE = ("-Xcompiler", "-DHERE=a*b")
"""Options with which a compile runs whole: nvcc's shell looks for files of such names."""


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("more", "listed"),
    [
        pytest.param((), (), id="steps", marks=pytest.mark.slow),
        pytest.param((), ("-MMD", "-MF", "k.d"), id="steps with a depfile"),
        pytest.param(WHOLE, (), id="whole", marks=pytest.mark.slow),
        pytest.param(WHOLE, ("-MMD", "-MF", "k.d"), id="whole with a depfile", marks=pytest.mark.slow),
    ],
)
def test_warnings_come_in_nvccs_order(cuda: ForeignProject, listed: tuple[str, ...], more: tuple[str, ...]) -> None:
    """With a depfile nvcc preprocesses everything before it compiles anything."""
    text = (cuda.folder / "src/k.cu").read_text()
    cuda.write("src/k.cu", "#warning preprocessed\n" + text + "__global__ void warned() { int unused; }\n")
    last = "-gencode=arch=compute_90,code=[sm_90,compute_90]"
    flags = ("-gencode=arch=compute_80,code=sm_80", last, "-Iinclude", *listed, *more)
    command = ("nvcc", *flags, "-c", "src/k.cu", "-o", "k.o")
    before = steps(cuda)
    done = cuda.call(*command)
    assert steps(cuda)[2] - before[2] == bool(more)
    plain = cuda.plainly(*command)
    assert plain.stderr.count(b"preprocessed") >= 3 and plain.stderr.count(b"unused") >= 3
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('#include "always.h"', '#include "missing.h"'),
        # A failing cudafe++ is in test_nvcc_steps.py, too.
        pytest.param("return FACTOR + HOST", "int unused; return undeclared", marks=pytest.mark.slow),
        ("#ifndef __CUDA_ARCH__", "#ifdef __CUDA_ARCH__\n__device__ int f() { return g; }\n#else"),
        ("= offset;", '= offset; asm("nonsense;");'),
        ("return FACTOR + HOST", 'static_assert(__builtin_constant_p(FACTOR), ""); asm("nonsense"); return 1'),
    ],
    ids=["preprocess", "cudafe++", "cicc", "ptxas", "host compile"],
)
def test_a_compile_fails_as_nvcc_fails(cuda: ForeignProject, old: str, new: str) -> None:
    text = (cuda.folder / "src/k.cu").read_text()
    assert old in text
    cuda.write("src/k.cu", text.replace(old, new))
    command = ("nvcc", "-arch=sm_80", "-Iinclude", "-c", "src/k.cu", "-o", "k.o")
    plain = cuda.plainly(*command)
    assert plain.returncode != 0 and plain.stderr
    before = steps(cuda)
    done = cuda.call(*command)
    assert steps(cuda)[1] > before[1]
    assert done.returncode == plain.returncode
    assert anonymous(done.stdout.decode()) == anonymous(plain.stdout.decode())
    assert anonymous(done.stderr.decode()) == anonymous(plain.stderr.decode())
    assert not (cuda.folder / "k.o").exists()


@pytest.mark.cuda
@pytest.mark.slow  # test_nvcc_steps.py links one text twice
def test_one_source_twice_and_two_of_one_name_make_a_program(cuda: ForeignProject) -> None:
    """Relocatable: the device linker sees every symbol. One output is moved away and made again with other macros."""
    text = (cuda.folder / "src/k.cu").read_text()
    cuda.write("src/deeper/k.cu", text)
    for number, (source, output) in enumerate(
        (("src/k.cu", "k.o"), ("src/k.cu", "k.o"), ("src/k.cu", "other.o"), ("k.cu", "k.o"))
    ):
        folder = cuda.folder / "src/deeper" if source == "k.cu" else cuda.folder
        names = (f"-Dfirst=first_{number}", f"-Drun_first=run_{number}", f"-I{cuda.folder}/include")
        command = ("nvcc", "-arch=sm_80", "-rdc=true", "-Xcompiler=-fPIC", *names, "-c", source, "-o", output)
        done = cuda.call(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
        shutil.move(folder / output, cuda.folder / f"{number}.o")
    real = shutil.which("nvcc", path=cuda.plain["PATH"])
    assert real is not None
    folder = f"-L{Path(real).resolve().parents[1]}/lib"
    objects = [f"{number}.o" for number in range(4)]
    done = cuda.call("nvcc", "-arch=sm_80", "-shared", *objects, folder, "-o", "lib.so")
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(cuda.folder / "lib.so"))
    assert [getattr(loaded, f"first_{number}")() for number in range(4)] == [7] * 4


@pytest.mark.cuda
def test_what_cannot_be_done_in_steps_runs_whole(cuda: ForeignProject) -> None:
    before = steps(cuda)
    done = cuda.call("nvcc", "-arch=sm_80", "-x", "c++", "-Iinclude", "-c", "src/k.cu", "-o", "k.o")
    assert done.returncode != 0, "a kernel is no C++"
    after = steps(cuda)
    assert (after[1], after[2]) == (before[1], before[2] + 1)


@pytest.mark.cuda
def test_of_a_step_that_a_signal_ends_only_nvcc_can_tell(cuda: ForeignProject) -> None:
    real = shutil.which("nvcc", path=cuda.plain["PATH"])
    assert real is not None
    toolkit, mine = Path(real).resolve().parents[1], cuda.folder / "toolkit"
    (mine / "bin").mkdir(parents=True)
    for path in (*toolkit.iterdir(), *(toolkit / "bin").iterdir()):
        place = mine / path.relative_to(toolkit)
        if path.name in ("nvcc", "ptxas"):
            shutil.copy(path, place)
        elif path.name != "bin":
            place.symlink_to(path)
    (mine / "bin/ptxas").write_text("#!/bin/sh\nkill -SEGV $$\n")
    command = (str(mine / "bin/nvcc"), "-arch=sm_80", "-Iinclude", "-c", "src/k.cu", "-o", "k.o")
    plain = cuda.plainly(*command)
    before = steps(cuda)
    done = cuda.call(*command)
    assert steps(cuda)[1] > before[1]
    assert plain.stderr
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
