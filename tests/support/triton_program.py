"""A Python program that launches a Triton kernel on a fake driver, in a folder with caches of its own."""

from __future__ import annotations

from pathlib import Path

from tests.support.user import User

DRIVER = """
import os, triton
from triton.backends.compiler import GPUTarget

class Utils:
    def load_binary(self, name, binary, shared, device):
        assert binary[:4] == b"\\x7fELF"
        return 1, 2, 16, 0, 1024
    def unload_module(self, module):
        pass
    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 18}

class Launcher:
    def __init__(self, source, metadata):
        pass
    def __call__(self, *arguments):
        pass

class Driver:
    utils = Utils()
    launcher_cls = Launcher
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0
    def get_current_stream(self, device=0):
        return 0
    def get_benchmarker(self):
        return lambda function, *arguments, **named: (function(), [1.0, 1.0, 1.0])[1]

class Tensor:
    dtype = "fp32"
    def data_ptr(self):
        return 256

triton.runtime.driver.set_active(Driver())
hits = []
triton.knobs.compilation.listener = lambda **said: hits.append(said["cache_hit"])
"""

HELPER = """
import triton

with open("/proc/self/cmdline") as told, open(__file__ + ".by", "w") as by:
    by.write("a warm process" if "worker_host" in told.read() else "one of its own")

import triton.language as tl

SCALE = tl.constexpr(3)

@triton.jit
def twice(x):
    return 2 * x * SCALE
"""

PROGRAM = """
import sys
import triton
import triton.language as tl
from driver import Tensor, hits
from lib.helper import twice

@triton.jit
def one_more(x):
    return x + 1

@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["n"])
@triton.jit
def add_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, one_more(twice(tl.load(x_ptr + at, mask=at < n))), mask=at < n)

open(sys.argv[1], "a").write("ran\\n")
add_kernel[(4,)](Tensor(), Tensor(), 1000)
print(f"{len(hits)} kernels, {hits.count(False)} compiled")
"""


def lay_out(user: User, name: str, program: str = PROGRAM) -> Path:
    """A checkout, and a user in it with nothing in their caches."""
    folder = user.folder / name
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "helper.py").write_text(HELPER)
    (folder / "driver.py").write_text(DRIVER)
    (folder / "prog.py").write_text(program)
    user.environ |= {"BUILDD_DIR": str(folder / "store"), "TRITON_CACHE_DIR": str(folder / "triton")}
    user.folder = folder
    return folder
