"""`torch.compile(model, backend="buildd")`: Inductor, with the environment of `buildd run` set up inside the process.

torch's registry of backends loads it, in the user's own process; nothing here imports torch before that. Knows the
arguments of a backend. Inductor alone compiles, with the same configuration as for backend "inductor"; without a daemon
nothing else happens, and one line says so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from buildd.shims.framework_environment import HOOKS, TAG
from buildd.ui.problems import is_on, print_note

_lock = threading.Lock()


class _Process:
    """The state of this process."""

    changed = False
    """Its environment is set up as under `buildd run`."""
    told = False
    """The user has seen the line that there is no daemon."""


def compile_graph(graph: Any, inputs: Any, *, mode: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """Compile a graph as backend "inductor" does.

    Args:
        graph: a torch.fx.GraphModule.
        inputs: example inputs, fake tensors.
        mode: as torch.compile's.
        options: as torch.compile's.

    Raises: Inductor's errors.
    """
    import torch

    # torch's own call for backend="inductor", mode and options. `fullgraph` and `dynamic` have acted before.
    inductor = torch._TorchCompileInductorWrapper(mode, options, None)
    # Connected, so that the daemon neither ends nor restarts meanwhile; only for this graph, because a process that the
    # program forks would inherit the connection.
    with _set_up():
        return inductor(graph, inputs)


def reset() -> None:
    """Do what torch.compiler.reset() does for backend "inductor"."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        trees.reset_cudagraph_trees()


compile_graph.reset = reset  # type: ignore[attr-defined]


def _set_up() -> AbstractContextManager[object]:
    """Redirect compilers, Triton's kernels and Inductor's keys through buildd; return a connection to the daemon."""
    environ = os.environ
    if is_on(environ, "BUILDD_DISABLE"):
        return nullcontext()
    if not _Process.changed and HOOKS in environ.get("PYTHONPATH", "").split(os.pathsep):
        return nullcontext()  # under `buildd run` everything is set up already
    from buildd.client.connect import GOES_ON_WITHOUT_S, connect
    from buildd.errors import BuilddError
    from protocol.errors import ProtocolError

    with _lock:
        try:
            client = connect(environ, start=True, start_s=GOES_ON_WITHOUT_S)
            assert client.instance  # shakes hands
            if not _Process.changed:
                _change(environ)
                _Process.changed = True
        except (ProtocolError, BuilddError, OSError) as error:
            if not _Process.told:
                _Process.told = True
                print_note(f'buildd: {getattr(error, "message", error)}; backend "buildd" is plain inductor')
            return nullcontext()
    return client


def _change(environ: MutableMapping[str, str]) -> None:
    """Set up this process and its children like `buildd run`. Raises: ProtocolError, BuilddError, OSError."""
    from torch.compiler import config

    from buildd.shims.environment import variables

    build = environ.get("BUILDD_BUILD_ID") or os.urandom(6).hex()
    changed = variables({**environ, TAG: config.cache_key_tag}, build, runs_already=True)
    environ.update(changed)
    # torch read it from the environment at import, and the program may have set it since.
    config.cache_key_tag = changed[TAG]
    from torch._inductor import codecache, remote_cache
    from torch._inductor.runtime import autotune_cache, compile_tasks

    from buildd.hooks import (
        inductor_cache,
        inductor_tunings,
        inductor_why,
        torch_assembler,
        torch_header,
        torch_registrations,
        triton_cache,
        triton_keys,
        triton_why,
    )

    torch_registrations.begin(sys.modules["torch.library"])
    if inductor_cache.is_wanted() and hasattr(remote_cache.RemoteCache, "backend_override_cls"):
        inductor_cache.begin(remote_cache, changed["BUILDD_DIR"])
    if inductor_tunings.is_wanted() and hasattr(autotune_cache, "_should_use_remote_autotune_cache"):
        inductor_tunings.begin(autotune_cache, remote_cache, changed["BUILDD_DIR"])
    if hasattr(codecache, "compiled_fx_graph_hash"):
        inductor_why.begin(codecache, triton_why, changed["BUILDD_DIR"])
    if hasattr(codecache, "_worker_compile_cpp"):
        torch_header.begin(codecache, changed["BUILDD_DIR"])
    if hasattr(compile_tasks, "_set_triton_ptxas_path"):
        torch_assembler.name_it(compile_tasks)
    if environ.get("TRITON_CACHE_MANAGER"):
        return
    try:
        import triton.runtime.cache as cache
        import triton.runtime.jit as jit
    except ImportError:
        return
    triton_keys.complete(jit)
    triton_cache.use(cache)
