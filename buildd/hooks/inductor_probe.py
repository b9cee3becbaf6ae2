"""Remembers that this machine loads what Inductor's compiler makes for a vector width.

Before a process compiles for the CPU, Inductor loads a library into a Python of its own, to see whether the processor
and the libraries here allow it; that takes half a second. The answer holds as long as the library, torch's own and
Python are what they were. Runs in the user's own process; standard library and torch only.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from typing import Any

from .entries import Shelf, is_on, remembered, stamp_of

FOLDER = "inductor"
"""The shelf of `inductor_cache`, for the notes."""
_SEEN = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "TORCH_COMPILE_CACHE_KEY_TAG")
"""What decides what is loaded; `buildd run` names the processor in the last one."""


class _NotLoadedError(Exception):
    pass


def begin(cpu_vec_isa: Any, store: str) -> None:
    """Remember the answers from now on.

    Args:
        cpu_vec_isa: the module torch._inductor.cpu_vec_isa, just imported.
        store: the folder of the store.
    """
    original = getattr(cpu_vec_isa.VecISA, "_probe_load", None)
    if original is None or is_on("BUILDD_DISABLE"):
        return
    torch = sys.modules["torch"]
    library = os.path.join(os.path.dirname(torch.__file__ or ""), "lib", "libtorch_cpu.so")
    shelf = Shelf(store, FOLDER)

    @functools.wraps(original)
    def _probe_load(self: Any, output_path: str) -> bool:
        def answer() -> str:
            if not original(self, output_path):
                raise _NotLoadedError
            return "loaded"

        try:
            with open(output_path, "rb") as file:
                hasher = hashlib.blake2b(file.read(), digest_size=16)
            hasher.update(repr([os.environ.get(name) for name in _SEEN]).encode())
            notes = shelf.folder if shelf.open() else ""
            stamps = [stamp_of(library), stamp_of(sys.executable)]
        except (OSError, ValueError):
            return bool(original(self, output_path))
        try:
            return bool(remembered(f"probe {hasher.hexdigest()}", answer, lambda: stamps, notes))
        except _NotLoadedError:
            return False

    cpu_vec_isa.VecISA._probe_load = _probe_load
