"""Does the work that Triton does once per process, before jobs are forked: it asks ptxas for its version, and
initialises LLVM.

Loaded by `triton_worker`, in the process that its jobs are forked from. Knows nothing of jobs; no result depends on it.
Errors here are left to the jobs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from typing import Any

import triton
import triton.language as tl

_USUAL = (75, 80, 86, 89, 90, 100, 103, 120)
_TARGETS = (("nvidia", "cuda", 80, 32), ("nvidia", "cuda", 90, 32), ("amd", "hip", "gfx942", 64))
_SIGNATURE = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "n": "i32", "SIZE": "constexpr"}


@triton.jit  # type: ignore[untyped-decorator]
def _first_kernel(a, b, c, n, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    total = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for start in range(0, n, SIZE):
        left = tl.load(a + rows * n + start + columns, mask=rows < n, other=0.0)
        total += tl.dot(left, tl.load(b + (start + rows) * n + columns))
    total = tl.exp(total - tl.max(total, axis=0)[None, :])
    tl.store(c + rows * n + columns, total / tl.sum(total, axis=0)[None, :], mask=columns < n)


def begin() -> None:
    """Do all once-per-process work."""
    with contextlib.suppress(ImportError, AttributeError, TypeError, OSError, RuntimeError, subprocess.SubprocessError):
        from triton.backends.nvidia.compiler import get_ptxas_version

        for arch in _USUAL:
            get_ptxas_version(arch)
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="buildd-first-") as private:
        os.environ["TRITON_CACHE_DIR"] = private
        for backend, *target in _TARGETS:
            if backend in triton.backends.backends:
                _compile(target)
    if before is None:
        del os.environ["TRITON_CACHE_DIR"]
    else:
        os.environ["TRITON_CACHE_DIR"] = before


def _compile(target: list[Any]) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    try:
        source = ASTSource(_first_kernel, _SIGNATURE, constexprs={"SIZE": 16})
        triton.compile(source, target=GPUTarget(*target), options={"num_warps": 1})
    except Exception:
        # Triton's passes, LLVM and ptxas raise errors of many types. A job will meet and report the same error.
        return
