"""The files of one compile of `torch_worker`: where torch and the host compiler write, and which files were read.

Knows nothing of models or buildd; imports only the standard library and, where it changes torch, torch.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import Any

PARTNERS = (
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "numpy",
    "sympy",
    "triton",
    "typing_extensions",
)
"""Packages that torch uses while it compiles; their files are part of the identity of the installed torch."""


def private_places(private: str) -> str:
    """Make torch write into the job's folder only. Returns the path where its compiles list the headers that they
    read."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(private, "inductor")
    os.environ["TRITON_HOME"] = private
    os.environ["TRITON_CACHE_DIR"] = os.path.join(private, "triton")
    os.environ["HOME"] = private
    os.environ["USER"] = "user"  # part of a path below TMPDIR, and not every user id has a name
    os.environ["PATH"] = os.path.join(private, "bin") + os.pathsep + os.environ.get("PATH", os.defpath)
    return os.path.join(private, "headers.d")


def write_compiler(private: str, real: str, folder: str, headers: str) -> None:
    """Write a wrapper of the host compiler under its own name, which keeps paths out of the results and lists the
    headers read.

    Args:
        private: the job's folder.
        real: path of the compiler.
        folder: torch's folder.
        headers: where the headers are listed.
    """
    place = os.path.join(private, "bin", os.path.basename(real))
    os.makedirs(os.path.dirname(place), exist_ok=True)
    maps = (f"-ffile-prefix-map={private}=/model", f"-ffile-prefix-map={folder}=/torch")
    with open(place, "w", encoding="utf-8", errors="surrogateescape") as stream:
        # gcc splits the value at the first space and appends; see its invoke.texi, SUNPRO_DEPENDENCIES.
        stream.write(f"#!/bin/sh\nSUNPRO_DEPENDENCIES={shlex.quote(headers + ' inputs')}\n")
        stream.write(f'export SUNPRO_DEPENDENCIES\nexec {shlex.join([real, *maps])} "$@"\n')
    os.chmod(place, 0o700)


def clean_sources(private: str, folder: str) -> None:
    """Remove the compile commands at the end of a package's generated sources, which contain paths of this job."""
    from torch._inductor import package

    pack = package.package_aoti

    def cleaned(place: Any, files: Any) -> Any:
        for file in files:
            if isinstance(file, str) and file.endswith(".cpp"):
                with open(file, encoding="utf-8", errors="surrogateescape") as stream:
                    text = stream.read()
                with open(file, "w", encoding="utf-8", errors="surrogateescape") as stream:
                    stream.write(text.replace(private, "/model").replace(folder, "/torch"))
        return pack(place, files)

    package.package_aoti = cleaned


def inputs(private: str, folder: str, headers: str, before: frozenset[str]) -> list[str]:
    """Return the files that were read other than the archive, torch's own modules and the standard library; sorted."""
    loaded = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name not in before]
    found = {path for path in (os.path.abspath(path) for path in loaded if path) if not _is_known(path, folder)}
    found |= {os.path.abspath(path) for path in _headers(headers)}
    private += os.sep
    return sorted(path for path in found if not path.startswith(private) and "\n" not in path and os.path.isfile(path))


def _is_known(path: str, folder: str) -> bool:
    """Tell whether a module is covered by `identify` or part of the standard library."""
    import sysconfig

    if path.startswith(folder + os.sep) or os.path.dirname(path) == os.path.dirname(os.path.abspath(__file__)):
        return True
    for place in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        if path.startswith(place + os.sep):
            package = path[len(place) + 1 :].partition(os.sep)[0].partition(".")[0]
            return package in PARTNERS
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    # Packages that the user installed may be in a folder below the standard library.
    return path.startswith(tuple(place + os.sep for place in standard)) and "-packages" + os.sep not in path


def _headers(listed: str) -> set[str]:
    """Return the prerequisites of the rules that gcc appended."""
    try:
        with open(listed, encoding="utf-8", errors="surrogateescape") as stream:
            text = stream.read()
    except FileNotFoundError:
        return set()
    found: set[str] = set()
    for rule in text.replace("\\\n", " ").splitlines():
        _, _, prerequisites = rule.partition(": ")
        found.update(
            re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in re.findall(r"(?:\\.|\S)+", prerequisites)
        )
    return found
