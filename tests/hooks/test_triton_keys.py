"""Triton's keys under `buildd run`: what Triton leaves out of them, and keys that stay Triton's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.triton

TUNING = """
import enum
import triton
import triton.language as tl
PLAIN = {value}
K = tl.constexpr(PLAIN)
class C:
    K = tl.constexpr(PLAIN)
class E(enum.Enum):
    A = PLAIN
OBJ = C()
TABLE = {{"k": PLAIN, 1: (PLAIN, [PLAIN])}}
class Setting:
    def __init__(self, k):
        self.k = k
SETTINGS = [Setting(PLAIN)]
class Number(int):
    pass
NUMBER = Number(PLAIN)
@triton.constexpr_function
def scale(n):
    return n * PLAIN
@triton.constexpr_function
def from_table():
    return TABLE["k"]
@triton.constexpr_function
def from_settings():
    return SETTINGS[0].k
@triton.jit
def default(x, N: tl.constexpr = K):
    return x * N
"""
KERNELS = """
import sys
import triton
import triton.language as tl
import tuning
from tuning import C, E, OBJ, PLAIN, NUMBER, default, from_settings, from_table, scale
OWN = tl.constexpr(4)
KIND = tl.constexpr(tl.float32)
@triton.jit
def add(a, b):
    return a + b
{kernels}
"""
SEEN = {
    "module": "tuning.K",
    "class_of_module": "tuning.C.K",
    "class_here": "C.K",
    "instance": "OBJ.K",
    "enumeration": "E.A.value",
    "plain_of_module": "tuning.PLAIN",
    "plain_here": "PLAIN",
    "function": "scale(1)",
    "function_of_module": "tuning.scale(1)",
    "table": "from_table()",
    "settings": "from_settings()",
    "number": "NUMBER",
    "default": "default(1)",
}
OWN = {
    "constant": "OWN",
    "callee": "add(1, 2)",
    "language": "tl.sum(tl.zeros((16,), tl.float32))",
    "kind": "tl.zeros((16,), KIND)",
}
KERNEL = "@triton.jit\ndef {name}(x, N: tl.constexpr):\n    tl.store(x, {text})\n"
PROGRAM = """
import json, sys
if sys.argv[1] == "complete":
    from buildd.hooks import triton_keys
    import triton.runtime.jit as jit
    triton_keys.complete(jit)
    triton_keys.complete(jit)
import kernels
print(json.dumps({name: getattr(kernels, name).cache_key for name in sys.argv[2:]}))
"""


def keys(folder: Path, value: int, *, complete: bool = True) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    kernels = "\n".join(KERNEL.format(name=f"k_{name}", text=text) for name, text in (SEEN | OWN).items())
    (folder / "kernels.py").write_text(KERNELS.format(kernels=kernels))
    (folder / "tuning.py").write_text(TUNING.format(value=value))
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            "-c",
            PROGRAM,
            "complete" if complete else "stock",
            *(f"k_{name}" for name in SEEN | OWN),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(value)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.removeprefix("k_"): key for name, key in json.loads(done.stdout).items()}


def test_constants_that_triton_leaves_out_are_in_the_key(tmp_path: Path) -> None:
    one, two = keys(tmp_path / "a", 5), keys(tmp_path / "a", 7)
    assert {name for name in SEEN | OWN if one[name] != two[name]} == set(SEEN)
    assert keys(tmp_path / "b", 5) == one, "nothing in it belongs to a process or a folder"


def test_keys_of_other_kernels_are_tritons_own(tmp_path: Path) -> None:
    ours, stock = keys(tmp_path / "a", 5), keys(tmp_path / "a", 5, complete=False)
    assert {name for name in OWN if ours[name] == stock[name]} == set(OWN)
