"""ejkernel's own CUDA library through `buildd ejkernel`, with the real cmake and nvcc, for a GPU that is not here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.user import User

pytestmark = [
    pytest.mark.jax,
    pytest.mark.cuda,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not importlib.util.find_spec("ejkernel"), reason="no ejkernel"),
    pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("nvcc")), reason="no cmake, or no nvcc on PATH"),
]
NAME = "blocksparse_attention"
LOADED = f"""
import importlib.util, ctypes, sys
spec = importlib.util.spec_from_file_location("it", sys.argv[1] + "/ejkernel/kernels/_cuda/{NAME}/_build.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
path = module.build_cuda_lib()
with open(path, "rb") as file:
    print(path, file.read(4))
"""


def test_a_wheels_library_is_built_once_and_taken_by_ejkernel(kept_user: User, tmp_path: Path) -> None:
    site = tmp_path / "site"
    installed = Path((importlib.util.find_spec("ejkernel") or pytest.fail()).submodule_search_locations[0])  # type: ignore[index]
    folder = site / "ejkernel/kernels/_cuda" / NAME
    folder.mkdir(parents=True)
    (site / "ejkernel/__init__.py").write_text("")
    shutil.copy(installed / "kernels/_cuda" / NAME / "_build.py", folder)
    shutil.copytree(installed.parent / NAME, site / NAME)
    for path in (site / NAME / "src").glob("*_hdim*"):
        if "hdim64" not in path.name:
            path.unlink()  # fewer compiles
    kept_user.environ["PYTHONPATH"] = os.pathsep.join((kept_user.environ["PYTHONPATH"], str(site)))
    kept_user.environ["PATH"] = os.environ["PATH"]
    missed = []
    for _ in range(2):
        shutil.rmtree(folder / "_build", ignore_errors=True)
        status, said = kept_user.buildd("ejkernel", "--arch", "90", NAME, timeout_s=300)
        assert status == 0, said[-2000:]
        missed.append(
            int(next(line for line in said.splitlines() if " misses" in line).split(" misses")[0].split()[-1])
        )
    assert missed[0] > 0 and missed[1] == 0
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(site)],
        env={**kept_user.environ, "PATH": str(nothing), "EJKERNEL_CUDA_ARCH": "sm_90", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.split() == [str(folder / f"_build/libejkernel_{NAME}_cuda_sm90.so"), r"b'\x7fELF'"], done.stderr
