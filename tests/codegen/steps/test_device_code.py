"""Device code alone (-cubin, -ptx, -fatbin): in steps, as nvcc makes it, and shared with compiles to objects."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.foreign_project import ForeignProject, prerequisites
from tests.support.nvcc_project import KERNEL
from tests.support.objects import anonymous, inspector
from tests.support.user import User

pytestmark = pytest.mark.cuda

PLAIN = """\
#include "always.h"
extern "C" __global__ void scale(float *x) { x[threadIdx.x] *= FACTOR; }
"""
"""A kernel without a symbol that the module's id is in: nvcc's device code is the same in every run."""


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def cuda(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    made = ForeignProject.with_nvcc(user, request.node.name)
    made.write("include/always.h", "#define FACTOR 3\n")
    made.write("include/host.h", "#define HOST 4\n")
    made.write("plain.cu", PLAIN)
    made.write("k.cu", KERNEL.replace("NAME", "first").replace("SECOND", "run_first"))
    return made


def steps(foreign: ForeignProject) -> tuple[int, int, int]:
    """Steps that were found and that ran, and compiles that ran whole, since the daemon began."""
    counters = foreign.status().counters
    return counters["step_hits"], counters["step_misses"], counters["whole"]


def done_in_steps(foreign: ForeignProject, *command: str) -> tuple[int, int]:
    """Steps that were found and that ran for a command that must succeed, and that may not run whole."""
    before = steps(foreign)
    foreign.good(*command)
    after = steps(foreign)
    assert after[2] == before[2]
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize(
    "options",
    [
        ("-cubin", "-arch=sm_90a"),
        pytest.param(
            ("--cubin", "-gencode", "arch=compute_80,code=sm_80", "-lineinfo", "-O3", "-ccbin=g++"),
            marks=pytest.mark.slow,
        ),
        ("--ptx", "-arch", "sm_80"),
        pytest.param(("-ptx", "-arch=compute_80", "-rdc=true", "-c"), marks=pytest.mark.slow),
        ("-fatbin", "-gencode=arch=compute_80,code=[sm_80,compute_80]", "-gencode=arch=compute_90,code=sm_90"),
        pytest.param(("--fatbin", "-arch=sm_80", "-dc", "-Xfatbin=-compress-all"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_output_is_nvccs_to_the_byte(cuda: ForeignProject, options: tuple[str, ...]) -> None:
    command = ("nvcc", *options, "-Iinclude", "plain.cu", "-o", "made", "-MD", "-MF", "made.d")
    assert done_in_steps(cuda, *command)[1] >= 3
    ours, rules = (cuda.folder / "made").read_bytes(), prerequisites((cuda.folder / "made.d").read_bytes())
    (cuda.folder / "made").unlink()
    assert cuda.good(*command).stderr == b"" and cuda.counts() == (1, 1)
    assert (cuda.folder / "made").read_bytes() == ours
    plain = cuda.plainly(*command)
    assert plain.returncode == 0, plain.stderr
    assert (cuda.folder / "made").read_bytes() == ours
    wanted = prerequisites((cuda.folder / "made.d").read_bytes())
    assert rules[0] == wanted[0]
    assert {*map(os.path.normpath, wanted[1])} <= {*map(os.path.normpath, rules[1])}


def test_names_with_a_modules_id_are_nvccs_but_for_the_id(cuda: ForeignProject) -> None:
    command = ("nvcc", "-ptx", "-arch=sm_80", "-Iinclude", "k.cu")
    done_in_steps(cuda, *command)
    ours = (cuda.folder / "k.ptx").read_text()
    assert cuda.plainly(*command).returncode == 0
    assert "scale" in ours and anonymous((cuda.folder / "k.ptx").read_text()) == anonymous(ours)


def test_code_for_the_debugger_is_nvccs(cuda: ForeignProject) -> None:
    """Its debug information names nvcc's temporary file, in every run another."""
    command = ("nvcc", "-cubin", "-arch=sm_80", "-G", "-Iinclude", "plain.cu", "-o", "made")
    done_in_steps(cuda, *command)

    def code() -> list[str]:
        command = (inspector(), "-elf", str(cuda.folder / "made"))
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [block for block in text.split("\n\n") if block.strip().startswith((".text", ".nv.constant"))]

    ours = code()
    assert cuda.plainly(*command).returncode == 0
    assert any(".text.scale" in block for block in ours) and ours == code()


@pytest.mark.parametrize(
    "kind",
    ["cubin", pytest.param("ptx", marks=pytest.mark.slow), pytest.param("fatbin", marks=pytest.mark.slow)],
)
def test_an_object_and_its_device_code_find_each_others_steps(cuda: ForeignProject, kind: str) -> None:
    first = ("nvcc", "-arch=sm_80", "-Iinclude", "-c", "k.cu", "-o", "out/k.o")
    second = ("nvcc", "-arch=sm_80", "-Iinclude", f"-{kind}", "k.cu", "-o", f"out/k.{kind}")
    Path(cuda.folder / "out").mkdir()
    done_in_steps(cuda, *first)
    found, ran = done_in_steps(cuda, *second)
    # The text for the device is made again, as always, and so is a fatbin. cicc and ptxas are found.
    assert (found, ran) == {"cubin": (2, 1), "ptx": (1, 1), "fatbin": (2, 2)}[kind]
    cuda.write("k.cu", (cuda.folder / "k.cu").read_text().replace("*= FACTOR", "+= FACTOR"))
    done_in_steps(cuda, *second)
    found, ran = done_in_steps(cuda, *first)
    assert found >= (1 if kind == "ptx" else 2), ran


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("cubin", "*= FACTOR;", '*= FACTOR; asm("nonsense;");'),
        ("ptx", "*= FACTOR", "*= UNKNOWN"),
        pytest.param("cubin", "*= FACTOR", "*= UNKNOWN", marks=pytest.mark.slow),
        pytest.param("ptx", "*= FACTOR;", '*= FACTOR; asm("nonsense;");', marks=pytest.mark.slow),
    ],
)
def test_a_failure_is_nvccs(cuda: ForeignProject, kind: str, old: str, new: str) -> None:
    cuda.write("k.cu", PLAIN.replace(old, new))
    command = ("nvcc", f"-{kind}", "-gencode=arch=compute_90,code=sm_90", "-Iinclude", "k.cu", "-o", "made")
    before = steps(cuda)
    done = cuda.call(*command)
    assert steps(cuda)[1] > before[1] and not (cuda.folder / "made").exists()
    plain = cuda.plainly(*command)
    assert plain.returncode != 0
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    # ptxas names the file that it reads: one in buildd's folder.
    texts = [re.sub(r"ptxas \S+,", "ptxas FILE,", done.stderr.decode()) for done in (done, plain)]
    assert texts[0] == texts[1] and texts[0]
