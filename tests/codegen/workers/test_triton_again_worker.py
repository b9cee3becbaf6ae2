"""Kernels compiled one after another in one process: as each in a process of its own, and not after just any module."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import codegen.workers.triton_again_worker as again
from buildd.processes.launch import Exit, Launch
from buildd.processes.runner import Runner

WORKER = Path(again.__file__).with_name("triton_worker.py")
PLAIN = '''"""Kernels."""
from __future__ import annotations
import triton
import triton.language as tl
from triton.language import constexpr

SIZE: tl.constexpr = constexpr(4)
SIZES = [triton.Config({"BLOCK": 32 * n}, num_warps=n) for n in (1, 2)]
FIRST, NAMES = SIZES[0], {"a": -1, "b": SIZE if SIZE else None}

@triton.jit
def scaled(x):
    return x * SIZE

@triton.autotune(configs=SIZES, key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % 2 == 0})
@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = True):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, scaled(tl.load(x + at, mask=at < n)), mask=at < n)

if __name__ == "__main__":
    raise SystemExit
'''
KERNEL = "@triton.jit\ndef kernel(x{default}):\n    pass\n"


def test_a_module_of_kernels_and_values_leaves_nothing() -> None:
    assert again.is_plain(PLAIN)


@pytest.mark.parametrize(
    "statement",
    [
        "import torch",
        "from triton.runtime import driver",
        "from triton.language import *",
        "from . import other",
        "print('here')",
        "open('file', 'w')",
        "triton.knobs.runtime.debug = True",
        "triton = 1",
        "__name__ = 'other'",
        "SIZE = open('file')",
        "SIZE = [print(n) for n in range(3)]",
        "SIZE = triton.compile(1)",
        "SIZE: print('here') = 1",
        "SIZE += 1",
        "del tl",
        "def plain():\n    pass",
        "class Any: pass",
        "@print\ndef kernel(): pass",
        "@triton.autotune(configs=made(), key=[])\n" + KERNEL.format(default=""),
        KERNEL.format(default="=print('here')"),
        KERNEL.format(default=": print('here')"),
        "if SIZE: import torch",
        "if __name__ == '__main__':\n    pass\nelse:\n    import torch",
        "for n in range(3): pass",
        "with open('file'): pass",
        "def (",
    ],
)
def test_what_may_leave_something_is_seen(statement: str) -> None:
    assert not again.is_plain(f"import triton\nimport triton.language as tl\nSIZE = 4\n{statement}\n")


class Kernels:
    """A project, and processes that compile what is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runner = Runner(grace_s=0.5)
        (folder / "kernels.py").write_text(PLAIN)

    async def compile(self, name: str, size: int, warps: int = 4, *, warm: bool = True) -> tuple[int, Exit]:
        """A kernel, into a folder of its name; the process, and its end."""
        place = self.folder / name
        (place / "tmp").mkdir(parents=True, exist_ok=True)
        spec: dict[str, Any] = {"source": "kernels.py", "module": "kernels", "kernel": "scale", "num_warps": warps}
        spec |= {"signature": {"x": "*fp32", "out": "*fp32", "n": "i32"}, "constants": {"BLOCK": size}}
        spec |= {"backend": "cuda", "arch": 90, "warp_size": 32, "num_stages": 2, "num_ctas": 1, "maxnreg": 0}
        outputs = [f"{stage}={place}/kernel.{stage}" for stage in ("cubin", "ptx", "ttir", "ttgir", "llir", "metadata")]
        launch = Launch(
            argv=(sys.executable, str(WORKER), f"{place}/kernel.d", *outputs),
            cwd=str(self.folder),
            environment=(("PATH", "/usr/bin:/bin"), ("TMPDIR", str(place / "tmp")), ("TRITON_DEFAULT_FP_FUSION", "1")),
            payload=json.dumps(spec).encode(),
            umask=0o022,
            warm="one" if warm else "",
        )
        job = await self.runner.launch(launch, lambda stream, line: None)
        return job.pid, await job.wait()

    async def until_forked(self) -> int:
        """A process that compiles one kernel after another."""
        pids, deadline_s = [-1, 0], time.monotonic() + 120
        while pids[-1] != pids[-2]:
            assert time.monotonic() < deadline_s
            pid, ended = await self.compile("any", 32)
            assert ended.ok, ended.stderr
            pids.append(pid)
        return pids[-1]

    def made(self, name: str) -> dict[str, bytes]:
        place = self.folder / name
        return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}


@pytest.mark.triton
def test_kernels_of_one_process_are_those_of_one_each(tmp_path: Path) -> None:
    kernels = Kernels(tmp_path)

    async def told() -> None:
        for name, size, warps in (("first alone", 64, 4), ("second alone", 128, 2)):
            assert (await kernels.compile(name, size, warps, warm=False))[1].ok
        former = await kernels.until_forked()
        pids = [
            (await kernels.compile(name, size, warps))[0]
            for name, size, warps in (("first", 64, 4), ("second", 128, 2))
        ]
        assert pids == [former, former]
        for name in ("first", "second"):
            assert kernels.made(name) == kernels.made(f"{name} alone") and len(kernels.made(name)) == 7
        assert kernels.made("first")["kernel.cubin"] != kernels.made("second")["kernel.cubin"]
        # What was changed meanwhile is read again.
        (tmp_path / "kernels.py").write_text(PLAIN.replace("x * SIZE", "x + SIZE"))
        pid, _ = await kernels.compile("later", 64)
        assert pid == former and kernels.made("later")["kernel.ttir"] != kernels.made("first")["kernel.ttir"]
        assert (await kernels.compile("later alone", 64, warm=False))[1].ok
        assert kernels.made("later") == kernels.made("later alone")

    run(kernels, told)


@pytest.mark.triton
def test_a_module_that_does_more_costs_only_its_own_process(tmp_path: Path) -> None:
    kernels = Kernels(tmp_path)

    async def told() -> None:
        former = await kernels.until_forked()
        (tmp_path / "other.py").write_text("")
        (tmp_path / "kernels.py").write_text(PLAIN.replace("import triton\n", "import triton, other\n"))
        pid, ended = await kernels.compile("first", 64)
        assert ended.ok and pid == former and b"other.py" in kernels.made("first")["kernel.d"]
        (tmp_path / "kernels.py").write_text(PLAIN)
        pid, ended = await kernels.compile("second", 64)
        assert ended.ok and pid != former and b"other.py" not in kernels.made("second")["kernel.d"]
        former = await kernels.until_forked()
        (tmp_path / "kernels.py").write_text(PLAIN.replace("x * SIZE", "x * NOTHING"))
        pid, ended = await kernels.compile("third", 64)
        assert ended.status == 1 and pid == former and b"NOTHING" in ended.stderr
        (tmp_path / "kernels.py").write_text(PLAIN)
        pid, ended = await kernels.compile("fourth", 64)
        assert ended.ok and pid != former

    run(kernels, told)


def run(kernels: Kernels, told: Any) -> None:
    async def whole() -> None:
        try:
            await told()
        finally:
            await kernels.runner.close()

    asyncio.run(whole())
