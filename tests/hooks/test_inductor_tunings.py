"""What Inductor's tuner found is kept by the kernel and the kind of GPU: torch's own cache of it, a stand-in for NVML.

Runs where torch is installed (`scripts/test-torch`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gpu_machine import fake_nvml
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PROGRAM = """
import sys
from types import SimpleNamespace
from torch._inductor.runtime.autotune_cache import AutotuneCache

META = {"backend_hash": "triton and its assembler", "autotune_remote_cache": None, "autotune_local_cache": True}
# As Triton's configurations; there need not be a Triton.
configs = [SimpleNamespace(kwargs={"XBLOCK": size}, num_warps=4, num_stages=1) for size in (256, 512)]
cache = AutotuneCache.create({**META, **eval(sys.argv[3])}, sys.argv[2] + "/ab/ckernel.py", "their hash")
if sys.argv[1] == "save":
    cache.save(configs[1], 1000000)
best = cache.read_best(META, configs)
print("nothing" if best is None else best.kwargs["XBLOCK"])
"""
GPU = "GPU-01234567-0123-0123-0123-0123456789ab"


class Machine:
    """A user, a GPU's model, and a folder for Inductor's own cache."""

    def __init__(self, user: User, nvml: Path) -> None:
        self.user = user
        (nvml.parent / "gpus").write_text(f"gpu {GPU}\n")
        user.environ |= {"LD_LIBRARY_PATH": str(nvml.parent), "FAKE_NVML": str(nvml.parent / "gpus")}

    def says(self, what: str, model: str = "NVIDIA One", meta: str = "{}", **environ: str) -> str:
        """Run it under `buildd run`, with an empty cache of Inductor's own."""
        local = self.user.folder / "local"
        shutil.rmtree(local, ignore_errors=True)
        through = (sys.executable, "-P", "-m", "buildd", "run", "--quiet", "--", sys.executable)
        done = subprocess.run(
            [*through, "-c", PROGRAM, what, local, meta],
            cwd=self.user.folder,
            env={**self.user.environ, "PATH": os.environ["PATH"], "FAKE_NVML_NAME": model, **environ},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()


@pytest.fixture
def machine(user: User, tmp_path: Path) -> Machine:
    return Machine(user, fake_nvml(tmp_path))


def test_a_result_is_found_where_inductors_own_cache_is_empty(machine: Machine) -> None:
    assert machine.says("read") == "nothing"
    assert machine.says("save") == "512"
    assert machine.says("read") == "512"
    assert machine.says("read", model="NVIDIA Two") == "nothing", "another GPU may be fastest with another one"
    assert machine.says("read", meta="{'backend_hash': 'another Triton'}") == "nothing"
    assert machine.says("read", BUILDD_RECACHE="1") == "nothing"
    for path in (machine.user.store / "inductor").iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:-9] + b"X" * 9)
    assert machine.says("read") == "nothing", "a damaged one does not count"


@pytest.mark.parametrize(
    ("meta", "environ"),
    [
        ("{}", {"TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "0"}),
        ("{}", {"BUILDD_DISABLE": "1"}),
        ("{}", {"FAKE_NVML": "/nowhere"}),
        ("{'autotune_remote_cache': False}", {}),
    ],
)
def test_nothing_is_kept_if_the_user_or_the_machine_says_so(
    machine: Machine, meta: str, environ: dict[str, str]
) -> None:
    shutil.rmtree(machine.user.store / "inductor", ignore_errors=True)
    assert machine.says("save", meta=meta, **environ) == "512"
    assert not list(machine.user.store.glob("inductor/*"))
