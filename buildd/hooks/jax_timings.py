"""XLA's timings stay beside the store: a JAX program that is compiled again for a GPU times only what is new in it.

XLA tries several kernels for each fusion, which takes most of a compile. JAX has it keep the results only where the
user has a cache folder. Runs in the user's own process; standard library and JAX only. Each GPU, jaxlib and CUDA has a
folder, which XLA reads and writes itself, and a file that says what it is for. `profiling.xla_timings` makes rows of
them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from typing import Any

FOLDER = "jax-timings"
ABOUT = ".json"
"""Ending of the file that says where the timings of the folder beside it were made."""
_OPTION = "xla_gpu_per_fusion_autotune_cache_dir"
_MODE = "xla_gpu_experimental_autotune_cache_mode"
_PLATFORMS = ("gpu", "cuda", "rocm")
_WORD = "autotun"


def use(store: str, compiler: Any, backend: Any, options: Any) -> bool:
    """Have XLA keep its timings here, unless the user has a place for them or wants none; whether it does.

    JAX's key is computed before and does not change.

    Args:
        store: the folder of the store.
        compiler: the module jax._src.compiler.
        options: of one compile; changed.

    Raises: OSError.
    """
    debug = options.executable_build_options.debug_options
    wanted = compiler.config.persistent_cache_enable_xla_caches.value or ""
    if backend.platform not in _PLATFORMS or getattr(debug, _OPTION, None) != "":
        return False
    if wanted != "all" and _OPTION not in wanted:
        return False
    devices = backend.local_devices()
    if not devices:
        return False  # JAX compiles for a GPU that is elsewhere, and nothing can be timed
    about = {
        "device_kind": devices[0].device_kind,
        "jaxlib": sys.modules["jaxlib"].__version__,
        "platform_version": backend.platform_version,
    }
    folder = made(store, about)
    # As JAX does: of the processes of one program only the first one writes.
    modes = compiler.xc.AutotuneCacheMode
    first = compiler.distributed.global_state.process_id == 0
    setattr(debug, _OPTION, folder)
    setattr(debug, _MODE, modes.UPDATE if first else modes.READ)
    return True


def is_at_fault(options: Any, error: Exception) -> bool:
    """Whether a compile failed over these timings: they are damaged, or no more of them can be written.

    XLA then times everything in the next compile with these options.
    """
    debug = options.executable_build_options.debug_options
    folder, said = getattr(debug, _OPTION), str(error)
    if folder not in said and _WORD not in said.lower():
        return False
    setattr(debug, _OPTION, "")
    return True


def folder_of(store: str, about: dict[str, str]) -> str:
    """The folder of the timings that were made somewhere; it need not exist.

    Args:
        about: "device_kind", "jaxlib" and "platform_version", whose last line counts.
    """
    version = about["platform_version"].splitlines()[-1:]
    place = json.dumps([about["device_kind"], about["jaxlib"], *version])
    return os.path.join(store, FOLDER, hashlib.blake2b(place.encode(), digest_size=16).hexdigest())


def made(store: str, about: dict[str, str]) -> str:
    """The same, made if it is missing. Raises OSError: others may write there, or this user may not."""
    folder = folder_of(store, about)
    above = os.path.dirname(folder)
    os.makedirs(above, 0o700, exist_ok=True)
    status = os.lstat(above)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(f"{above} is not a folder of this user's alone")
    if not os.path.exists(folder + ABOUT):
        aside = f"{folder}.{os.getpid()}"
        with open(aside, "w", encoding="utf-8") as file:
            json.dump(about, file, sort_keys=True)
        os.replace(aside, folder + ABOUT)
    os.makedirs(folder, 0o700, exist_ok=True)
    return folder
