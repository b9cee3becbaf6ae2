"""What is preloaded into a step whose time goes into memory that it never looks at (prefilled.c says how).

Knows no job. It changes no output and is in no key; where it cannot be made, the step runs as ever.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from functools import cache
from pathlib import Path

from buildd.native import NATIVE, Unusable, check_owner, compile_program, find_compiler, place_of

_SOURCE = Path(__file__).with_name("prefilled.c")
# Without -fno-builtin the compiler may make a call of memset from memset's own loop.
_FLAGS = ("-O2", "-shared", "-fPIC", "-fno-builtin")
_TRIAL_S = 10.0
_log = logging.getLogger(__name__)
_lock = threading.Lock()


def library(store: Path) -> str:
    """Path of the library; empty where there is none. It is compiled by whoever asks first.

    Args:
        store: it is kept there.
    """
    with _lock:
        place = _made(store)
    # Whoever empties the store's folder under a daemon is not to find the loader's complaint in a tool's output.
    return place if place and os.path.exists(place) else ""


@cache
def _made(store: Path) -> str:
    try:
        return os.fspath(_make(store / NATIVE))
    except (OSError, Unusable, subprocess.SubprocessError) as error:
        _log.info("nothing is preloaded: %s", error)
        return ""


def _make(folder: Path) -> Path:
    compiler = find_compiler(os.environ.get("PATH", os.defpath))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(os.stat(folder))
    place = place_of(folder, (_SOURCE,), _FLAGS, compiler, ".preload.so")
    if not place.exists():
        why = compile_program(compiler, _FLAGS, (_SOURCE,), place)
        if why:
            raise Unusable(why)
    check_owner(os.lstat(place))
    _try(place)
    return place


def _try(place: Path) -> None:
    """The loader only complains of what it cannot preload (an odd path, a disk without exec): see whether it does."""
    program = shutil.which("true")
    if program is None:
        raise Unusable("there is no program to try it with")
    environment = {"LD_PRELOAD": os.fspath(place)}
    done = subprocess.run(
        [program], stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_TRIAL_S, check=False
    )
    if done.returncode != 0 or done.stderr:
        raise Unusable(done.stderr.decode(errors="replace").strip()[-300:] or f"{program} failed with it")
