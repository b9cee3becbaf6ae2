"""`scripts/quickstart` uses an nvcc that is there, and takes one from PyPI only where there is none or an old one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SETUP = """#!/bin/sh
echo "$1" > extras
mkdir -p .venv/bin .venv/lib/python3.11/site-packages/nvidia/cu13/bin
touch .venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc
printf '#!/bin/sh\\necho "$CUDA_HOME" > home\\n' > .venv/bin/buildd
chmod +x .venv/bin/buildd
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("place", "version", "extras", "home"),
    [
        ("PATH", "13.0", "cutlass", ""),
        ("PATH", "12.4", "cutlass", ""),
        ("PATH", "11.8", "cuda", "{}/.venv/lib/python3.11/site-packages/nvidia/cu13"),
        ("PATH", "", "cuda", "{}/.venv/lib/python3.11/site-packages/nvidia/cu13"),
        ("CUDA_HOME", "13.1", "cutlass", "{}/toolkit"),
        ("", "", "cuda", ""),
    ],
)
def test_which_nvcc_the_quickstart_uses(place: str, version: str, extras: str, home: str, tmp_path: Path) -> None:
    program(tmp_path / "scripts/setup", SETUP)
    shutil.copy(ROOT / "scripts/quickstart", tmp_path / "scripts/quickstart")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "date", "rm", "sed", "sort", "head", "awk", "mkdir", "touch", "chmod"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "g++").symlink_to(programs / "sh")
    if place:
        said = f"Cuda compilation tools, release {version}, V{version}.88" if version else "no version"
        folder = programs if place == "PATH" else tmp_path / "toolkit/bin"
        program(folder / "nvcc", f"#!/bin/sh\necho '{said}'\n")
    environ = {"PATH": str(programs)} | ({"CUDA_HOME": str(tmp_path / "toolkit")} if place == "CUDA_HOME" else {})
    done = subprocess.run(
        [tmp_path / "scripts/quickstart"], env=environ, capture_output=True, text=True, timeout=60, cwd=os.sep
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "extras").read_text() == f"{extras}\n"
    assert (tmp_path / "home").read_text() == f"{home.format(tmp_path)}\n"
