"""Starts buildd's hooks in each Python below `buildd run`: Triton's cache goes through the store, torch's key names the
CPU, kernels are recorded on demand, no build of an extension waits for a killed one, AITemplate's profile database is
never locked, and the store keeps bytecode that Python cannot keep.

Its folder is on PYTHONPATH and holds nothing else, so no module of buildd's hides one of the user's; the sitecustomize
that Python would otherwise find still runs. Knows when torch and Triton read their configuration, and sets no variable
that would disturb a process without this file: if it is not loaded (python -I, another PYTHONPATH), torch and Triton
work as without buildd. Standard library only, for any Python that torch runs on; imports nothing that Python's start
does not import anyway, until there is something to do.
"""

import os
import sys
import time

_BEGAN_S = time.monotonic()
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "_buildd_hooks"
_TAG = "TORCH_COMPILE_CACHE_KEY_TAG"
_MARK = "buildd-cpu-"


def _share_triton(cache: "Any") -> None:
    """Keep kernels in the store, unless the user named a cache of their own."""
    if os.environ.get("BUILDD_DIR") and not os.environ.get("TRITON_CACHE_MANAGER"):
        _beside("triton_cache").use(cache)
        _beside("triton_why").begin(cache, os.environ["BUILDD_DIR"])


def _record_triton(jit: "Any") -> None:
    """Record kernels, if `buildd run --record` or the like wants it."""
    if os.environ.get("BUILDD_RECORD"):
        _beside("triton_record").begin(jit)


def _complete_keys(jit: "Any") -> None:
    """Put what a kernel depends on into its key."""
    if os.environ.get("BUILDD_DIR"):
        _beside("triton_keys").complete(jit)


def _use_jit(jit: "Any") -> None:
    _carefully("triton.runtime.jit", _complete_keys, jit)
    _carefully("triton.runtime.jit", _record_triton, jit)


def _record_inductor(heuristics: "Any") -> None:
    """Record the kernels that Inductor generates, likewise."""
    if os.environ.get("BUILDD_RECORD"):
        _beside("triton_record").begin_inductor()


def _use_heuristics(heuristics: "Any") -> None:
    _carefully("torch._inductor.runtime.triton_heuristics", _record_inductor, heuristics)
    _carefully("torch._inductor.runtime.triton_heuristics", _keep_descents, heuristics)


def _keep_descents(heuristics: "Any") -> None:
    """Keep Inductor from repeating the coordinate descents of earlier processes."""
    if os.environ.get("BUILDD_DIR") and _beside("inductor_tunings").is_wanted():
        _beside("inductor_descent").begin(heuristics)


def _explain_inductor(codecache: "Any") -> None:
    """Note the parts of graphs' keys."""
    if os.environ.get("BUILDD_DIR"):
        _beside("inductor_why").begin(codecache, _beside("triton_why"), os.environ["BUILDD_DIR"])


def _use_codecache(codecache: "Any") -> None:
    _carefully("torch._inductor.codecache", _explain_inductor, codecache)
    _carefully("torch._inductor.codecache", _renew_header, codecache)
    _carefully("torch._inductor.codecache", _watch_codecache, codecache)


def _renew_header(codecache: "Any") -> None:
    """Keep compiles from using a precompiled header of unknown origin."""
    if os.environ.get("BUILDD_DIR"):
        _beside("torch_header").begin(codecache, os.environ["BUILDD_DIR"])


def _share_graphs(remote_cache: "Any") -> None:
    """Keep graphs in the store, unless the user has a remote cache."""
    if os.environ.get("BUILDD_DIR"):
        cache = _beside("inductor_cache")
        if cache.is_wanted():
            cache.begin(remote_cache, os.environ["BUILDD_DIR"])


def _keep_traces(convert_frame: "Any") -> None:
    """Keep Dynamo's traces."""
    if os.environ.get("BUILDD_DIR") and _beside("torch_traces").is_wanted():
        _beside("torch_traces").begin(convert_frame, os.environ["BUILDD_DIR"])


def _with_traces(entry: str) -> "Any":
    """Import late what a graph that comes with its trace does without."""

    def begin(module: "Any") -> None:
        asked = os.environ.get("BUILDD_DIR") and os.environ.get("BUILDD_TORCH_TRACES")
        if asked and _beside("torch_traces").is_wanted():
            getattr(_beside("inductor_late"), entry)(module)

    return begin


def _keep_tunings(autotune_cache: "Any") -> None:
    """Keep what Inductor's tuner found, unless the user has a remote cache for it."""
    if os.environ.get("BUILDD_DIR"):
        tunings = _beside("inductor_tunings")
        if tunings.is_wanted():
            tunings.begin(autotune_cache, sys.modules["torch._inductor.remote_cache"], os.environ["BUILDD_DIR"])


def _share_programs(cache: "Any") -> None:
    """Keep JAX's compiled programs in the store."""
    if os.environ.get("BUILDD_DIR"):
        _beside("jax_cache").begin(cache, os.environ["BUILDD_DIR"])


