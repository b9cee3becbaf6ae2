"""Kernels read from what compilers made, beside what the tools say of them."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from buildd.artifacts.device_code import kernels_of, kernels_of_file
from buildd.artifacts.kernel_reports import completed, kernels_in, recoded
from protocol.messages import CacheHit, Event, Finished, Kernel
from tests.support.objects import inspector
from tests.support.own_programs import lend_programs
from tests.support.paths import ROOT

SOURCE = """\
__global__ void scale(float *p, int n) {
  __shared__ float s[64];
  s[threadIdx.x % 64] = p[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < n) p[threadIdx.x] = s[(threadIdx.x + 1) % 64] * FACTOR;
}
template <int N> __global__ void spread(float *p) {
  float x[N];
  for (int i = 0; i < N; i++) x[i] = p[i * N];
  for (int i = 0; i < N; i++) p[(int)x[i]] = x[N - 1 - i];
}
template __global__ void spread<8>(float *);
"""
_FUNCTION = re.compile(r" Function (\w+):\n  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:\d+ CONSTANT\[0\]:(\d+)")


def by_name(kernels: tuple[Kernel, ...]) -> dict[tuple[str, str], Kernel]:
    return {(kernel.name, kernel.arch): kernel for kernel in kernels}


def damaged(content: bytes) -> None:
    """Whatever is broken, nothing is raised."""
    rng = random.Random(7)
    for _ in range(200):
        broken = bytearray(content[: rng.randrange(len(content))] if rng.random() < 0.5 else content)
        for _ in range(rng.randrange(20) if broken else 0):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        kernels_of(bytes(broken))


@pytest.mark.cuda
def test_nvidias_kernels_as_the_assembler_and_cuobjdump_tell_them(tmp_path: Path) -> None:
    cuobjdump = Path(inspector())
    nvcc = cuobjdump.with_name("nvcc")
    (tmp_path / "k.cu").write_text(SOURCE)
    objects = []
    for factor, kind in ((2, "cubin"), (3, "c")):
        made = tmp_path / f"{factor}.{kind}"
        said = subprocess.run(
            [
                nvcc,
                f"-DFACTOR={factor}",
                "-arch=sm_90a",
                "-Xptxas=-v",
                f"-{kind}",
                tmp_path / "k.cu",
                "-o",
                made,
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        objects.append(made)
    kernels = kernels_of_file(str(objects[1]))
    assert {kernel.arch for kernel in kernels} == {"sm_90a"} and len(kernels) == 2
    report = by_name(kernels_in(said))
    assert {key: kernel.registers for key, kernel in by_name(kernels).items()} == {
        key: kernel.registers for key, kernel in report.items()
    }
    assert completed(kernels_in(said), kernels)[0].spill_store_bytes == 0
    dump = subprocess.run(
        [cuobjdump, "--dump-resource-usage", objects[1]], capture_output=True, text=True, check=True
    ).stdout
    told = {tuple(map(str, found)) for found in _FUNCTION.findall(dump)}
    assert told == {
        (k.name, str(k.registers), str(k.stack_bytes), str(k.shared_bytes), str(k.constant_bytes)) for k in kernels
    }
    changed = recoded(kernels_of_file(str(objects[0])), kernels)
    assert [kernel.name for kernel in changed] == ["_Z5scalePfi"]
    damaged(objects[1].read_bytes())


@pytest.mark.cuda
def test_launch_bounds_are_read(tmp_path: Path) -> None:
    source = (
        "__global__ void __launch_bounds__(192) bound(int *x) { *x = 1; }\n__global__ void open_(int *x) { *x = 2; }\n"
    )
    (tmp_path / "k.cu").write_text(source)
    made = tmp_path / "k.cubin"
    subprocess.run(
        [Path(inspector()).with_name("nvcc"), "-arch=sm_80", "-cubin", tmp_path / "k.cu", "-o", made], check=True
    )
    assert {kernel.name: kernel.max_threads for kernel in kernels_of_file(str(made))} == {
        "_Z5boundPi": 192,
        "_Z5open_Pi": -1,
    }


@pytest.mark.hip
def test_amds_kernels_as_their_metadata_tell_them_built_and_found(tmp_path: Path) -> None:
    (tmp_path / "k.hip").write_text(f"#include <hip/hip_runtime.h>\n{SOURCE}")
    target = 'kind = "hip"\nsources = ["k.hip"]\narch = ["gfx90a"]\noutput = "object"\ndefine = ["FACTOR=2"]\n'
    (tmp_path / "buildd.toml").write_text(f"[target.k]\n{target}")
    lend_programs(tmp_path / "store")
    told = []
    for _ in range(2):
        said = subprocess.run(
            [sys.executable, "-P", "-m", "buildd", "build", "--no-daemon", "--json"],
            cwd=tmp_path,
            env={**os.environ, "BUILDD_DIR": str(tmp_path / "store")},
            capture_output=True,
            check=True,
        ).stdout
        (made,) = tmp_path.rglob("build/**/*.o")
        content = made.read_bytes()
        made.unlink()  # the second time it is found in the store
        events = [msgspec.json.decode(line, type=Event) for line in said.splitlines()]
        bodies = [event.body for event in events if isinstance(event.body, Finished | CacheHit)]
        told.append((type(bodies[0]), bodies[0].kernels))
    assert [kind for kind, _ in told] == [Finished, CacheHit]
    assert told[0][1] == told[1][1] == kernels_of(content)
    kernels = by_name(told[0][1])
    assert set(kernels) == {("_Z5scalePfi", "gfx90a"), ("_Z6spreadILi8EEvPf", "gfx90a")}
    scale = kernels["_Z5scalePfi", "gfx90a"]
    assert scale.shared_bytes == 256 and scale.registers > 0 and scale.scalar_registers > 0
    assert scale.spilled_registers == 0 and scale.stack_bytes == 0 and len(scale.code) == 16
    damaged(content)


def test_what_is_no_device_code_has_no_kernels(tmp_path: Path) -> None:
    assert kernels_of(b"") == () and kernels_of(b"text") == ()
    assert kernels_of_file(str(tmp_path / "none")) == ()
    assert kernels_of_file(str(Path(shutil.which("cat") or "/bin/cat").resolve())) == ()


def test_a_file_is_read_with_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    """A daemon may have little memory: a limit of 256 MiB on a file's size is no reason to ask for as much."""
    path = tmp_path / "k.o"
    path.write_bytes(b"\x7fELF" + bytes(100))
    program = (
        "import resource, sys\n"
        "from buildd.artifacts import device_code\n"
        "from buildd.artifacts.device_code import MOST_BYTES, kernels_of_file\n"
        "device_code.kernels_of = len\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES // 4,) * 2)\n"
        "assert kernels_of_file(sys.argv[1]) == 104\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    try:\n"
        "        file.read(MOST_BYTES + 1)\n"
        "    except MemoryError:\n"
        "        print('as limited')\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
    done = subprocess.run([sys.executable, "-P", "-c", program, path], capture_output=True, text=True, env=environ)
    assert done.stdout == "as limited\n", done.stderr
