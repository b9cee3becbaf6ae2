"""The resource use of Triton kernels: the configuration in the name, and shared memory from Triton's description."""

from __future__ import annotations

from buildd.artifacts.triton_kernels import triton_kernels
from protocol.messages import Kernel

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'add_kernel' for 'sm_90a'
ptxas info    : Function properties for add_kernel
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 28 registers, used 0 barriers, 16 bytes stack size
"""


def test_what_the_binary_the_report_and_the_description_know() -> None:
    read = [Kernel(name="add_kernel", arch="sm_90", registers=28, code="c0de")]
    (kernel,) = triton_kernels(b'{"label": "BLOCK=512"}', b'{"shared": 16384}', read, REPORT)
    assert kernel == Kernel(
        name="add_kernel[BLOCK=512]",
        arch="sm_90a",
        registers=28,
        shared_bytes=16384,
        constant_bytes=0,
        stack_bytes=16,
        spill_store_bytes=8,
        spill_load_bytes=4,
        code="c0de",
    )


def test_an_odd_description_costs_its_own_facts() -> None:
    read = [Kernel(name="k", arch="gfx942", registers=3)]
    assert triton_kernels(b"", b"[]", read, "") == (read[0],)
