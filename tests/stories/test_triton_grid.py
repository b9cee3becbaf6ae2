"""A grid of Triton configurations is built, and a save says how the resources of each have changed."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.client import Client, find
from protocol.endpoint import runtime_folder
from protocol.session import Route
from tests.support.carry_out import request_for
from tests.support.developer import Developer

pytestmark = pytest.mark.triton

KERNEL = """\
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x * 2, mask=at < n)
"""
TARGET = """\
[target.scale]
kind = "triton"
source = "scale.py"
kernel = "scale_kernel"
arch = ["sm_90"]
signature = { x_ptr = "*fp32:16", out_ptr = "*fp32:16", n = "i32" }
constants = { BLOCK = [128, 1024] }
num_warps = [1, 4]
"""


def kernels(developer: Developer, name: str) -> dict[str, m.Kernel]:
    endpoint = find(runtime_folder(developer.environ))
    assert endpoint is not None
    request = request_for(developer.project, "scale", environment=developer.environ, known=m.RequestId(""))
    with Client(Route.local(endpoint), timeout_s=120.0) as client:
        bodies = [event.body for event in client.submit(m.Request(**{**_fields(request), "request_id": name}))]
    assert isinstance(bodies[-1], m.Done) and bodies[-1].outcome is m.Outcome.BUILT, bodies
    told = [body for body in bodies if isinstance(body, m.Finished | m.CacheHit)]
    assert not any(isinstance(body, m.LogLine) for body in bodies), "the assembler's report is a table, not output"
    return {kernel.name: kernel for body in told for kernel in body.kernels}


def _fields(request: m.Request) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__struct_fields__}


def test_each_configuration_has_its_resources(developer: Developer) -> None:
    developer.write("buildd.toml", TARGET)
    developer.write("scale.py", KERNEL)
    assert developer.buildd("up")[0] == 0
    first = kernels(developer, "one")
    assert sorted(first) == [f"scale_kernel[BLOCK={b},num_warps={w}]" for b in (1024, 128) for w in (1, 4)]
    assert all(kernel.registers > 0 and kernel.code and kernel.shared_bytes >= 0 for kernel in first.values())
    assert all(kernel.spill_store_bytes == 0 for kernel in first.values()), first
    assert (
        first["scale_kernel[BLOCK=1024,num_warps=1]"].registers > first["scale_kernel[BLOCK=128,num_warps=4]"].registers
    )
    assert kernels(developer, "two") == first, "hits tell the same"
    developer.write("scale.py", KERNEL.replace("x * 2", "tl.exp(tl.sum(x) / x)"))
    then = kernels(developer, "three")
    assert sorted(then) == sorted(first) and all(then[name].code != first[name].code for name in first)
    assert any(then[name].shared_bytes > first[name].shared_bytes for name in first), then
