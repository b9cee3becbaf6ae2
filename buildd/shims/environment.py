"""The environment of commands whose compiles go through the daemon: under `buildd run`, in a process that uses
`backend="buildd"`, and in buildd's own jobs that run a user's program.

Knows where shims, store, keys and sockets are; `framework_environment` knows what torch and Triton read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from buildd.errors import BuilddError, StoreError
from protocol.errors import ProtocolError

LAUNCHERS = ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER")
_NO_WRAPPER = "TORCH_NO_COMPILER_WRAPPER"
"""If unset, torch puts a ccache or sccache from PATH before its compilers, and writes that into its build.ninja. The
library takes such a call; before shims it would be another cache."""
_PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "BUILDD_KEY_DIR", "BUILDD_RUNTIME_DIR")
"""Variables that say where this process's own keys and sockets are."""
_NAMES = ("LOGNAME", "TMPDIR", "USER")
"""Variables from which torch derives names of folders."""
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME")


def variables(environ: Mapping[str, str], build: str, *, runs_already: bool = False) -> dict[str, str]:
    """The variables to change in the command's environment. Makes the shims.

    Programs of the command load the library that takes compilers by their path. PATH, and with it every path that they
    find and write down, stays as it is. Where the library cannot be loaded, shims come first on PATH.

    Args:
        runs_already: the variables are for a process that runs, and cannot load the library any more.

    Raises: ProtocolError, BuilddError, OSError.
    """
    from buildd.shims import framework_environment
    from buildd.shims.interposition import LAUNCHER, LIBRARY, with_library
    from buildd.shims.shim_folders import toolkit
    from buildd.store.location import locate
    from codegen.variables.settings import Settings
    from protocol.curve import key_folder
    from protocol.endpoint import runtime_folder

    store = locate(environ).folder
    place = toolkit(store, environ)
    found = {
        "BUILDD_RUNTIME_DIR": os.path.dirname(runtime_folder(environ).place),
        "BUILDD_DIR": str(store),
        "BUILDD_BUILD_ID": build,
        "BUILDD_KEY_DIR": str(key_folder(environ)),
    }
    interposes = Settings(request_env=dict(environ), strict=False).is_on("BUILDD_INTERPOSE")
    interposes = interposes and (place.programs / LIBRARY).exists()
    if interposes:
        found["LD_PRELOAD"] = with_library(environ, place.programs)
    if runs_already or not interposes:
        launcher = str(place.programs / LAUNCHER)
        found["PATH"] = f"{place.programs}{os.pathsep}{environ.get('PATH', os.defpath)}"
        found |= {name: launcher for name in LAUNCHERS if not environ.get(name)}
        if "nvcc" in place.tools and not environ.get("PYTORCH_NVCC"):
            found["PYTORCH_NVCC"] = str(place.programs / "nvcc")
        if _NO_WRAPPER not in environ:
            found[_NO_WRAPPER] = "1"
    found |= framework_environment.variables(environ)
    return found


def of_a_job(environment: Mapping[str, str], asked: Mapping[str, str], store: str, build: str) -> dict[str, str]:
    """The whole environment of a job of this process whose compiles go through the daemon.

    It keeps the user's own caches, and this process's temporary folder: their paths are in the command lines of the
    compiles, and so in their keys.

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
        # The job must not run without: its result would be another one under the same key.
        raise StoreError(
            f"this program cannot compile through the daemon: {error.message}", next_step=error.next_step
        ) from error
