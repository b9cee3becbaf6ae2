"""Kernels whose modules misbehave while they are imported: each is one clear failure or none, and no process stays."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.user import User

pytestmark = [pytest.mark.triton, pytest.mark.slow]

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def kernel(to, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to + at, 1.0, mask=at < n)
"""
GOOD = {
    "plain": "",
    "prints": "import sys\nprint('some words', flush=True)\nsys.stderr.write('and more\\n')\n",
    "forks": "import os, signal\nif os.fork() == 0:\n    signal.pause()\n",
    "leaks": "import os\nheld = [(bytearray(1 << 20), os.open('/dev/null', os.O_RDONLY)) for _ in range(64)]\n",
    "threads": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
}
BAD = {
    "ends": ("import os\nos._exit(0)\n", "did not write"),
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "killed by signal 11"),
    "raises": ("raise ValueError('not today')\n", "kernels/raises.py:1: error: ValueError: not today"),
    "hangs": ("import signal\nsignal.pause()\n", "ended after 5 s"),
}


@pytest.fixture
def user() -> Iterator[User]:
    with tempfile.TemporaryDirectory(prefix="bdk", dir="/tmp") as made:
        one = User(Path(made))
        yield one
        assert one.end() == [], "also what a module has started is gone"


def target(name: str) -> str:
    timeout = "timeout_s = 5.0\n" if name == "hangs" else ""
    return (
        f'[target.{name}]\nkind = "triton"\nsource = "kernels/{name}.py"\nkernel = "kernel"\narch = ["sm_90"]\n'
        f'{timeout}signature = {{ to = "*fp32", n = "i32" }}\nconstants = {{ BLOCK = 128 }}\n'
    )


def test_the_others_are_built_and_each_failure_is_told(user: User) -> None:
    (user.folder / "kernels").mkdir()
    bad = {name: code for name, (code, _) in BAD.items()}
    for name, code in {**GOOD, **bad}.items():
        (user.folder / f"kernels/{name}.py").write_text(code + KERNEL)
    (user.folder / "buildd.toml").write_text("\n".join(map(target, (*GOOD, *BAD))))
    # The second time from a process that has Triton imported.
    for _ in range(2):
        status, said = user.buildd("build", "-k", "--recache", timeout_s=170)
        assert status == 1, said
        for name in GOOD:
            assert (user.folder / f"build/{name}/kernel.sm_90.cubin").exists(), said
            (user.folder / f"build/{name}/kernel.sm_90.cubin").unlink()
        for name, (_, words) in BAD.items():
            assert f"{name}/kernel.sm_90" in said and words in said, f"{name}\n{said}"
            assert not (user.folder / f"build/{name}/kernel.sm_90.cubin").exists()
