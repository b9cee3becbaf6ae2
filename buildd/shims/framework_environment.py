"""The environment of torch and Triton programs under `buildd run`.

Knows torch's and Triton's variables, and where the hooks are (`hooks`); imports neither. The user's settings stay.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping

from buildd import hooks

HOOKS = os.path.join(os.path.dirname(os.path.abspath(hooks.__file__)), "startup")
TAG = "TORCH_COMPILE_CACHE_KEY_TAG"
_WIDTH = "MAX_JOBS"
"""If unset, builds of torch extensions and the like guess: from the processors, or from the memory that is free at the
start. As many jobs as the budget has places for are enough, and the daemon watches the memory."""
_OURS = re.compile(r"\+?buildd-cpu-[0-9a-f]{16}-\w+$")


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to change."""
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != HOOKS]
    found = {TAG: tag(environ), "PYTHONPATH": os.pathsep.join((HOOKS, *folders))}
    if not environ.get(_WIDTH):
        from codegen.variables.settings import read_settings

        jobs = read_settings(environ).number("BUILDD_JOBS")
        found[_WIDTH] = str(jobs or len(os.sched_getaffinity(0)))
    return found


def tag(environ: Mapping[str, str]) -> str:
    """Salt of Inductor's keys: the user's own, then this processor and the requested vector width.

    Inductor's own key leaves both out, though its stored code is written for one vector width: with another, it
    computes wrong numbers.
    """
    import hashlib  # late: every build imports this module, and hashlib costs 3 ms

    from codegen.compilers import processor

    features = f"{platform.machine()}\n{processor.features()}".encode()
    capability = re.sub(r"\W", "_", environ.get("ATEN_CPU_CAPABILITY", "").lower()) or "any"
    theirs = _OURS.sub("", environ.get(TAG, ""))
    ours = f"buildd-cpu-{hashlib.blake2b(features, digest_size=8).hexdigest()}-{capability}"
    return f"{theirs}+{ours}" if theirs else ours


def without_hooks(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables as they were before `variables`, for jobs that the daemon runs anyway."""
    if HOOKS not in environ.get("PYTHONPATH", ""):
        return dict(environ)
    kept = [folder for folder in environ["PYTHONPATH"].split(os.pathsep) if folder != HOOKS]
    rest = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return rest | ({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})
