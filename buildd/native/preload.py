"""The library preloaded into steps that spend their time on memory that they never use (see prefilled.c).

Knows no job. The library changes no output and is in no key; if it cannot be made, the step runs as usual.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from functools import cache
from pathlib import Path

from buildd.native.libraries import make_library, try_library
from buildd.native.programs import NoProgram

_SOURCE = Path(__file__).with_name("prefilled.c")
# Without -fno-builtin the compiler may make a call of memset from memset's own loop.
_FLAGS = ("-fno-builtin",)
_log = logging.getLogger(__name__)
_lock = threading.Lock()


def library(store: Path) -> str:
    """Path of the library, compiled at the first call; empty if there is none.

    Args:
        store: the library is kept there.
    """
    with _lock:
        place = _made(store)
    # If the store's folder is emptied under a running daemon, a tool's output must not show the loader's complaint.
    return place if place and os.path.exists(place) else ""


@cache
def _made(store: Path) -> str:
    try:
        path = os.environ.get("PATH", os.defpath)
        place = make_library(store, (_SOURCE,), _FLAGS, ".preload.so", path)
        try_library(place)
        return os.fspath(place)
    except (OSError, NoProgram, subprocess.SubprocessError) as error:
        _log.info("nothing is preloaded: %s", error)
        return ""
