"""Small C programs of ours, compiled with the host compiler when they are first needed and kept in the store.

Knows what sweep.py and stand-ins have in common: which compiler, under which name, and that nobody else may have put
it there. What the programs do is theirs.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

NATIVE = "native"
"""Folder of compiled programs in a store."""
_COMPILE_S = 60.0
_COMPILERS = ("gcc", "cc", "clang")


class Unusable(Exception):
    """There is no such program, and none can be made."""


def find_compiler(path: str) -> str:
    """Absolute path of the host compiler.

    Args:
        path: as $PATH; folders of stand-ins are passed over.

    Raises: Unusable.
    """
    from codegen.foreign import without_stand_ins

    path = without_stand_ins(path)
    for name in _COMPILERS:
        found = shutil.which(name, path=path)
        if found:
            return os.path.abspath(found)
    raise Unusable("no host compiler")


def place_of(folder: Path, sources: Iterable[Path], flags: Iterable[str], compiler: str, suffix: str) -> Path:
    """The program's file: another one for other sources, another compiler or machine. Raises OSError."""
    status = os.stat(compiler)
    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    parts = (*(source.read_bytes() for source in sources), *flags, compiler, str(stamp))
    machine = (platform.machine(), sys.byteorder, *platform.libc_ver())
    return folder / f"{blake3(repr((parts, machine)).encode()).hexdigest()[:32]}{suffix}"


def compile_program(compiler: str, flags: Iterable[str], sources: Iterable[Path], place: Path) -> str:
    """Compile it to its place; why that could not be, empty where it could. Raises OSError and SubprocessError."""
    from codegen.foreign import without_stand_ins

    aside = place.with_name(f".{place.name}.{os.getpid()}")
    environment = {"PATH": without_stand_ins(os.environ.get("PATH", os.defpath)), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [compiler, *flags, "-o", str(aside), *(str(path) for path in sources)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_COMPILE_S,
            check=False,
        )
        if done.returncode != 0:
            return done.stderr.decode(errors="replace").strip()[-300:]
        os.chmod(aside, 0o700)
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)
    return ""


def check_owner(status: os.stat_result) -> None:
    """Raises Unusable where others may have written a file or folder of ours."""
    if status.st_uid != os.geteuid() or (status.st_mode & 0o022 and not stat.S_ISLNK(status.st_mode)):
        raise Unusable("it belongs to others or may be written by them")
