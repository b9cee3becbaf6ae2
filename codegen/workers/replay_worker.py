"""Compiles recorded Triton kernels again, on a machine that may have no GPU. Run by the client's own interpreter.

Knows nothing of buildd except that importing Triton replaced its cache manager (`hooks`): kernels compiled or found
here are stored under the same keys as every program's kernels. Imports only the standard library, triton and the
kernels' own modules.

    python replay_worker.py compile|prove ASKED_BY    lines of a manifest on stdin, an answer on stdout for each

It runs in the folder that paths in the manifest are relative to. A child process compiles the kernels one after
another: if the child crashes or hangs, only one kernel is lost, and another child continues.

All lines have one target, one set of variables, one search path and at most one script. A script is not run as a whole:
only the statements that define the names its kernel mentions are executed. Inductor's generated code comes with the
line; of its decorators, which would need a GPU, only Triton's own is executed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which no kernel must import.
    del sys.path[0]

import hashlib
import importlib
import importlib.util
import json
import os
import select
import signal
import time
import types
import warnings
from typing import Any

_OURS = "_buildd_hooks.triton_cache"
_DEATH_SIGNAL = 1
_SIGKILL = 9
TIMEOUT_S = 600.0
"""Time limit of one kernel."""


def _beside(name: str, file: str) -> types.ModuleType:
    """Return a module of this folder, not executed yet, under a name that no user's module has."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), file)
    found = importlib.util.spec_from_file_location(f"buildd {name}", path)
    assert found is not None
    return importlib.util.module_from_spec(found)


def _execute(module: types.ModuleType) -> None:
    assert module.__spec__ is not None and module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)


_script_slice = _beside("script_slice", "script_slice.py")
_execute(_script_slice)
_kernel_modules = _beside("kernel_modules", "kernel_modules.py")
_execute(_kernel_modules)


class Missing(Exception):
    """The kernel is not in the store and would have to be compiled."""


# ---------------------------------------------------------------- Triton without a GPU


class Shim:
    """A substitute for Triton's driver with everything that compiling needs.

    Args:
        target: Triton's GPUTarget.
    """

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        return _no_gpu


def _no_gpu(*arguments: Any, **named: Any) -> Any:
    raise _kernel_modules.Refused(
        "its module measures on a GPU when it is imported, but kernels are compiled here without a GPU"
    )


class Session:
    """One target and one set of variables.

    Args:
        root: the folder that paths are relative to.
        prove: compile nothing.
        line: the first line.
    """

    def __init__(self, root: str, prove: bool, line: dict[str, Any]) -> None:
        self._modules = _kernel_modules.KernelModules(root, _script_slice.slice_of)
        self.hit = self.kept = False
        os.environ.update(line["variables"])
        sys.path[:0] = [os.path.normpath(os.path.join(root, place)) for place in line["search"]]
        # Triton warns in every process about a default that will change; the user cannot act on it.
        warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
        try:
            import triton
            from triton.backends.compiler import GPUTarget
        except ImportError as error:
            raise _kernel_modules.Refused(
                f"no Triton: {error}; install it: {sys.executable} -m pip install triton"
            ) from error
        self.version = str(triton.__version__)
        self.python = "{}.{}".format(*sys.version_info)
        self._check_variables(line["variables"])
        if line.get("tools") is not None:
            _have_tools(line["tools"])
        manager = triton.knobs.cache.manager_class
        if _OURS not in sys.modules or manager is None:
            raise _kernel_modules.Refused(
                "Triton's kernels are not kept: TRITON_CACHE_MANAGER is set, or this Triton is too old"
            )
        triton.knobs.cache.manager_class = self._watching(manager, prove)
        target = line["specialization"]["target"]
        triton.runtime.driver.set_active(Shim(GPUTarget(target["backend"], target["arch"], target["warp_size"])))

    @staticmethod
    def _check_variables(wanted: dict[str, str]) -> None:
        """Check the variables of a manifest: only Triton's variables are allowed, with the values of the recording."""
        from triton._C.libtriton import get_cache_invalidating_env_vars

        found = {str(name): str(value) for name, value in get_cache_invalidating_env_vars().items()}
        if found != wanted:
            names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            raise _kernel_modules.Refused(
                f"{', '.join(names)}: the value differs from that of the recording; set it to the recorded value"
            )

    def _watching(self, base: Any, prove: bool) -> Any:
        session = self

        class CacheManager(base):  # type: ignore[misc]
            """Notes whether a kernel was found, and whether it was stored."""

            def get_group(self, filename: str) -> Any:
                found = super().get_group(filename)
                session.hit = session.kept = found is not None
                if found is None and prove:
                    raise Missing
                return found

            def put_group(self, filename: str, group: Any) -> Any:
                made = super().put_group(filename, group)
                session.kept = self._shelf is not None and self._shelf.take(self._kernel, filename) is not None
                return made

        return CacheManager

    def replay(self, line: dict[str, Any]) -> dict[str, Any]:
        """Compile or find one kernel and return the answer."""
        from triton.runtime.jit import JITFunction

        self.hit = self.kept = False
        function = self._modules.function(line, JITFunction)
        try:
            kernel = function.preload(json.dumps(line["specialization"]))
        except Missing:
            return {"hit": False}
        if not self.kept:
            raise _kernel_modules.Refused("it was compiled, but the store did not keep it (is its disk full?)")
        return {"hit": self.hit, "hash": str(kernel.hash)}


