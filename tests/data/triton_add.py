"""A kernel with a helper in another module, a function of Triton's own library, and a configuration file."""

import json
from pathlib import Path

import triton
import triton.language as tl
from helper import twice

FACTOR = tl.constexpr(json.loads(Path(__file__).with_name("factor.json").read_text())["factor"])


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, SUM: tl.constexpr = True):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    if SUM:
        y += tl.sum(y)
    tl.store(out_ptr + offsets, FACTOR * twice(x) + y, mask=mask)


@triton.jit
def broken_kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.no_such_function(offsets))


@triton.autotune(configs=[triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.zeros([BLOCK], tl.float32), mask=offsets < n)


def plain_function(x):
    return x
