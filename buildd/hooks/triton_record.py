"""Records every Triton kernel that a program compiles or finds compiled, for `buildd warm --manifest`.

Runs in the user's own process, from this one file: standard library and triton only. Knows Triton's hooks, how Inductor
calls Triton, and the lines of a manifest (`kernel_manifest` reads them); `recording` gathers the lines. Each process
appends to a file of its own: a killed one loses nothing that it has recorded. If anything goes wrong, the program runs
as without buildd.
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
"""Prefix of the modules that Inductor generates kernels in."""
_UNKEYED = ("TRITON_KERNEL_OVERRIDE", "USE_IR_LOC", "LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS")
"""With these a kernel depends on files that no manifest carries."""
_log = logging.getLogger("buildd.triton")


class Recorder:
    """Writes a line for each kernel.

    Args:
        jit: the module triton.runtime.jit.
        folder: where the lines are written.
        root: paths are relative to it.
    """

    def __init__(self, jit: Any, folder: str, root: str) -> None:
        self._jit = jit
        self._serialize = jit.serialize_specialization_data
        self._folder = folder
        self._root = os.path.realpath(root)
        self._lost = False

    def note(self, function: Any, compiled: dict[str, Any]) -> None:
        """Record one kernel, from the arguments of Triton's hook."""
        name = f"{function.module}.{function.fn.__qualname__}"
        try:
            self._write(self._line(function, compiled))
        except Exception as error:
            # The edge to the user's program.
            self.problem(f"{name}: {error}")

    def note_generated(self, source: Any, target: Any, options: dict[str, Any], kernel: Any) -> None:
        """Record one kernel that Inductor has generated.

        Args:
            source, target, options: Triton's arguments.
            kernel: Triton's result.
        """
        name = f"torch.compile: {source.fn.fn.__qualname__}"
        try:
            self._write(self._generated(source, target, options, kernel))
        except Exception as error:
            # The edge to the user's program.
            self.problem(f"{name}: {error}")

    def problem(self, text: str) -> None:
        """Record why a kernel is not in the manifest, in words for the user."""
        try:
            self._write({PROBLEM: text})
        except OSError as error:
            # The note cannot be written. The user expects a manifest: warn once, on stderr unless they log.
            if not self._lost:
                self._lost = True
                _log.warning("buildd: kernels cannot be recorded: %s; the first one: %s", error, text)

    def _line(self, function: Any, compiled: dict[str, Any]) -> dict[str, Any]:
        if not compiled["specialization_data"]:
            raise ValueError("one of its constants cannot be recorded")
        qualname = function.fn.__qualname__
        if "<" in qualname:
            raise ValueError("it is defined inside a function, where it cannot be found again")
        path = os.path.realpath(function.fn.__code__.co_filename)
        file = self._inside(path)
        if function.module == "__main__" and not file:
            raise ValueError(f"{path} is outside of {self._root}, where `buildd run` was called")
        specialization = json.loads(compiled["specialization_data"])
        # Triton reports it from 3.7 on.
        specialization.setdefault("target", vars(self._jit.driver.active.get_current_target()))
        kernel = function.device_caches[compiled["device"]][0].get(compiled["key"])
        return self._told(function, file, "", specialization, kernel)

    def _generated(self, source: Any, target: Any, options: dict[str, Any], kernel: Any) -> dict[str, Any]:
        function = source.fn
        # Its file is in a cache, and may be gone tomorrow.
        with open(function.fn.__code__.co_filename, encoding="utf-8") as file:
            text = file.read()
        from triton.compiler import make_backend

        full = make_backend(target).parse_options({**options, **source.parse_options()})
        name = getattr(function, "_fn_name", function.fn.__name__)
        said = self._serialized(name, source.signature, source.constants, source.attrs, full, kernel.hash, target)
        return self._told(function, "", text, {**json.loads(said), "target": vars(target)}, kernel)

    def _serialized(self, *parts: Any) -> str:
        # Triton takes the last one, the target, from 3.7 on.
        for given in (parts, parts[:-1]):
            with contextlib.suppress(TypeError):
                if said := self._serialize(*given):
                    return str(said)
        raise ValueError("one of its constants cannot be recorded")

    def _told(self, function: Any, file: str, text: str, specialization: dict[str, Any], kernel: Any) -> dict[str, Any]:
        unkeyed = [name for name in _UNKEYED if os.environ.get(name)]
        if unkeyed:
            raise ValueError(f"{unkeyed[0]} is set, and a manifest does not contain the files that it names")
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
        # The link itself, not its target: a virtual environment's Python is a link to the system's.
        interpreter = self._inside(os.path.abspath(sys.executable), installed=True)
        return line | ({"text": text} if text else {}) | ({"interpreter": interpreter} if interpreter else {})

    def _inside(self, path: str, *, installed: bool = False) -> str:
        """A path relative to the root; empty if it is outside, or (unless `installed`) installed."""
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
        # After a fork each process has its own file; a line is written whole or, if the disk is full, ignored.
        place = os.path.join(self._folder, f"{os.getpid()}.jsonl")
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


def _triton() -> Any:
    return sys.modules["triton"]


def _forget_own_libraries(options: dict[str, Any], triton: str) -> None:
    """Remove the paths of Triton's own libraries: each installation finds its own."""
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
    """Digests of the tools used instead of Triton's own: its key has their versions, the store's names the rest.

    If torch brings an assembler, it names that one.
    """
    paths = {name: path for name, path in os.environ.items() if name.startswith("TRITON_") and name.endswith("_PATH")}
    return {name: _digest(path, os.stat(path).st_mtime_ns) for name, path in paths.items() if os.path.isfile(path)}


@functools.cache
def _digest(path: str, changed_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def begin(jit: Any) -> None:
    """Record every kernel from now on.

    Args:
        jit: the module triton.runtime.jit, just imported.
    """
    recorder = Recorder(jit, os.environ[FOLDER], os.environ[ROOT])
    serialize = jit.serialize_specialization_data
    runtime = jit.knobs.runtime
    before = runtime.jit_post_compile_hook

    def careful(*arguments: Any, **named: Any) -> Any:
        # Triton calls it only because of the hook: without buildd nothing would fail here.
        try:
            return serialize(*arguments, **named)
        except Exception as error:
            _log.info("a kernel's constants cannot be recorded: %r", error)
            return ""

    def hook(**told: Any) -> Any:
        # Inductor may call it too, with other objects; `begin_inductor` records its kernels.
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
    """Record every kernel that Inductor compiles from now on. Triton is imported already."""
    triton = _triton()
    recorder = Recorder(sys.modules["triton.runtime.jit"], os.environ[FOLDER], os.environ[ROOT])
    compile_kernel = triton.compile

    def compile(src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        kernel = compile_kernel(src, target=target, options=options, **more)
        if getattr(getattr(src, "fn", None), "module", "").startswith(_GENERATED):
            recorder.note_generated(src, target, dict(options or {}), kernel)
        return kernel

    triton.compile = compile