def _have_tools(wanted: dict[str, str]) -> None:
    """Set the tools that replaced Triton's own when the kernels were recorded."""
    there = {name: path for name, path in os.environ.items() if name.startswith("TRITON_") and name.endswith("_PATH")}
    for name in sorted({*wanted, *(name for name, path in there.items() if os.path.isfile(path))}):
        if name not in wanted:
            raise _kernel_modules.Refused(f"{name}: not set when the kernel was recorded; unset it")
        candidates = [there[name]] if name in there else _of_torch() if name == "TRITON_PTXAS_PATH" else []
        path = next((path for path in candidates if os.path.isfile(path) and _digest(path) == wanted[name]), "")
        if not path:
            has = f"{candidates[0]} is another one" if candidates else "there is none here"
            raise _kernel_modules.Refused(
                f"{name} named a tool when the kernel was recorded, and {has}; set it to the same tool, "
                "or use --python with a Python that has the program's torch, if that brings it"
            )
        os.environ[name] = path
    nvidia = sys.modules.get("triton.backends.nvidia.compiler")
    if wanted and nvidia is not None:
        # Triton may have cached the version of its own tool by now.
        nvidia.get_ptxas_version.cache_clear()


def _of_torch() -> list[str]:
    """Return the paths where torch may have its own assembler, which it sets when Inductor is used; they differ by
    version."""
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found is not None else None
    places = [os.path.join(folder, *place) for folder in folders or () for place in (("_inductor", "bin"), ("bin",))]
    return [path for path in (os.path.join(place, "ptxas") for place in places) if os.access(path, os.X_OK)]


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------- answers


def _said(error: BaseException) -> str:
    """Return an error's message without the source that Triton shows in it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join([*lines[:1], *lines[1:][-1:]]) or "no message"
    return text if isinstance(error, _kernel_modules.Refused) else f"{type(error).__name__}: {text}"


def _end_with_parent() -> None:
    """End this process with its parent, which may be killed while an import here never ends."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, _SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _answer(texts: list[bytes], prove: bool, answers: int, told: int) -> None:
    """Compile one kernel after another and write a byte to `told` after each answer."""
    session: Session | None = None
    for text in texts:
        line, started_s = json.loads(text), time.monotonic()
        try:
            session = session or Session(os.getcwd(), prove, line)
            answer = session.replay(line)
            answer |= {"triton": session.version, "python": session.python}
        except (Exception, SystemExit) as error:  # The user's code may raise anything while it is imported.
            answer = {"problem": _said(error)}
        answer["wall_s"] = time.monotonic() - started_s
        os.write(answers, json.dumps(answer).encode() + b"\n")
        os.write(told, b".")


def _in_process(texts: list[bytes], prove: bool, answers: int) -> tuple[int, str]:
    """Answer in a child process. Returns the number of answers, and how the child ended."""
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            _end_with_parent()
            os.close(heard)
            _answer(texts, prove, answers, told)
            status = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(told)
    done = 0
    late = False
    while not late:
        ready, _, _ = select.select([heard], [], [], TIMEOUT_S)
        late = not ready
        count = len(os.read(heard, 4096)) if ready else 0
        if not count:
            break
        done += count
    os.close(heard)
    if late or done == len(texts):
        # With all of its children, which have nothing left to do.
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, status = os.waitpid(pid, 0)
    if late:
        return done, "it exceeded the time limit and was stopped"
    code = os.waitstatus_to_exitcode(status)
    return done, f"its process ended with {signal.Signals(-code).name if code < 0 else f'status {code}'}"


def warm_up() -> None:
    """Do Triton's once-per-process work, so that processes forked from this one need not."""
    # Triton warns in every process about a default that will change; the user cannot act on it.
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    module = _beside("first", "triton_first_worker.py")
    # Triton asks for the module of a kernel.
    sys.modules[module.__name__] = module
    # buildd's hooks act when Triton is imported, if they find a store.
    import triton  # noqa: F401

    # Its kernels are nobody's.
    store = os.environ.pop("BUILDD_DIR", None)
    try:
        _execute(module)
        module.begin()
    finally:
        if store is not None:
            os.environ["BUILDD_DIR"] = store


def main(arguments: list[str]) -> int:
    prove = arguments[0] == "prove"
    private = os.environ.get("TMPDIR") or "/tmp"
    os.environ["TRITON_CACHE_DIR"] = os.path.join(private, "triton")
    texts = sys.stdin.buffer.read().splitlines()
    # Modules may print when they are imported; that output must not mix with the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    while texts:
        done, story = _in_process(texts, prove, answers)
        del texts[:done]
        if texts:
            os.write(answers, json.dumps({"problem": story, "died": True}).encode() + b"\n")
            del texts[0]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
