"""Inductor's graphs, kept in the store: found again where its own caches are empty.

Runs in the user's own process; standard library and torch only. Knows how Inductor asks a cache beyond its own one
(`torch._inductor.remote_cache`); entries and their checks are `entries`'. What is found under which key is Inductor's
to know, and so is what an entry holds: a pickle, as in its own cache. So nothing is read but what the user, or somebody
whom they trust, has signed. Whatever goes wrong, Inductor compiles.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from .entries import Entry, Shelf, is_on, tell

FOLDER = "inductor"
GROUP = "graph"
_THEIRS = ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE")
"""Who sets one of these has such a cache, or wants none."""
_KINDS = ("RemoteFxGraphCache", "RemoteAOTAutogradCache")
_log = logging.getLogger("buildd.inductor")


def is_wanted() -> bool:
    """Whether graphs of this process are kept."""
    # While kernels are recorded, a graph that is found would tell of none.
    return not any(name in os.environ for name in (*_THEIRS, "BUILDD_RECORD"))


def begin(remote_cache: Any, store: str) -> None:
    """Have graphs kept from now on.

    Args:
        remote_cache: the module torch._inductor.remote_cache, just imported.
        store: the folder of the store.
    """
    import torch._functorch.config as autograd
    import torch._inductor.config as inductor

    kinds = [getattr(remote_cache, name) for name in _KINDS]
    if inductor.fx_graph_remote_cache is not None or any(kind.backend_override_cls is not None for kind in kinds):
        return

    class Graphs(remote_cache.RemoteCacheBackend):  # type: ignore[misc]
        """The graphs of one store."""

        def _shelf(self) -> Any:
            """None where nothing is to be kept: who turns Inductor's own cache off wants none."""
            if inductor.force_disable_caches or not inductor.fx_graph_cache or is_on("BUILDD_DISABLE"):
                return None
            shelf = Shelf(store, FOLDER)
            return shelf if shelf.open() else None

        def _get(self, key: str) -> Any:
            try:
                shelf = self._shelf() if not is_on("BUILDD_RECACHE") else None
                found = shelf.take(key, GROUP) if shelf is not None else None
                return found.files[GROUP] if found is not None else None
            except Exception as error:
                # The edge between us and the user's program: Inductor compiles.
                tell(_log, "not looked up", error)
                return None

        def _put(self, key: str, data: Any) -> None:
            try:
                shelf = self._shelf()
                if shelf is not None:
                    shelf.put(Entry(key, GROUP, {GROUP: bytes(data)}))
            except Exception as error:
                # As above.
                tell(_log, "not kept", error)

    for kind in kinds:
        kind.backend_override_cls = Graphs
    inductor.fx_graph_remote_cache = True
    autograd.enable_remote_autograd_cache = True