def _select_in_turn(selection: "Any") -> None:
    """Let ejkernel's tuners do so, and note where its configurations come from."""
    if os.environ.get("BUILDD_DIR"):
        _beside("ejkernel_turns").begin_selection(selection, _beside("gpu_turns"))
        _beside("ejkernel_profiles").begin_selection(selection)


def _ejkernel_in_turn(tuning: "Any") -> None:
    if os.environ.get("BUILDD_DIR"):
        _beside("ejkernel_turns").begin_tuning(tuning, _beside("gpu_turns"))


def _tilelang_in_turn(ffi: "Any") -> None:
    if os.environ.get("BUILDD_DIR"):
        _beside("ejkernel_turns").begin_tilelang(ffi, _beside("gpu_turns"))


def _name_assembler(compile_tasks: "Any") -> None:
    """Give a kernel one key, whether Inductor compiles it in this process or in a worker."""
    if os.environ.get("BUILDD_DIR"):
        _beside("torch_assembler").name_it(compile_tasks)
        _watch_tasks(compile_tasks)


def _name_backend(registry: "Any") -> None:
    """Let backend="buildd" mean Inductor, which goes through the store here, if this Python has no buildd."""
    if os.environ.get("BUILDD_DIR"):
        _beside("torch_backend_name").begin(registry)


def _share_profiles(target: "Any") -> None:
    """Give AITemplate a profile database of its own, whose new rows `buildd run` merges."""
    if os.environ.get("BUILDD_DIR"):
        _beside("aitemplate_profiles").begin(target, _beside("aitemplate_rows"), os.environ["BUILDD_DIR"])


def _recompile_models(builder: "Any") -> None:
    """Obey AIT_RECOMPILE=1."""
    _beside("aitemplate_profiles").recompile(builder)


def _has_store() -> bool:
    """Whether there is a store, and it is not turned off."""
    off = os.environ.get("BUILDD_DISABLE", "").lower() not in ("", "0", "false", "no", "off")
    return bool(os.environ.get("BUILDD_DIR")) and not off


def _keep_bytecode() -> None:
    """Keep the bytecode of modules, if Python does not: torch takes seconds to compile."""
    if _has_store():
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
        secret = _beside("signatures").secret(os.environ)
        _beside("bytecode").begin(loader, os.environ["BUILDD_DIR"], secret)


class _Imports:
    """Seconds of the outermost imports of the main thread, for the ledger of a program's start."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.began_s = 0.0
        """When the present one began; 0 outside."""
        self.ledger: Any = None
        self.place = 0
        """The present one's, in the ledger."""

    def begin(self) -> None:
        self.began_s = time.monotonic()
        if self.ledger is not None:
            self.place = self.ledger.enter("imports")

    def end(self) -> None:
        if self.ledger is not None:
            self.ledger.leave(self.place)
        else:
            self.seconds += time.monotonic() - self.began_s
        self.began_s = 0.0


_imports = _Imports()


def _time_imports() -> None:
    """Time the outermost imports."""
    machinery: Any = sys.modules["_frozen_importlib"]
    thread = sys.modules["_thread"].get_ident
    load, main = machinery._find_and_load, thread()

    def _find_and_load(name: str, import_: "Any") -> "Any":
        if _imports.began_s or thread() != main:
            return load(name, import_)
        _imports.begin()
        try:
            return load(name, import_)
        finally:
            _imports.end()

    # Python leaves frames of this file name out of the tracebacks of failed imports.
    _find_and_load.__code__ = _find_and_load.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    machinery._find_and_load = _find_and_load


def _begin_ledger() -> None:
    """Keep a ledger of the program's start: it uses torch or Triton."""
    if os.environ.get("BUILDD_DIR"):
        _beside("ledger").begin(os.environ["BUILDD_DIR"], _imports, _BEGAN_S)


def _hook(hook: str, act: str) -> "Any":
    """A hook that only hands the module to a function of a file of the folder above."""

    def then(module: "Any") -> None:
        if os.environ.get("BUILDD_DIR"):
            getattr(_beside(hook), act)(module)

    return then


def _in_ledger(act: str) -> "Any":
    """A hook that has torch tell the ledger."""
    return _hook("torch_ledger", act)


_watch_codecache = _in_ledger("watch_codecache")
_watch_tasks = _in_ledger("watch_tasks")


def _probe_once(cpu_vec_isa: "Any") -> None:
    """Keep Inductor from asking again what this machine loads."""
    _carefully("torch._inductor.cpu_vec_isa", _in_ledger("watch_probes"), cpu_vec_isa)
    if os.environ.get("BUILDD_DIR"):
        _beside("inductor_probe").begin(cpu_vec_isa, os.environ["BUILDD_DIR"])


