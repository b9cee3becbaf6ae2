"""What torch and Triton programs find in their environment below `buildd run`.

Knows torch's and Triton's variables, and where our hooks are (`hooks`); imports neither. What the user has set stays.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping

HOOKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hooks", "startup")
TAG = "TORCH_COMPILE_CACHE_KEY_TAG"
_WRAPPER = "TORCH_NO_COMPILER_WRAPPER"
"""Where this is not set, torch puts a ccache or sccache that is on PATH before our stand-ins."""
_WIDTH = "MAX_JOBS"
"""Where this is not set, torch's extensions and what is built like them guess: by processors, or by the memory that is
free as they begin. As many as the budget has places for are enough, and memory is the daemon's to watch."""
_OURS = re.compile(r"\+?buildd-cpu-[0-9a-f]{16}-\w+$")


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are different."""
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != HOOKS]
    found = {TAG: tag(environ), "PYTHONPATH": os.pathsep.join((HOOKS, *folders))}
    if _WRAPPER not in environ:
        found[_WRAPPER] = "1"
    if not environ.get(_WIDTH):
        jobs = environ.get("BUILDD_JOBS", "")
        found[_WIDTH] = jobs if jobs.isdecimal() and int(jobs) else str(len(os.sched_getaffinity(0)))
    return found


def tag(environ: Mapping[str, str]) -> str:
    """Salt of Inductor's keys: the user's own, then this processor and the vector width that is asked for.

    Inductor's own key leaves both out, though what it keeps is written for one vector width: read with another, it
    computes wrong numbers.
    """
    import hashlib  # here: every build imports this module, and it costs 3 ms

    from codegen import processor

    features = f"{platform.machine()}\n{processor.features()}".encode()
    capability = re.sub(r"\W", "_", environ.get("ATEN_CPU_CAPABILITY", "").lower()) or "any"
    theirs = _OURS.sub("", environ.get(TAG, ""))
    ours = f"buildd-cpu-{hashlib.blake2b(features, digest_size=8).hexdigest()}-{capability}"
    return f"{theirs}+{ours}" if theirs else ours


def without_hooks(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables as they were before `variables`, for what goes through us anyway."""
    if HOOKS not in environ.get("PYTHONPATH", ""):
        return dict(environ)
    kept = [folder for folder in environ["PYTHONPATH"].split(os.pathsep) if folder != HOOKS]
    rest = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return rest | ({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})
