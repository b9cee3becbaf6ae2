"""What `buildd run` puts into each Python below it: Triton's cache goes through the store, torch's key names the CPU,
kernels are recorded where that is asked for, no build of an extension waits for one that was killed, and bytecode is
kept where Python keeps none.

Its folder is on PYTHONPATH and holds nothing else, so no module of ours comes before one of the user's; the
sitecustomize that would have been found without it runs as ever. Knows when torch and Triton read their configuration,
and sets no variable that a process without this file would stumble over: where it is not loaded (python -I, another
PYTHONPATH), torch and Triton are as without us. Standard library only, for any Python that torch runs on; nothing is
imported for it that a start does not import anyway, but where it has something to do.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_buildd_hooks"
_TAG = "TORCH_COMPILE_CACHE_KEY_TAG"
_MARK = "buildd-cpu-"


def _share_triton(cache: "Any") -> None:
    """Have kernels kept in the store, unless the user named a cache of their own."""
    if os.environ.get("BUILDD_DIR") and not os.environ.get("TRITON_CACHE_MANAGER"):
        _beside("triton_cache").use(cache)
        _beside("triton_why").begin(cache, os.environ["BUILDD_DIR"])


def _record_triton(jit: "Any") -> None:
    """Have kernels noted, where `buildd run --record` or a command like it asks for that."""
    if os.environ.get("BUILDD_RECORD"):
        _beside("triton_record").begin(jit)


def _record_inductor(heuristics: "Any") -> None:
    """The same of those that Inductor generates."""
    if os.environ.get("BUILDD_RECORD"):
        _beside("triton_record").begin_inductor()


def _explain_inductor(codecache: "Any") -> None:
    """Have noted what the keys of graphs are made of."""
    if os.environ.get("BUILDD_DIR"):
        _beside("inductor_why").begin(codecache, _beside("triton_why"), os.environ["BUILDD_DIR"])


def _use_codecache(codecache: "Any") -> None:
    _carefully("torch._inductor.codecache", _explain_inductor, codecache)
    _carefully("torch._inductor.codecache", _renew_header, codecache)


def _renew_header(codecache: "Any") -> None:
    """Have no compile take a precompiled header that nobody knows."""
    if os.environ.get("BUILDD_DIR"):
        _beside("torch_header").begin(codecache, os.environ["BUILDD_DIR"])


def _share_graphs(remote_cache: "Any") -> None:
    """Have graphs kept in the store, unless the user has such a cache."""
    if os.environ.get("BUILDD_DIR"):
        cache = _beside("inductor_cache")
        if cache.is_wanted():
            cache.begin(remote_cache, os.environ["BUILDD_DIR"])


def _name_assembler(compile_tasks: "Any") -> None:
    """Have one key for a kernel, whether Inductor compiles it in this process or in a worker."""
    if os.environ.get("BUILDD_DIR"):
        _beside("torch_assembler").name_it(compile_tasks)


def _free_extensions(file_baton: "Any") -> None:
    """Have no build of an extension wait for one that was killed."""
    if os.environ.get("BUILDD_DIR"):
        _beside("torch_baton").begin(file_baton)


def _keep_bytecode() -> None:
    """Have the bytecode of modules kept, where Python keeps none: torch takes seconds to compile."""
    off = os.environ.get("BUILDD_DISABLE", "").lower() not in ("", "0", "false", "no", "off")
    if os.environ.get("BUILDD_DIR") and not off:
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
        secret = _beside("signatures").secret(os.environ)
        _beside("bytecode").begin(loader, os.environ["BUILDD_DIR"], secret)


def _beside(name: str) -> "Any":
    """A file of the folder above as a module."""
    if _PACKAGE not in sys.modules:
        package = type(sys)(_PACKAGE)
        # By its place: whatever the user has on sys.path has names of its own.
        package.__path__ = [os.path.dirname(_HERE)]
        sys.modules[_PACKAGE] = package
    return __import__(f"{_PACKAGE}.{name}", fromlist=["*"])


def _name_capability() -> None:
    """The vector width that is asked for now belongs to the tag, whoever set it since `buildd run`."""
    head, mark, tail = os.environ.get(_TAG, "").rpartition(_MARK)
    if mark:
        import re

        capability = re.sub(r"\W", "_", os.environ.get("ATEN_CPU_CAPABILITY", "").lower())
        os.environ[_TAG] = head + mark + tail.partition("-")[0] + "-" + (capability or "any")


class _Watcher:
    """Sees modules being imported; finds none itself."""

    _seen = False

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name == "torch.compiler.config":
            _name_capability()
        if name in _LARGE and not self._seen:
            self._seen = True
            _carefully(name, _keep_bytecode)
        then = _THEN.get(name)
        if then is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                _follow(spec, then)
                return spec
        return None


_LARGE = ("torch", "triton")
_THEN = {
    "triton.runtime.cache": _share_triton,
    "triton.runtime.jit": _record_triton,
    "torch._inductor.codecache": _use_codecache,
    "torch._inductor.remote_cache": _share_graphs,
    "torch._inductor.runtime.compile_tasks": _name_assembler,
    "torch._inductor.runtime.triton_heuristics": _record_inductor,
    "torch.utils.file_baton": _free_extensions,
}
"""What is done with a module as soon as it is there."""


def _follow(spec: "Any", then: "Any") -> None:
    """Have something done with a module as soon as it is there."""
    load = getattr(spec.loader, "exec_module", None)
    if load is None:
        return

    def exec_module(module: "Any") -> None:
        load(module)
        _carefully(spec.name, then, module)

    try:
        spec.loader.exec_module = exec_module
    except AttributeError:
        pass


def _carefully(name: str, then: "Any", *arguments: "Any") -> None:
    """Whatever is wrong with us: the program runs as without us."""
    try:
        then(*arguments)
    except Exception as error:
        import logging

        logging.getLogger("buildd.triton").info("%s is as without us: %r", name, error)


def _run_the_next() -> None:
    """The sitecustomize that would have been found without us, under its own name."""
    from importlib.machinery import PathFinder

    rest = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("BUILDD_DIR") or os.environ.get("BUILDD_RECORD"):
    sys.meta_path.insert(0, _Watcher())
_run_the_next()
