"""CUDA toolkits for tests, campaigns and benchmarks: a fake one, and the real compiler with few headers.

The fake one is tests/fakes/fake-toolkit.c, compiled by the host compiler. It needs about a millisecond, and says what
a build must make: the same command again. Knows no project.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.support.paths import FAKES

_SOURCE = FAKES / "fake-toolkit.c"
_RUNTIME = FAKES / "cuda_runtime.h"


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


@cache
def _found_toolkit() -> Path | None:
    found = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    # Wheels of other tools, as of cuobjdump (extra `test`), share the folder with that of nvcc.
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        if os.access(os.path.join(folder, "bin/nvcc"), os.X_OK):
            return Path(folder)
    nvcc = shutil.which("nvcc")
    return None if nvcc is None else Path(nvcc).resolve().parents[1]


def has_nvcc() -> bool:
    """Whether there is a real toolkit."""
    return _found_toolkit() is not None


def real_toolkit() -> Path:
    """The toolkit of PyPI's wheels (extra `cuda`), or that of the nvcc on PATH. There is one: see `has_nvcc`."""
    toolkit = _found_toolkit()
    assert toolkit is not None
    return toolkit


@cache
def small_toolkit() -> Path:
    """The real toolkit with tests/fakes/cuda_runtime.h: a compile takes a quarter of the time.

    nvcc puts cuda_runtime.h before every source, and every pass of a compile reads its forty thousand lines. It stands
    in this Python's environment, for the next run of the tests too. Sources that want more of CUDA need the real one,
    which this is with WHOLE_TOOLKIT=1: so the heavy tier and scripts/test-toolkits compile.
    """
    if os.environ.get("WHOLE_TOOLKIT") == "1":
        return real_toolkit()
    real = real_toolkit()
    status = os.stat(real / "bin/nvcc")
    parts = (_RUNTIME.read_bytes(), str(real), status.st_ino, status.st_mtime_ns)
    place = Path(sys.prefix) / "toolkits-of-tests" / sha256(repr(parts).encode()).hexdigest()[:16]
    if not place.exists():
        aside = place.with_name(f"{place.name}.{os.getpid()}")
        copy_toolkit(real, aside, "include/cuda_runtime.h")
        (aside / "include/cuda_runtime.h").write_bytes(_RUNTIME.read_bytes())
        (aside / "include/crt").unlink()
        (aside / "include/crt").mkdir()
        for entry in (real / "include/crt").iterdir():
            (aside / "include/crt" / entry.name).symlink_to(entry)
        (aside / "include/crt/common_functions.h").unlink()
        (aside / "include/crt/common_functions.h").write_text("")  # each stub includes it, and with it mathematics
        try:
            aside.rename(place)
        except OSError:  # another process was faster
            shutil.rmtree(aside)
    return place


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


def toolkit_apart(real: Path, folder: Path) -> Path:
    """A real toolkit in another folder that has headers of its own, those of CCCL apart; its folder.

    Its programs are links: a hard link would change the times of the real ones while others use them.
    """
    copy_toolkit(real, folder)
    shutil.rmtree(folder / "include")
    shutil.copytree(real / "include", folder / "include", ignore=shutil.ignore_patterns("cccl"))
    return folder
