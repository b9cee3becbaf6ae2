"""Notes every Triton kernel that a program compiles or finds compiled, for `buildd warm --manifest` to make again.

Runs in the user's own process, from this one file: standard library and triton only. Knows Triton's hooks, how Inductor
calls Triton, and what a line of a manifest says (`kernel_manifest` reads them); not who gathers the lines. Each process
appends to a file of its own: one that is killed loses nothing that it noted. Whatever goes wrong, the program runs as
without us.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
from typing import Any

FOLDER = "BUILDD_RECORD"
"""The variable with the folder that lines are written to."""
ROOT = "BUILDD_RECORD_ROOT"
"""The variable with the folder that paths in a manifest are relative to."""
PROBLEM = "problem"
_GENERATED = "torch._inductor."
"""What the modules begin with that Inductor writes kernels to."""
_UNKEYED = ("TRITON_KERNEL_OVERRIDE", "USE_IR_LOC", "LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS")
"""With these a kernel depends on files that no manifest carries."""
_log = logging.getLogger("buildd.triton")


class Recorder:
    """Writes a line for each kernel.

    Args:
        jit: the module triton.runtime.jit.
        folder: where lines go.
        root: what paths are relative to.
    """

    def __init__(self, jit: Any, folder: str, root: str) -> None:
        self._jit = jit
        self._serialize = jit.serialize_specialization_data
        self._folder = folder
        self._root = os.path.realpath(root)
        self._lost = False

    def note(self, function: Any, compiled: dict[str, Any]) -> None:
        """One kernel, as Triton's hook tells of it."""
        name = f"{function.module}.{function.fn.__qualname__}"
        try:
            self._write(self._line(function, compiled))
        except Exception as error:
            # The edge between us and the user's program.
            self.problem(f"{name}: {error}")

    def note_generated(self, source: Any, target: Any, options: dict[str, Any], kernel: Any) -> None:
        """One kernel that Inductor has written and had compiled.

        Args:
            source, target, options: what Triton was given.
            kernel: what it made of that.
        """
        name = f"torch.compile: {source.fn.fn.__qualname__}"
        try:
            self._write(self._generated(source, target, options, kernel))
        except Exception as error:
            # The edge between us and the user's program.
            self.problem(f"{name}: {error}")

    def problem(self, text: str) -> None:
        """Something that keeps a kernel out of the manifest, in words for the user."""
        try:
            self._write({PROBLEM: text})
        except OSError as error:
            # Nobody will read it there. The user waits for a manifest: one line, on stderr unless they log.
            if not self._lost:
                self._lost = True
                _log.warning("buildd: kernels are not recorded: %s; the first one: %s", error, text)

    def _line(self, function: Any, compiled: dict[str, Any]) -> dict[str, Any]:
        if not compiled["specialization_data"]:
            raise ValueError("one of its constants cannot be written down")
        qualname = function.fn.__qualname__
        if "<" in qualname:
            raise ValueError("it is made inside a function, where nobody can find it again")
        path = os.path.realpath(function.fn.__code__.co_filename)
        file = self._inside(path)
        if function.module == "__main__" and not file:
            raise ValueError(f"{path} is outside of {self._root}, where `buildd run` was called")
        specialization = json.loads(compiled["specialization_data"])
        # Triton tells it from 3.7 on.
        specialization.setdefault("target", vars(self._jit.driver.active.get_current_target()))
        kernel = function.device_caches[compiled["device"]][0].get(compiled["key"])
        return self._told(function, file, "", specialization, kernel)

    def _generated(self, source: Any, target: Any, options: dict[str, Any], kernel: Any) -> dict[str, Any]:
        function = source.fn
        # Its file lies in a cache, and may be gone tomorrow.
        with open(function.fn.__code__.co_filename, encoding="utf-8") as file:
            text = file.read()
        from triton.compiler import make_backend

        full = make_backend(target).parse_options({**options, **source.parse_options()})
        name = getattr(function, "_fn_name", function.fn.__name__)
        said = self._serialized(name, source.signature, source.constants, source.attrs, full, kernel.hash, target)
        return self._told(function, "", text, {**json.loads(said), "target": vars(target)}, kernel)

    def _serialized(self, *parts: Any) -> str:
        # The last one, the target, is told from 3.7 on.
        for given in (parts, parts[:-1]):
            with contextlib.suppress(TypeError):
                if said := self._serialize(*given):
                    return str(said)
        raise ValueError("one of its constants cannot be written down")

    def _told(self, function: Any, file: str, text: str, specialization: dict[str, Any], kernel: Any) -> dict[str, Any]:
        unkeyed = [name for name in _UNKEYED if os.environ.get(name)]
        if unkeyed:
            raise ValueError(f"{unkeyed[0]} is set, and what it names is in no manifest")
        _forget_own_libraries(specialization["options"], os.path.dirname(os.path.realpath(_triton().__file__)))
        line = {
            "module": function.module,
            "file": file,
            "name": function.fn.__qualname__,
            "search": [place for place in map(self._inside, map(os.path.realpath, sys.path)) if place],
            "hash": getattr(kernel, "hash", ""),
            "triton": str(_triton().__version__),
            "python": "{}.{}".format(*sys.version_info),
            "variables": _keyed_variables(),
            "tools": _tools(),
            "specialization": specialization,
        }
        # Not where the link leads: a virtual environment's Python is a link to the system's.
        interpreter = self._inside(os.path.abspath(sys.executable), installed=True)
        return line | ({"text": text} if text else {}) | ({"interpreter": interpreter} if interpreter else {})

    def _inside(self, path: str, *, installed: bool = False) -> str:
        """A path relative to the root; empty for one outside, and (unless asked for) for what is installed."""
        relative = os.path.relpath(path, self._root)
        if relative == os.pardir or relative.startswith(os.pardir + os.sep):
            return ""
        if installed:
            return relative
        prefix = os.path.realpath(sys.prefix)
        package = "site-packages" in relative.split(os.sep) or "dist-packages" in relative.split(os.sep)
        below = path.startswith(prefix + os.sep) and prefix != self._root and prefix.startswith(self._root + os.sep)
        return "" if package or below or path.endswith(".zip") else relative

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


