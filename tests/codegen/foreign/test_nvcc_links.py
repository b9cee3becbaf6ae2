"""nvcc commands that compile and link one source, and an nvcc that no shim stands before."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from codegen.compilers import linking
from codegen.compilers.command_parser import PassThrough
from tests.support.foreign_project import ForeignProject
from tests.support.nvcc_project import KERNEL
from tests.support.objects import contents
from tests.support.user import User
from tests.support.waiting import until

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


def made_of(program: Path) -> list[object]:
    """Symbols and device code of a linked file. The linker orders symbols by their names, which hold modules' ids. With
    -lineinfo, the device link names the first object."""
    found = contents(program)
    ptx = [line for line in found["ptx"].splitlines() if not line.startswith("identifier = ")]
    return [sorted(found["symbols"].splitlines()), found["machine code"], ptx]


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
    ours = made_of(cuda.folder / "made.so")
    assert ctypes.CDLL(str(cuda.folder / "libother.so")) and ctypes.CDLL(str(cuda.folder / "made.so")).first() == 7
    (cuda.folder / "made.so").unlink()
    cuda.good(*command)
    hits, missed = cuda.counts()
    assert missed == before[1] + 2, "one compile, one link"
    assert hits - before[0] in (1, 2), "the second time, perhaps without the daemon"
    assert (cuda.folder / "made.so").stat().st_mode & 0o111
    assert cuda.plainly(*command).returncode == 0
    assert ours == made_of(cuda.folder / "made.so")
    cuda.write("other.c", "int other(void) { return 6; }")
    cuda.good("gcc", "-shared", "-fPIC", "other.c", "-o", "libother.so")
    hits, missed = cuda.counts()
    cuda.good(*command)
    assert cuda.counts() == (hits + 1, missed + 1), "the linker read another library"


def test_a_program_from_one_source_is_found_from_another_checkout(cuda: ForeignProject) -> None:
    """One command compiles and links. Its parts are found from another folder, and then the whole, without the daemon,
    until a file of one of them changes."""
    command = ("nvcc", "-arch=sm_80", "-Iinclude", "-O1", f"-L{toolkit(cuda)}/lib", "k.cu", "-o", "bin/prog")
    texts = {
        "k.cu": '#include "answer.h"\nextern "C" void first() {}\n// plain\n'
        "namespace { __global__ void k(int *p) { *p = ANSWER; } }\n"
        "int main() { k<<<1, 1>>>(nullptr); return ANSWER; }\n",
        "include/answer.h": "#define ANSWER 42\n",
    }
    checkouts = [cuda.folder / name for name in ("one", "two")]
    for checkout in checkouts:
        for name, text in texts.items():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_text(text)
        (checkout / "bin").mkdir()

    def made(checkout: Path, answer: int = 42) -> tuple[int, int]:
        before = cuda.counts()
        (checkout / "bin/prog").unlink(missing_ok=True)
        done = cuda.call(*command, cwd=checkout)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert subprocess.run([checkout / "bin/prog"]).returncode == answer
        after = cuda.counts()
        return after[0] - before[0], after[1] - before[1]

    one, two = checkouts
    assert made(one) == (0, 2)
    assert made(two) == (2, 0)
    assert (one / "bin/prog").read_bytes() == (two / "bin/prog").read_bytes()
    until(lambda: made(two) == (1, 0), "a direct hit")
    (two / "k.cu").write_text(texts["k.cu"].replace("plain", "PLAIN"))
    assert made(two)[1] == 0, "a comment"
    (two / "include/answer.h").write_text("#define ANSWER 43\n")
    assert made(two, 43)[1] == 2, "a header of the compile"
    (two / "include/answer.h").write_text("#define ANSWER 42\n")
    assert made(two)[1] == 0
    assert cuda.plainly(*command, cwd=one).returncode == 0
    assert made_of(one / "bin/prog") == made_of(two / "bin/prog")
    assert not [*Path("/tmp").glob(f"buildd-parts-*{cuda.folder}")]
    library = (*command[:-2], "-shared", "-Xcompiler=-fPIC", "-o", "k.so")
    for checkout in checkouts:
        assert cuda.call(*library, cwd=checkout).returncode == 0
    named = re.compile(rb"_GLOBAL__N__[0-9a-f]{8}_4_k_cu_\w+")
    kernels = [{*named.findall((checkout / "k.so").read_bytes())} for checkout in checkouts]
    assert kernels[0] and not kernels[0] & kernels[1], "one process may load both"


def test_a_link_with_openmp_reads_the_specs_of_gcc(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("near", "far")]
    assert linking.openmp(("-O2",), folders) == ()
    for flag in ("-fopenmp", "-Xcompiler=-O2,-fopenmp"):
        read = [file.path for file in linking.openmp((flag,), folders)]
        assert read == [f"{folder}/libgomp.spec" for folder in folders], "one that comes later counts too"
    (tmp_path / "far/accel").mkdir(parents=True)
    with pytest.raises(PassThrough):
        linking.openmp(("-fopenmp",), folders)


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
    ours = made_of(cuda.folder / "made.so")
    assert linked() == (1, 0)
    assert (cuda.folder / "made.so").stat().st_mode & 0o111
    assert made_of(cuda.folder / "made.so") == ours
    assert cuda.plainly(*link).returncode == 0
    assert ours == made_of(cuda.folder / "made.so")
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


DEVICE = "__device__ int twice(int x) { return 2 * x; }\n"
CALLER = """extern __device__ int twice(int x);
__global__ void kernel(int *p) { *p = twice(3); }
int main() { kernel<<<1, 1>>>(nullptr); return 0; }
"""


def test_device_links_are_nvccs(cuda: ForeignProject) -> None:
    """As CMake and nccl's Makefile link relocatable device code: into an object that the host linker takes."""
    for name, text in (("device", DEVICE), ("caller", CALLER), ("library", DEVICE.replace("twice", "thrice"))):
        cuda.write(f"{name}.cu", text)
        cuda.good("nvcc", "-arch=sm_80", "-Xcompiler=-fPIC", "-dc", f"{name}.cu", "-o", f"{name}.o")
    (cuda.folder / "nearer").mkdir()
    cuda.good("ar", "rcs", "nearer/libmore.a", "library.o")
    options = ("-arch=sm_80", "-Xcompiler=-fPIC", "-Lnearer", "-lmore", "-lcudadevrt")
    device = ("nvcc", *options, "-shared", "-dlink", "caller.o", "device.o", "-o", "linked.o")
    whole = ("nvcc", *options, "-rdc=true", f"-L{toolkit(cuda)}/lib", "caller.o", "device.o", "-o", "prog")

    def linked(command: tuple[str, ...]) -> tuple[int, int]:
        before = cuda.counts()
        (cuda.folder / command[-1]).unlink(missing_ok=True)
        cuda.good(*command)
        after = cuda.counts()
        return after[0] - before[0], after[1] - before[1]

    for command in (device, whole):
        place = cuda.folder / command[-1]
        assert linked(command) == (0, 1)
        ours, mode = place.read_bytes(), place.stat().st_mode
        assert linked(command) == (1, 0)
        assert (place.read_bytes(), place.stat().st_mode) == (ours, mode)
        assert cuda.plainly(*command).returncode == 0
        assert place.stat().st_mode == mode and (place.read_bytes() == ours or command is whole)
        if command is whole:
            assert made_of(place)[1:] == contents_of(ours, cuda.folder / "ours")[1:]
    libraries = (f"-L{toolkit(cuda)}/lib", "-lcudart_static", "-ldl", "-lrt", "-lpthread")
    cuda.good("g++", "caller.o", "device.o", "library.o", "linked.o", *libraries, "-o", "by-hand")
    assert all(cuda.plainly(str(cuda.folder / name)).returncode == 0 for name in ("by-hand", "prog"))
    # ld would take a shared library of that name. nvlink reads the archive.
    cuda.good("gcc", "-shared", "-o", "nearer/libmore.so", "-x", "c", "/dev/null")
    linked(whole)
    cuda.write("library.cu", DEVICE.replace("twice", "fourfold"))
    cuda.good("nvcc", "-arch=sm_80", "-dc", "library.cu", "-o", "library.o")
    cuda.good("ar", "rcs", "nearer/libmore.a", "library.o")
    assert linked(device) == linked(whole) == (0, 1), "another archive"
    cuda.write("device.cu", DEVICE.replace("2", "3"))
    cuda.good("nvcc", "-arch=sm_80", "-Xcompiler=-fPIC", "-dc", "device.cu", "-o", "device.o")
    assert linked(device) == linked(whole) == (0, 1), "another object"
    (cuda.folder / "nearer/libmore.a").unlink()
    cuda.good("ar", "rcsT", "nearer/libmore.a", "library.o")
    assert linked(device) == (0, 0), "the members of a thin archive are files of their own"


def contents_of(program: bytes, place: Path) -> list[object]:
    place.write_bytes(program)
    return made_of(place)