def _beside(name: str) -> "Any":
    """Load a file of the folder above as a module."""
    if _PACKAGE not in sys.modules:
        package = type(sys)(_PACKAGE)
        # By its path: the user's sys.path may have the same names.
        package.__path__ = [os.path.dirname(_HERE)]
        sys.modules[_PACKAGE] = package
    return __import__(f"{_PACKAGE}.{name}", fromlist=["*"])


def _name_capability() -> None:
    """Put the vector width requested now into the tag: it may have changed since `buildd run`."""
    head, mark, tail = os.environ.get(_TAG, "").rpartition(_MARK)
    if mark:
        import re

        capability = re.sub(r"\W", "_", os.environ.get("ATEN_CPU_CAPABILITY", "").lower())
        os.environ[_TAG] = head + mark + tail.partition("-")[0] + "-" + (capability or "any")


class _Watcher:
    """Watches imports; finds no module itself."""

    _seen = False

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name == "torch.compiler.config":
            _name_capability()
        if name in _LARGE and not self._seen:
            self._seen = True
            _carefully(name, _begin_ledger)
            _carefully(name, _keep_bytecode)
        then = _THEN.get(name)
        if then is None and name not in _MANY_OBJECTS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if name in _MANY_OBJECTS:
                    _carefully(name, _collect_later, spec)
                if then is not None:
                    _follow(spec, then)
                return spec
        return None


_LARGE = ("torch", "triton")
_MANY_OBJECTS = ("torch", "jax")
"""Their imports make so many objects that Python's collector takes a tenth of a program's start."""
_THEN = {
    "aitemplate.backend.builder": _recompile_models,
    "aitemplate.backend.cuda.builder_cmake": _recompile_models,
    "aitemplate.backend.target": _share_profiles,
    "easydel.utils.compiling_utils": _hook("ejkernel_folder", "no_pickles"),
    "ejkernel.callib._ejit": _hook("ejkernel_folder", "begin"),
    "ejkernel.callib._tilelang_ffi": _tilelang_in_turn,
    "ejkernel.ops.config.persistent": _hook("ejkernel_profiles", "begin_files"),
    "ejkernel.ops.config.selection": _select_in_turn,
    "ejkernel.ops.execution.executor": _hook("ejkernel_profiles", "begin_executor"),
    "ejkernel.ops.execution.tuning": _ejkernel_in_turn,
    "jax._src.compilation_cache": _share_programs,
    "jax._src.compiler": _hook("jax_cache", "begin_compiler"),
    "jax._src.xla_bridge": _hook("jax_flags", "begin"),
    "triton.runtime.cache": _share_triton,
    "triton.compiler.compiler": _hook("ledger", "watch_triton"),
    "triton.runtime.autotuner": _hook("gpu_turns", "begin_triton"),
    "torch": _with_traces("begin"),
    "torch._functorch._activation_checkpointing": _with_traces("without_networks"),
    "torch._functorch.partitioners": _with_traces("with_networks"),
    "torch.library": _hook("torch_registrations", "begin"),
    "triton.runtime.jit": _use_jit,
    "torch._dynamo.backends.registry": _name_backend,
    "torch._dynamo.convert_frame": _keep_traces,
    "torch._dynamo.callback": _in_ledger("watch_dynamo"),
    "torch._functorch._aot_autograd.autograd_cache": _in_ledger("watch_autograd"),
    "torch._inductor.async_compile": _in_ledger("watch_kernels"),
    "torch._inductor.codecache": _use_codecache,
    "torch._inductor.compile_fx": _in_ledger("watch_inductor"),
    "torch._inductor.cpp_builder": _in_ledger("watch_compilers"),
    "torch._inductor.cpu_vec_isa": _probe_once,
    "torch._inductor.remote_cache": _share_graphs,
    "torch._inductor.runtime.autotune_cache": _keep_tunings,
    "torch._inductor.runtime.benchmarking": _hook("gpu_turns", "begin_inductor"),
    "torch._inductor.runtime.compile_tasks": _name_assembler,
    "torch._inductor.runtime.triton_heuristics": _use_heuristics,
    "torch.utils.file_baton": _hook("torch_baton", "begin"),
}
"""Module -> function to call once it is imported."""


def _collect_later(spec: "Any") -> None:
    """Let Python's collector rest during an import."""
    if _has_store():
        spec.loader.exec_module = _beside("collector").at_rest(spec.loader.exec_module)


def _follow(spec: "Any", then: "Any") -> None:
    """Call a function with a module once it is imported."""
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
    """Call a hook; if it fails, the program runs as without buildd."""
    try:
        then(*arguments)
    except Exception as error:
        import logging

        logging.getLogger("buildd.triton").info("%s works without buildd: %r", name, error)


def _run_the_next() -> None:
    """Run the sitecustomize that Python would have found without buildd, under its own name."""
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
    if os.environ.get("BUILDD_BUILD_ID"):
        _carefully("importlib", _time_imports)
_run_the_next()
