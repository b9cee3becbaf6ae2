"""Notes every Triton kernel that a program compiles or finds compiled, for `buildd warm --manifest` to make again.

Runs in the user's own process, from this one file: standard library and triton only. Knows Triton's hooks and what a
line of a manifest says (`manifest` reads them); not who gathers the lines. Each process appends to a file of its own:
one that is killed loses nothing that it noted. Whatever goes wrong, the program runs as without us.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from typing import Any

FOLDER = "BUILDD_RECORD"
"""The variable with the folder that lines are written to."""
ROOT = "BUILDD_RECORD_ROOT"
"""The variable with the folder that paths in a manifest are relative to."""
PROBLEM = "problem"
_UNKEYED = ("TRITON_KERNEL_OVERRIDE", "USE_IR_LOC", "LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS")
"""With these a kernel depends on files that no manifest carries."""


class Recorder:
    """Writes a line for each kernel.

    Args:
        jit: the module triton.runtime.jit.
        folder: where lines go.
        root: what paths are relative to.
    """

    def __init__(self, jit: Any, folder: str, root: str) -> None:
        self._jit = jit
        self._folder = folder
        self._root = os.path.realpath(root)

    def note(self, function: Any, compiled: dict[str, Any]) -> None:
        """One kernel, as Triton's hook tells of it."""
        name = f"{function.module}.{function.fn.__qualname__}"
        try:
            self._write(self._line(function, compiled))
        except Exception as error:
            # The edge between us and the user's program.
            self.problem(f"{name}: {error}")

    def problem(self, text: str) -> None:
        """Something that keeps a kernel out of the manifest, in words for the user."""
        with contextlib.suppress(OSError):
            self._write({PROBLEM: text})

    def _line(self, function: Any, compiled: dict[str, Any]) -> dict[str, Any]:
        if not compiled["specialization_data"]:
            raise ValueError("one of its constants cannot be written down")
        unkeyed = [name for name in _UNKEYED if os.environ.get(name)]
        if unkeyed:
            raise ValueError(f"{unkeyed[0]} is set, and what it names is in no manifest")
        qualname = function.fn.__qualname__
        if "<" in qualname:
            raise ValueError("it is made inside a function, where nobody can find it again")
        path = os.path.realpath(function.fn.__code__.co_filename)
        file = self._inside(path)
        if function.module == "__main__" and not file:
            raise ValueError(f"{path} is outside of {self._root}, where `buildd run` was called")
        specialization = json.loads(compiled["specialization_data"])
        _forget_own_libraries(specialization["options"], os.path.dirname(os.path.realpath(_triton().__file__)))
        # Triton tells it from 3.7 on.
        specialization.setdefault("target", vars(self._jit.driver.active.get_current_target()))
        kernel = function.device_caches[compiled["device"]][0].get(compiled["key"])
        return {
            "module": function.module,
            "file": file,
            "name": qualname,
            "search": [place for place in map(self._inside, map(os.path.realpath, sys.path)) if place],
            "hash": getattr(kernel, "hash", ""),
            "triton": str(_triton().__version__),
            "python": "{}.{}".format(*sys.version_info),
            "variables": _keyed_variables(),
            "specialization": specialization,
        }

    def _inside(self, path: str) -> str:
        """A path relative to the root; empty for one outside, and for what is installed."""
        relative = os.path.relpath(path, self._root)
        if relative == os.pardir or relative.startswith(os.pardir + os.sep):
            return ""
        prefix = os.path.realpath(sys.prefix)
        installed = "site-packages" in relative.split(os.sep) or "dist-packages" in relative.split(os.sep)
        below = path.startswith(prefix + os.sep) and prefix != self._root and prefix.startswith(self._root + os.sep)
        return "" if installed or below or path.endswith(".zip") else relative

    def _write(self, line: dict[str, Any]) -> None:
        # A process of its own after each fork; a line is written whole or, where the disk is full, not used.
        place = os.path.join(self._folder, f"{os.getpid()}.jsonl")
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


def _triton() -> Any:
    return sys.modules["triton"]


def _forget_own_libraries(options: dict[str, Any], triton: str) -> None:
    """Triton's own libraries are named by where it is installed; each Triton finds its own again."""
    libraries = options.get("extern_libs")
    if libraries:
        options["extern_libs"] = [
            [name, path] for name, path in libraries if not os.path.realpath(path).startswith(triton + os.sep)
        ]


def _keyed_variables() -> dict[str, str]:
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars
    except ImportError:
        return {}
    return {str(name): str(value) for name, value in sorted(get_cache_invalidating_env_vars().items())}


def begin(jit: Any) -> None:
    """Note every kernel from now on.

    Args:
        jit: the module triton.runtime.jit, just imported.
    """
    recorder = Recorder(jit, os.environ[FOLDER], os.environ[ROOT])
    serialize = jit.serialize_specialization_data
    runtime = jit.knobs.runtime
    before = runtime.jit_post_compile_hook

    def careful(*arguments: Any, **named: Any) -> Any:
        # Triton calls it because there is a hook: without us nothing would fail here.
        try:
            return serialize(*arguments, **named)
        except Exception:
            return ""

    def hook(**told: Any) -> Any:
        recorder.note(told["fn"].jit_function, told["compile"])
        return before(**told) if before is not None else None

    def at_exit() -> None:
        if runtime.jit_post_compile_hook is not hook:
            recorder.problem("the program has set jit_post_compile_hook itself: kernels after that are not recorded")

    jit.serialize_specialization_data = careful
    runtime.jit_post_compile_hook = hook
    atexit.register(at_exit)
