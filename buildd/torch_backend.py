"""`torch.compile(model, backend="buildd")`: Inductor, with what `buildd run` gives a program set up inside the process.

Loaded by torch's registry of backends, in the user's own process; nothing here imports torch before that. Knows what a
backend is called with. What is computed is Inductor's alone, with the same configuration as for backend "inductor";
where no daemon is to be had that is all, and one line says so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from buildd.commands.common import is_on, print_note
from buildd.frameworks import HOOKS, TAG

_lock = threading.Lock()


class _Process:
    """What was done in this process."""

    changed = False
    """Its environment is as below `buildd run`."""
    told = False
    """That there is no daemon."""


def compile_graph(graph: Any, inputs: Any, *, mode: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """Compile a graph as backend "inductor" does.

    Args:
        graph: a torch.fx.GraphModule.
        inputs: example inputs, fake tensors.
        mode: as torch.compile's.
        options: as torch.compile's.

    Raises: what Inductor raises.
    """
    import torch

    # What torch itself makes of backend="inductor", mode and options. `fullgraph` and `dynamic` have acted before.
    inductor = torch._TorchCompileInductorWrapper(mode, options, None)
    # A daemon neither ends nor starts itself anew while somebody is connected. Not for longer than this graph: whatever
    # the program forks would inherit the connection.
    with _set_up():
        return inductor(graph, inputs)


def reset() -> None:
    """What torch.compiler.reset() does for backend "inductor"."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is not None:
        trees.reset_cudagraph_trees()


compile_graph.reset = reset  # type: ignore[attr-defined]


def _set_up() -> AbstractContextManager[object]:
    """Have compilers, Triton's kernels and Inductor's keys go through us from now on; a connection to the daemon."""
    environ = os.environ
    if is_on(environ, "BUILDD_DISABLE"):
        return nullcontext()
    if not _Process.changed and HOOKS in environ.get("PYTHONPATH", "").split(os.pathsep):
        return nullcontext()  # below `buildd run`: everything is as it should be
    from buildd.commands.connect import connect
    from buildd.errors import BuilddError
    from protocol.errors import ProtocolError

    with _lock:
        try:
            client = connect(environ, start=True)
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
    """As `buildd run` does, for this process and those that it starts. Raises: ProtocolError, BuilddError, OSError."""
    from torch.compiler import config

    from buildd.served import variables

    build = environ.get("BUILDD_BUILD_ID") or os.urandom(6).hex()
    changed = variables({**environ, TAG: config.cache_key_tag}, build)
    environ.update(changed)
    # Read from the environment when torch was imported, unless the program has set it since.
    config.cache_key_tag = changed[TAG]
    from torch._inductor import codecache, remote_cache
    from torch._inductor.runtime import compile_tasks

    from buildd.hooks import inductor_cache, inductor_why, torch_assembler, torch_header, triton_cache, triton_why

    if inductor_cache.is_wanted() and hasattr(remote_cache.RemoteCache, "backend_override_cls"):
        inductor_cache.begin(remote_cache, changed["BUILDD_DIR"])
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
    except ImportError:
        return
    triton_cache.use(cache)
