"""The modules of recorded Triton kernels, for `replay_worker`: imported from the user's folder, cut out of a script, or
written by Inductor.

Knows Triton's wrappers of a kernel, and no manifest beyond the keys of a line. Imports the standard library only, the
kernels' own modules, and torch for a module that Inductor wrote.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any


class Refused(Exception):
    """One message for the user."""


class KernelModules:
    """Finds kernels, and imports each module once.

    Args:
        root: the folder that paths are relative to.
        slice_of: from a script's path and a name in it to a module with what that name needs.
    """

    def __init__(self, root: str, slice_of: Callable[[str, str], types.ModuleType]) -> None:
        self._root = root
        self._slice_of = slice_of
        self._modules: dict[tuple[str, str, str], types.ModuleType] = {}

    def function(self, line: dict[str, Any], kind: type) -> Any:
        """Return the JIT function, which is of `kind`, that a line of a manifest names."""
        value: Any = self._module(line)
        for part in line["name"].split("."):
            value = getattr(_unwrapped(value, kind), part, None)
        value = _unwrapped(value, kind)
        if not isinstance(value, kind):
            raise Refused(f"the kernel {line['name']} no longer exists")
        return value

    def _module(self, line: dict[str, Any]) -> types.ModuleType:
        name, file = line["module"], line["file"]
        if text := line.get("text"):
            return self._generated(name, text)
        script = name == "__main__"
        key = (name, file, line["name"].partition(".")[0] if script else "")
        if key not in self._modules:
            path = os.path.join(self._root, file)
            if file and not os.path.isfile(path):
                raise Refused("the file no longer exists")
            self._modules[key] = self._slice_of(path, key[2]) if script else importlib.import_module(name)
        module = self._modules[key]
        if script:
            sys.modules["__main__"] = module
        elif file and os.path.realpath(str(module.__file__)) != os.path.realpath(os.path.join(self._root, file)):
            raise Refused(f"module {name} is {module.__file__} here")
        return module

    def _generated(self, name: str, text: str) -> types.ModuleType:
        key = (name, text, "")
        if key not in self._modules:
            _spare_gpu()
            # A file, because Triton reads the source from it.
            folder = os.path.join(os.environ["TRITON_CACHE_DIR"], "generated")
            os.makedirs(folder, exist_ok=True)
            content = text.encode()
            path = os.path.join(folder, f"{hashlib.sha256(content).hexdigest()}.py")
            aside = f"{path}.{os.getpid()}"
            with open(aside, "wb") as file:
                file.write(content)
            os.replace(aside, path)
            found = importlib.util.spec_from_file_location(name, path)
            assert found is not None and found.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            self._modules[key] = module
        return self._modules[key]


class _Bare:
    """Replacement for Inductor's decorators: each returns the kernel unchanged."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: lambda kernel: kernel


def _spare_gpu() -> None:
    """Make modules that Inductor generated importable without a GPU."""
    try:
        import torch._inductor.runtime
        from torch._inductor.runtime import compile_tasks, triton_helpers
    except ImportError as error:
        raise Refused(f"torch.compile wrote it, and there is no torch: {error}; use --python") from error
    # They set Triton's driver, but the shim must stay.
    triton_helpers.set_driver_to_gpu = lambda: None
    torch._inductor.runtime.triton_heuristics = _Bare()
    # If torch has its own ptxas, Inductor's compile workers use it.
    getattr(compile_tasks, "_set_triton_ptxas_path", lambda: None)()


def _unwrapped(value: Any, kind: type) -> Any:
    """Return the JIT function inside autotuners and heuristics; anything else unchanged."""
    for _ in range(8):
        if isinstance(value, kind) or not type(value).__module__.startswith("triton."):
            return value
        value = getattr(value, "fn", None)
    return value
