"""AITemplate's own builds through the shims, unpatched: Makefiles of its shape, with its `make clean` first.

Model: eight sources, constants through `ld -r -b binary`, one library. Profilers: compiled and linked in one command.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.developer import Developer
from tests.support.foreign_project import ForeignProject, kept_up
from tests.support.user import User

FLAGS = (
    "-t=0 -DCUTLASS_ENABLE_TENSOR_CORE_MMA=1 -w -gencode=arch=compute_80,code=[sm_80,compute_80] -O3 -std=c++17"
    " --expt-relaxed-constexpr -DCUTLASS_DEBUG_TRACE_LEVEL=0 -DNDEBUG --use_fast_math -DAIT_USE_FAST_MATH=1"
    " -Xcompiler=-fPIC -Xcompiler=-Wconversion -Xcompiler=-fno-strict-aliasing -Xcompiler -fvisibility=hidden -I."
)
MODEL = """\
CC = nvcc
obj_files = {objects}
fPIC_flag = -Xcompiler=-fPIC

%.obj : %.cu
\t$(CC) {flags} -c -o $@ $<
%.obj : %.bin
\tld -r -b binary -o $@ $< && objcopy --rename-section .data=.lrodata,alloc,load,readonly,data,contents $@ $@

.PHONY: all clean clean_constants
all: test.so

test.so : $(obj_files)
\t$(CC) -shared $(fPIC_flag)  -o $@ $(obj_files)

clean:
\trm -f *.obj test.so
clean_constants:
\trm -f constants.bin
"""
PROFILERS = """\
all: {targets}
.PHONY: all clean

%: %.cu
\tnvcc {flags} -o $@ $<

clean:
\trm -f {targets}
"""
OPERATORS = ("gemm_rcr_bias_relu_0", "gemm_rcr_bias_1", "layernorm_2")
MODEL_UNITS = ("model_container", "model_container_base", "model_interface")
UNITS = (*OPERATORS, *MODEL_UNITS, "utility", "debug_utility")


@pytest.fixture
def build(developer: Developer, toolkit: Path) -> Iterator[ForeignProject]:
    assert developer.buildd("up")[0] == 0
    made = ForeignProject(developer, developer.folder / "workdir", str(toolkit / "bin"))
    yield made
    made.notes.close()


def write_model(build: ForeignProject, eps: str, width: int = 128) -> None:
    """What AITemplate's code generation writes, again on every run."""
    build.write("test/model-generated.h", f"constexpr float eps = {eps};\n")
    build.write("test/device_functions-generated.h", "// device functions\n")
    for name in OPERATORS:
        build.write(f"test/{name}.cu", f'#include "device_functions-generated.h"\n{name} of width {width}\n')
    for name in MODEL_UNITS:
        build.write(f"test/{name}.cu", f'#include "model-generated.h"\n{name}\n')
    for name in ("utility", "debug_utility"):
        build.write(f"test/{name}.cu", f"{name}\n")
    build.write("test/constants.bin", "constants" * 100)
    objects = " ".join(f"{name}.obj" for name in (*UNITS, "constants"))
    build.write("test/Makefile", MODEL.format(objects=objects, flags=FLAGS))


def make(build: ForeignProject, folder: str, makefile: str = "Makefile") -> tuple[int, int]:
    """`make clean && make all`, as AITemplate calls it; hits and misses of it."""
    before = build.counts()
    common = ("make", "-f", makefile, "--output-sync=target", "-C", str(build.folder / folder))
    build.good(*common, "clean")
    build.good(*common, "-j8", "all")
    hits, misses = build.counts()
    return hits - before[0], misses - before[1]


def test_its_clean_builds_are_incremental(build: ForeignProject) -> None:
    everything = len(UNITS) + 1  # and the link
    write_model(build, "1e-5")
    assert make(build, "test") == (0, everything)
    first = (build.folder / "test/test.so").read_bytes()
    write_model(build, "1e-5")
    assert make(build, "test") == (everything, 0)
    assert (build.folder / "test/test.so").read_bytes() == first
    write_model(build, "1e-6")
    assert make(build, "test") == (everything - 4, 4), "an eps edit compiles three, and links"
    assert (build.folder / "test/test.so").read_bytes() != first
    write_model(build, "1e-5")
    assert make(build, "test") == (everything, 0)
    assert (build.folder / "test/test.so").read_bytes() == first
    assert build.figures().passed_through == {}
    profilers(build)


def profilers(build: ForeignProject) -> None:
    """They are compiled and linked once."""
    names = [f"{operator}_{digest}_3" for operator, digest in (("gemm_rcr", "3f786850e387550f"), ("bmm", "89e6c98d"))]
    for name in names:
        build.write(f"profiler/{name}.cu", f"{name} with 22 kernels\n")
    makefile = PROFILERS.format(targets=" ".join(names), flags=FLAGS)
    build.write("profiler/Makefile_1", makefile)
    assert make(build, "profiler", "Makefile_1") == (0, 4), "one command each, which compiles and links"
    first = [(build.folder / "profiler" / name).read_bytes() for name in names]
    hits, misses = make(build, "profiler", "Makefile_1")
    assert misses == 0 and 2 <= hits <= 4, "whole, or in its parts"
    for name, content in zip(names, first, strict=True):
        place = build.folder / "profiler" / name
        assert place.read_bytes() == content and place.stat().st_mode & 0o111
    build.write(f"profiler/{names[0]}.cu", "another alignment\n")
    hits, misses = make(build, "profiler", "Makefile_1")
    assert misses == 2 and 1 <= hits <= 2


@pytest.mark.cuda
@pytest.mark.slow
def test_a_real_program_is_compiled_and_linked_once(user: User) -> None:
    build = ForeignProject(user, user.folder / "project", _real_bin())
    build.write("x.h", "#define SAID 7\n")
    build.write("x.cu", '#include "x.h"\n__global__ void k() {}\nint main() { k<<<1, 1>>>(); return SAID; }\n')
    command = ("nvcc", *FLAGS.split(), "-L.", "-o", "x", "x.cu")
    for _ in range(2):
        build.good(*command)
        assert build.counts()[1] == 2, "a compile and a link, once"
        assert build.call(str(build.folder / "x")).returncode == 7
        (build.folder / "x").unlink()
    build.write("x.h", "#define SAID 8\n")
    build.good(*command)
    assert build.counts()[1] == 4 and build.call(str(build.folder / "x")).returncode == 8
    # A library that is found first from now on, as the linker would.
    shutil.copy(_library("libcudart_static.a"), build.folder / "libcudart_static.a")
    build.good(*command)
    assert build.counts()[1] == 5, "the link alone"
    build.notes.close()


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="buildd-test-", dir="/tmp"))
    user = User(folder)
    with kept_up(user):
        yield user
    left = user.end()
    shutil.rmtree(folder, ignore_errors=True)
    assert not left


def _real_bin() -> str:
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("a whole toolkit is needed: the wheels have no lib64 that nvcc looks into")
    return str(Path(found).resolve().parent)


def _library(name: str) -> Path:
    root = Path(_real_bin()).parent
    done = subprocess.run(["find", "-L", str(root), "-name", name], capture_output=True, text=True, check=True)
    return Path(done.stdout.splitlines()[0])