def _tools() -> dict[str, str]:
    """Those that stand in for Triton's own, by content: their versions are in its key, and the store names the rest.

    Where torch brings an assembler, it names that one.
    """
    paths = {name: path for name, path in os.environ.items() if name.startswith("TRITON_") and name.endswith("_PATH")}
    return {name: _digest(path, os.stat(path).st_mtime_ns) for name, path in paths.items() if os.path.isfile(path)}


@functools.cache
def _digest(path: str, changed_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        except Exception as error:
            _log.info("a kernel's constants cannot be written down: %r", error)
            return ""

    def hook(**told: Any) -> Any:
        # Inductor may call it too, with other things; of its kernels `begin_inductor` has told.
        if hasattr(told["fn"], "jit_function"):
            recorder.note(told["fn"].jit_function, told["compile"])
        return before(**told) if before is not None else None

    def at_exit() -> None:
        if runtime.jit_post_compile_hook is not hook:
            recorder.problem("the program has set jit_post_compile_hook itself: kernels after that are not recorded")

    jit.serialize_specialization_data = careful
    runtime.jit_post_compile_hook = hook
    atexit.register(at_exit)


def begin_inductor() -> None:
    """Note every kernel that Inductor has compiled from now on. Triton is imported."""
    triton = _triton()
    recorder = Recorder(sys.modules["triton.runtime.jit"], os.environ[FOLDER], os.environ[ROOT])
    compile_kernel = triton.compile

    def compile(src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        kernel = compile_kernel(src, target=target, options=options, **more)
        if getattr(getattr(src, "fn", None), "module", "").startswith(_GENERATED):
            recorder.note_generated(src, target, dict(options or {}), kernel)
        return kernel

    triton.compile = compile
