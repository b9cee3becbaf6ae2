"""Deterministic projects for the benchmarks, each for buildd and for ninja with the same commands.

Knows no measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ARCH = "sm_80"
GENCODE = "-gencode=arch=compute_80,code=[sm_80,compute_80]"
FLAGS = (GENCODE, "-Xcompiler=-fPIC", "-Iinclude", "-O3")


def cuda_project(folder: Path, units: int, nvcc: Path) -> None:
    """Sources that nvcc needs about a second for: kernels from templates in shared headers. Targets: lib, objects."""
    (folder / "include").mkdir(parents=True)
    (folder / "src").mkdir()
    for number in range(8):
        below = f'#include "part{number + 1}.cuh"\n' if number < 7 else ""
        (folder / "include" / f"part{number}.cuh").write_text(
            f"#pragma once\n#include <cuda_runtime.h>\n{below}"
            f"template <int Depth, typename T> struct Part{number} {{\n"
            "  __device__ static T apply(T x, T y) {\n"
            f"    return Part{number}<Depth - 1, T>::apply(x * T({number + 2}) + y, x - y) + T(Depth);\n"
            "  }\n};\n"
            f"template <typename T> struct Part{number}<0, T> {{\n"
            "  __device__ static T apply(T x, T y) { return x * y; }\n};\n"
        )
    for number in range(units):
        first, second = number % 8, (number // 8 + 3) % 8
        kernels = "".join(
            f"template __global__ void unit_{number}::kernel<{depth}, {kind}>({kind} *, {kind} const *, int);\n"
            for depth in (2 + number % 3, 5)
            for kind in ("float", "double")
        )
        (folder / "src" / f"unit_{number:03}.cu").write_text(
            f'#include "part0.cuh"\nnamespace unit_{number} {{\n'
            "template <int Depth, typename T>\n"
            "__global__ void kernel(T *out, T const *in, int n) {\n"
            "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
            f"  if (i < n) out[i] = Part{first}<Depth, T>::apply(in[i], T({number})) +\n"
            f"                      Part{second}<Depth, T>::apply(out[i], in[i]);\n"
            "}\n}\n" + kernels
        )
    _describe(folder, nvcc)
    _ninja(folder, sorted(path.name for path in (folder / "src").iterdir()), nvcc)


def graph_project(folder: Path, units: int, headers: int, nvcc: Path) -> None:
    """Many small sources, each with some of a few hundred headers; for a compiler that takes no time."""
    (folder / "include").mkdir(parents=True)
    (folder / "src").mkdir()
    pool = max(headers, min(500, units))
    for number in range(pool):
        (folder / "include" / f"h{number}.h").write_text(f"#pragma once\n#define H{number} {number}\n")
    for number in range(units):
        includes = "".join(f'#include "h{(number * 31 + k * 7) % pool}.h"\n' for k in range(headers))
        (folder / "src" / f"unit_{number:05}.cu").write_text(f"{includes}int unit_{number};\n")
    _describe(folder, nvcc)
    _ninja(folder, sorted(path.name for path in (folder / "src").iterdir()), nvcc)


def _describe(folder: Path, nvcc: Path) -> None:
    common = f'kind = "cuda"\nsources = ["src/*.cu"]\ninclude = ["include"]\narch = ["{ARCH}"]\nflags = ["-O3"]\n'
    (folder / "buildd.toml").write_text(
        f'[project]\ndefault = ["lib"]\n[toolchain]\ncuda = "{nvcc.parents[1]}"\n'
        f'[target.lib]\n{common}[target.objects]\noutput = "object"\n{common}'
    )


def _ninja(folder: Path, sources: Sequence[str], nvcc: Path) -> None:
    """build.ninja: `all` with the library, `objects` without. $launcher comes from launcher.ninja, for ccache."""
    flags = " ".join(FLAGS)
    objects = " ".join(f"$folder/{name}.o" for name in sources)
    many = len(sources) > 500  # As in buildd: an archive, because a command line has an end.
    lines = [
        "include launcher.ninja",
        "rule compile",
        f"  command = $launcher {nvcc} -c {flags} -MD -MF $out.d -o $out $in",
        "  deps = gcc",
        "  depfile = $out.d",
        "rule archive",
        "  command = rm -f $out && ar rcsD $out @$out.rsp",
        "  rspfile = $out.rsp",
        "  rspfile_content = $in",
        "rule link",
        f"  command = $launcher {nvcc} -shared -nodlink -L{nvcc.parents[1] / 'lib'} -o $out $objects",
        *(f"build $folder/{name}.o: compile src/{name}" for name in sources),
        f"build objects: phony {objects}",
        *([f"build $folder/objects.a: archive {objects}"] if many else []),
        f"build $folder/lib.so: link {'$folder/objects.a' if many else objects}",
        f"  objects = {'-Xlinker=--whole-archive $folder/objects.a' if many else objects}",
        "build all: phony $folder/lib.so",
        "default all",
    ]
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")
    launcher(folder, "", "ninja-build")


def launcher(folder: Path, command: str, output: str) -> None:
    """What stands before each command of build.ninja, and where its outputs go."""
    (folder / "launcher.ninja").write_text(f"launcher = {command}\nfolder = {output}\nbuilddir = {output}\n")
