"""A fake CUDA toolkit for tests, campaigns and benchmarks: tests/fakes/fake-toolkit.c, compiled by the host compiler.

Knows no project. Its compiler needs about a millisecond, and says what a build must make: the same command again.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parent / "fakes" / "fake-toolkit.c"


def host_compiler() -> str:
    """Path of gcc or cc; empty where this machine has none."""
    return shutil.which("gcc") or shutil.which("cc") or ""


def make_toolkit(folder: Path) -> Path:
    """A toolkit in `folder` (for CUDA_HOME, or cuda = "..." under [toolchain]); the path of its nvcc."""
    program = folder / "bin" / "nvcc"
    for name in ("bin", "include", "lib64"):
        (folder / name).mkdir(parents=True)
    subprocess.run([host_compiler(), "-O1", "-D_GNU_SOURCE", "-o", str(program), str(_SOURCE)], check=True)
    (folder / "bin" / "nvcc.profile").write_text("TOP = $(_HERE_)/..\n")
    return program
