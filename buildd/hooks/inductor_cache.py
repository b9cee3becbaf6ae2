"""Keeps Inductor's graphs in the store, to find them when its own caches are empty.

Runs in the user's own process; standard library and torch only. Knows how Inductor asks a remote cache
(`torch._inductor.remote_cache`); `entries` stores and checks. Keys and contents are Inductor's own: an entry holds a
pickle, as in its own cache. So only entries signed by the user, or by somebody whom they trust, are read. If anything
goes wrong, Inductor compiles.
"""

from __future__ import annotations

import hashlib
import logging
import os
from typing import Any

from . import proof, tier_door, torch_registrations
from .entries import FOUND_GRAPH, Entry, Shelf, is_on, note_found, tell

FOLDER = "inductor"
GROUP = "graph 2"
"""Its number changes with what a key says."""
_THEIRS = ("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE")
"""A user who sets one of these has a remote cache, or wants none."""
_KINDS = ("RemoteFxGraphCache", "RemoteAOTAutogradCache")
_log = logging.getLogger("buildd.inductor")


def is_wanted() -> bool:
    """Whether graphs of this process are kept."""
    # While kernels are recorded, a graph from the store would report none.
    return not any(name in os.environ for name in (*_THEIRS, "BUILDD_RECORD"))


def _completed(key: str) -> str:
    """Inductor's key, and what the program has registered with torch's compiler, which the key does not say."""
    mark = torch_registrations.mark()
    return hashlib.sha256(f"{key} {mark}".encode()).hexdigest() if mark else key


def begin(remote_cache: Any, store: str) -> None:
    """Keep graphs from now on.

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

        is_counted = False

        def _shelf(self) -> Any:
            """The shelf; None if nothing is to be kept: a user who turns off Inductor's own cache wants none."""
            if inductor.force_disable_caches or not inductor.fx_graph_cache or is_on("BUILDD_DISABLE"):
                return None
            shelf = Shelf(store, FOLDER)
            return shelf if shelf.open() else None

        def _get(self, key: str) -> Any:
            try:
                theirs, key = key, _completed(key)
                shelf = self._shelf() if not is_on("BUILDD_RECACHE") else None
                found = shelf.take(key, GROUP) if shelf is not None else None
                if found is None and shelf is not None and tier_door.fetch(shelf, key, GROUP):
                    found = shelf.take(key, GROUP)
                if found is not None and self.is_counted:
                    note_found(store, FOUND_GRAPH)
                if found is None and self.is_counted and proof.is_on():
                    proof.note("Inductor graph", theirs)  # Inductor takes no refusal here; the graph's kernels get one
                return found.files[GROUP] if found is not None else None
            except Exception as error:
                # The edge to the user's program: Inductor compiles.
                tell(_log, "not looked up", error)
                return None

        def _put(self, key: str, data: Any) -> None:
            try:
                shelf = self._shelf()
                if shelf is not None:
                    key = _completed(key)
                    shelf.put(Entry(key, GROUP, {GROUP: bytes(data)}))
                    tier_door.offer(shelf, key, GROUP)
            except Exception as error:
                # As above.
                tell(_log, "not kept", error)

    class InductorGraphs(Graphs):
        """Those of Inductor itself: behind each entry of AOTAutograd there is one, or two."""

        is_counted = True

    for kind, backend in zip(kinds, (InductorGraphs, Graphs), strict=True):
        kind.backend_override_cls = backend
    inductor.fx_graph_remote_cache = True
    autograd.enable_remote_autograd_cache = True
