"""Builds ejkernel's CUDA libraries with cmake and puts them where ejkernel looks for them, for `buildd ejkernel`.

Runs in the Python that has ejkernel, below `buildd run`, so nvcc and the host compiler are buildd's. Standard library
only; imports neither ejkernel nor JAX. ejkernel takes any library that is newer than its sources. By itself
it builds one in the middle of a trace, and a wheel has the sources where it does not look.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

sys.dont_write_bytecode = True

_CUTLASS = "cutlass/cutlass.h"
_READS_CUTLASS = "CUTLASS_INCLUDE"
"""A word of a CMakeLists.txt whose library includes CUTLASS's headers."""
_LAST_LINES = 12


class Refused(Exception):
    """One message for the user."""


class Library(NamedTuple):
    """A library of ejkernel's."""

    name: str
    sources: str
    """Folder of its CMakeLists.txt."""
    place: str
    """Folder where ejkernel looks for it."""


def main(arguments: list[str]) -> int:
    """Build libraries.

    Args:
        arguments: the architectures as ejkernel writes them ("80;90", empty for this machine's), how many compiles at
            once, and the names of libraries: none for all.
    """
    archs_text, jobs, *names = arguments
    try:
        libraries, cutlass = _chosen(names)
        archs = architectures(archs_text)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    failed = []
    for library in libraries:
        try:
            for path in build(library, archs, jobs, cutlass):
                print(f"{library.name}  {path}", flush=True)
        except (Refused, OSError) as error:
            print(f"error: {library.name}: {error}", file=sys.stderr, flush=True)
            failed.append(library.name)
    return 1 if failed else 0


def _chosen(names: list[str]) -> tuple[list[Library], str]:
    """Return the libraries to build, and CUTLASS's headers. Raises Refused."""
    found = importlib.util.find_spec("ejkernel")
    if found is None or not found.submodule_search_locations:
        raise Refused(f"{sys.executable} has no ejkernel; name the Python that has it with --python")
    package = os.path.realpath(found.submodule_search_locations[0])
    above = os.path.dirname(package)
    known = {one.name: one for one in _libraries(package, above)}
    if not known:
        raise Refused(f"the ejkernel in {package} has no CUDA libraries")
    if unknown := [name for name in names if name not in known]:
        raise Refused(f"ejkernel has no CUDA library {unknown[0]!r}; it has {', '.join(known)}")
    return [known[name] for name in names or known], _cutlass(above)


def _libraries(package: str, above: str) -> Iterator[Library]:
    """Find the libraries of an ejkernel: in a checkout their sources are below csrc, in a wheel beside the package."""
    folder = os.path.join(package, "kernels", "_cuda")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if os.path.isfile(os.path.join(folder, name, "_build.py")):
            for sources in (os.path.join(above, "csrc", name), os.path.join(above, name)):
                if os.path.isfile(os.path.join(sources, "CMakeLists.txt")):
                    yield Library(name, sources, os.path.join(folder, name, "_build"))
                    break


def _cutlass(above: str) -> str:
    """Return the folder of CUTLASS's headers: the user's, a checkout's, or that of nvidia-cutlass; empty if none."""
    candidates = [os.environ.get("EJKERNEL_CUTLASS_INCLUDE", ""), os.path.join(above, "csrc", "cutlass", "include")]
    if root := os.environ.get("CUTLASS_PATH"):
        candidates.append(os.path.join(root, "include"))
    wheel = importlib.util.find_spec("cutlass_library")
    for place in (wheel.submodule_search_locations if wheel is not None else None) or ():
        candidates.append(os.path.join(place, "source", "include"))
    return next((one for one in candidates if one and os.path.isfile(os.path.join(one, _CUTLASS))), "")


def architectures(text: str) -> list[str]:
    """Return architectures as ejkernel names its libraries: "sm_90" and "9.0" are "90". Raises Refused."""
    text = text or os.environ.get("EJKERNEL_CUDA_ARCHS") or os.environ.get("EJKERNEL_CUDA_ARCH") or _of_this_machine()
    found = []
    for word in filter(None, re.split(r"[;,\s]+", text.lower())):
        number = re.fullmatch(r"(?:sm_|compute_)?(\d+)(?:\.(\d))?", word)
        if number is None:
            raise Refused(f"{word!r} is no architecture; write 90 or 80;90")
        found.append(number[1] + (number[2] or ""))
    if not found:
        raise Refused("this machine has no NVIDIA GPU; name architectures with --arch")
    return list(dict.fromkeys(found))


def _of_this_machine() -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return ""


def build(library: Library, archs: list[str], jobs: str, cutlass: str) -> Iterator[str]:
    """Build a library for some architectures; the paths where it stands now. Raises Refused, OSError."""
    jaxlib = importlib.util.find_spec("jaxlib")
    nvcc = shutil.which("nvcc")
    if shutil.which("cmake") is None or nvcc is None:
        raise Refused(f"there is no {'cmake' if nvcc else 'nvcc'} on PATH")
    if jaxlib is None or jaxlib.origin is None:
        raise Refused(f"{sys.executable} has no jaxlib")
    with open(os.path.join(library.sources, "CMakeLists.txt"), encoding="utf-8", errors="replace") as file:
        if not cutlass and _READS_CUTLASS in file.read():
            raise Refused(
                f"it needs CUTLASS's headers: {sys.executable} -m pip install nvidia-cutlass, "
                "or name their folder in EJKERNEL_CUTLASS_INCLUDE"
            )
    with _tree(library.place) as tree:
        settings = {
            "EJKERNEL_CUDA_ARCHS": ";".join(archs),
            "EJKERNEL_JAX_FFI_INCLUDE": os.path.join(os.path.dirname(jaxlib.origin), "include"),
            "CMAKE_CUDA_COMPILER": nvcc,
        }
        if cutlass:
            # No CMakeLists.txt of ejkernel lets its user name the folder: each expects a checkout's csrc/cutlass.
            settings["CMAKE_CUDA_STANDARD_INCLUDE_DIRECTORIES"] = cutlass
        words = [f"-D{name}={value}" for name, value in settings.items()]
        done = subprocess.run(["cmake", "-S", library.sources, "-B", tree, *words], capture_output=True, text=True)
        if done.returncode:
            said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:])
            raise Refused(f"cmake cannot configure it:\n{said}")
        if status := subprocess.run(
            ["cmake", "--build", tree, "--parallel", jobs], stdin=subprocess.DEVNULL
        ).returncode:
            raise Refused(f"its build ended with status {status}")
        for arch in archs:
            built = [name for name in os.listdir(tree) if re.fullmatch(rf"lib\w+_sm{arch}\.so", name)]
            if len(built) != 1:
                raise Refused(f"its build made no library for sm_{arch}")
            yield _placed(os.path.join(tree, built[0]), os.path.join(library.place, built[0]))


@contextlib.contextmanager
def _tree(place: str) -> Iterator[str]:
    """Yield an empty folder to build in, for one process at a time.

    Its name is always the same: the compiles have -lineinfo, so it is part of the objects and of their keys.
    """
    os.makedirs(place, exist_ok=True)
    tree = os.path.join(place, "buildd")
    with open(f"{tree}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(tree, ignore_errors=True)  # of one that was killed
        os.mkdir(tree)
        try:
            yield tree
        finally:
            shutil.rmtree(tree, ignore_errors=True)


def _placed(built: str, path: str) -> str:
    """Put a library in its place, whole: a program may be loading the present one."""
    new = f"{path}.{os.getpid()}"
    try:
        shutil.copyfile(built, new)
        os.chmod(new, 0o755)
        os.replace(new, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
