"""Shared libraries of buildd's own that are preloaded into other programs.

Knows how one is made and tried; `preload` and `shims.interposition` say what they are for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from buildd.native.programs import NATIVE, NoProgram, check_owner, compile_program, find_compilers, is_sound, place_of

_TRIAL_S = 10.0


def make_library(store: Path, sources: Sequence[Path], flags: Iterable[str], suffix: str, path: str) -> Path:
    """The library of some sources; compiled if it is missing or damaged.

    Args:
        store: the library is kept there.
        sources: C sources, and the headers that they include.
        flags: the compiler's, apart from those of every shared library.
        suffix: how the file's name ends.
        path: where to search for the host compiler, as $PATH.

    Raises: NoProgram, OSError, subprocess.SubprocessError.
    """
    folder = store / NATIVE
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(os.stat(folder))
    flags = ("-O2", "-shared", "-fPIC", *flags)
    compiled = [source for source in sources if source.suffix == ".c"]
    why = ""
    for compiler in find_compilers(path):
        place = place_of(folder, sources, flags, compiler, suffix)
        failure = "" if is_sound(place) else compile_program(compiler, flags, compiled, place)
        if not failure:
            break
        why = why or failure
    else:
        raise NoProgram(why)
    check_owner(os.lstat(place))
    return place


def try_library(place: Path) -> None:
    """Preload it into a program once: the loader only prints an error if it cannot (an odd path, a disk without exec).

    A note beside the library says that this very file was loaded from there; the disk may be mounted otherwise since.

    Raises: NoProgram, OSError, subprocess.SubprocessError.
    """
    status = os.stat(place)
    stamp = repr((str(place), status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns))
    note = place.with_name(f".{place.name}.tried")
    with contextlib.suppress(OSError, ValueError):
        if note.read_text(errors="surrogateescape") == stamp and not os.statvfs(place).f_flag & os.ST_NOEXEC:
            return
    program = shutil.which("true")
    if program is None:
        raise NoProgram("there is no program to try it with")
    environment = {"LD_PRELOAD": os.fspath(place)}
    done = subprocess.run(
        [program], stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_TRIAL_S, check=False
    )
    if done.returncode != 0 or done.stderr:
        raise NoProgram(done.stderr.decode(errors="replace").strip()[-300:] or f"{program} failed with it")
    aside = note.with_name(f".{note.name}.{os.getpid()}.{threading.get_ident()}")
    with contextlib.suppress(OSError):  # the next one tries again
        aside.write_text(stamp, errors="surrogateescape")
        os.replace(aside, note)
