"""Kernels that were recorded with a tool in place of Triton's own, and what warming them says of it elsewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.triton_program import lay_out
from tests.support.user import User

PROGRAM = """
import os, sys
import torch
# As Inductor does where its torch brings an assembler.
os.environ["TRITON_PTXAS_PATH"] = os.path.join(os.path.dirname(torch.__file__), "bin", "ptxas")
import triton
import triton.language as tl
import driver
from triton.backends.compiler import GPUTarget

driver.Driver.get_current_target = lambda self: GPUTarget("cuda", 80, 32)

@triton.jit
def add_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

add_kernel[(4,)](driver.Tensor(), driver.Tensor(), 1000, BLOCK=64)
print(f"{len(driver.hits)} kernels, {driver.hits.count(False)} compiled")
"""


def torch_with_an_assembler(folder: Path) -> None:
    """As much of such a torch as matters here: its folder, and in it Triton's newer ptxas."""
    (folder / "torch/bin").mkdir(parents=True)
    # Triton asks what is an array of it.
    (folder / "torch/__init__.py").write_text("class Tensor:\n    pass\n")
    triton = find_spec("triton")
    assert triton is not None and triton.origin is not None
    newer = Path(triton.origin).parent / "backends/nvidia/bin/ptxas-blackwell"
    (folder / "torch/bin/ptxas").symlink_to(newer)


@pytest.mark.triton
@pytest.mark.slow  # test_kernel_manifest.py records, warms and finds kernels with Triton's own assembler
def test_kernels_have_the_key_of_the_assembler_that_torch_brought(triton_user: User) -> None:
    torch_with_an_assembler(triton_user.folder / "site")
    path = triton_user.environ.get("PYTHONPATH", "")
    with_torch = {"PYTHONPATH": f"{triton_user.folder / 'site'}:{path}"}
    home = triton_user.folder
    first = lay_out(triton_user, "first", PROGRAM)
    triton_user.environ |= with_torch
    program = ("--", sys.executable, "prog.py")
    status, said = triton_user.buildd("run", "--record", "m", *program)
    assert status == 0 and "1 kernels, 1 compiled" in said, said
    manifest = (first / "m").read_bytes()

    triton_user.folder = home
    second = lay_out(triton_user, "second", PROGRAM)
    (second / "m").write_bytes(manifest)
    triton_user.environ["PYTHONPATH"] = path
    status, said = triton_user.buildd("warm", "--manifest", "m")
    assert status == 1 and "TRITON_PTXAS_PATH named a tool when the kernel was recorded" in said, said
    triton_user.environ |= with_torch
    status, said = triton_user.buildd("warm", "--manifest", "m")
    assert status == 0 and "0 hits, 1 compiled" in said and "another key" not in said, said
    status, said = triton_user.buildd("run", *program)
    assert status == 0 and "1 kernels, 0 compiled" in said, said
