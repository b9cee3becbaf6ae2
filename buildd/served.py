"""What a command finds in its environment whose compiles are to go through the daemon: below `buildd run`, in a process
that uses `backend="buildd"`, and in jobs of ours that run a user's own program.

Knows where stand-ins, store, keys and sockets are; `frameworks` knows what torch and Triton read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from buildd.errors import BuilddError, StoreError
from protocol.errors import ProtocolError

LAUNCHERS = ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER")
_PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "BUILDD_KEY_DIR", "BUILDD_RUNTIME_DIR")
"""What says where this process's own keys and sockets are."""
_NAMES = ("LOGNAME", "TMPDIR", "USER")
"""By these torch calls folders."""
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME")


def variables(environ: Mapping[str, str], build: str) -> dict[str, str]:
    """What is different in the environment of the command. Makes the stand-ins.

    Raises: ProtocolError, BuilddError, OSError.
    """
    from buildd import frameworks
    from buildd.location import locate
    from buildd.standins import LAUNCHER, toolkit
    from protocol.curve import key_folder
    from protocol.endpoint import runtime_folder

    store = locate(environ).folder
    place = toolkit(store, environ)
    launcher = str(place.programs / LAUNCHER)
    found = {
        "PATH": f"{place.programs}{os.pathsep}{environ.get('PATH', os.defpath)}",
        "BUILDD_RUNTIME_DIR": os.path.dirname(runtime_folder(environ).place),
        "BUILDD_DIR": str(store),
        "BUILDD_BUILD_ID": build,
        "BUILDD_KEY_DIR": str(key_folder(environ)),
    }
    found |= {name: launcher for name in LAUNCHERS if not environ.get(name)}
    found |= frameworks.variables(environ)
    if "nvcc" in place.tools and not environ.get("PYTORCH_NVCC"):
        found["PYTORCH_NVCC"] = str(place.programs / "nvcc")
    return found


def of_a_job(environment: Mapping[str, str], asked: Mapping[str, str], store: str, build: str) -> dict[str, str]:
    """The same in a job of this process, as its whole environment.

    It has the user's own caches and temporary folder, the latter as this process has it: their paths are in the command
    lines of what is compiled, and so in its keys.

    Args:
        environment: the job's, as planned.
        asked: the request's.
        store: the folder of the request's store.

    Raises: StoreError, OSError.
    """
    names = {name: os.environ[name] for name in _NAMES if name in os.environ}
    caches = {name: asked[name] for name in _CACHES if name in asked}
    job = {name: value for name, value in environment.items() if name not in _NAMES} | names | caches
    places = {name: os.environ[name] for name in _PLACES if name in os.environ}
    try:
        return {**job, **variables({**places, **job, "BUILDD_DIR": store}, build)}
    except (BuilddError, ProtocolError) as error:
        # Not without: what it leaves would be known under the same key, and be another thing.
        raise StoreError(
            f"no program can compile through the daemon: {error.message}", next_step=error.next_step
        ) from error
