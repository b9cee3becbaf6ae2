"""A fake CUDA toolkit for tests, campaigns and benchmarks: tests/fakes/fake-toolkit.c, compiled by the host compiler.

Knows no project. Its compiler needs about a millisecond, and says what a build must make: the same command again.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.paths import FAKES

_SOURCE = FAKES / "fake-toolkit.c"


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


def copy_toolkit(real: Path, folder: Path, *copied: str) -> Path:
    """A real toolkit in another folder, the most of it links; the path of its nvcc.

    Args:
        real: its root, as /usr/local/cuda.
        copied: files that shall be no links, relative to it. nvcc is none: it finds its parts from where it is.
    """
    for name in ("bin", "include"):
        (folder / name).mkdir(parents=True)
        for entry in (real / name).iterdir():
            (folder / name / entry.name).symlink_to(entry)
    for entry in real.iterdir():
        if not (folder / entry.name).exists():
            (folder / entry.name).symlink_to(entry)
    if not (folder / "lib64").exists():
        # PyPI's wheels have lib, and libraries with a version in their name alone: nvcc and CMake look for others.
        (folder / "lib64").mkdir()
        for entry in (real / "lib").iterdir():
            (folder / "lib64" / entry.name).symlink_to(entry)
            plain, so, _ = entry.name.partition(".so")
            if so and not (real / "lib" / f"{plain}.so").exists():
                (folder / "lib64" / f"{plain}.so").symlink_to(entry)
    for name in ("bin/nvcc", "bin/nvcc.profile", *copied):
        (folder / name).unlink()
        shutil.copy2(real / name, folder / name)
    return folder / "bin" / "nvcc"
