"""JAX's entry point, run when JAX starts a backend: JAX_COMPILATION_CACHE_DIR=buildd:// without `buildd run`.

JAX loads it in the user's own process, in every program of a Python that has buildd, so it does nothing unless the
cache folder is named `buildd:`. Knows where the store is; `hooks.jax_cache` does the rest. No daemon is needed.
"""

from __future__ import annotations

import os
import sys


def initialize() -> None:
    """Keep JAX's compiled programs in the store, if the user wants it."""
    cache = sys.modules.get("jax._src.compilation_cache")
    compiler = sys.modules.get("jax._src.compiler")
    folder = str(getattr(getattr(getattr(cache, "config", None), "compilation_cache_dir", None), "value", None) or "")
    if cache is None or compiler is None or not folder.startswith("buildd:"):
        return
    from buildd.client.request import store_of
    from buildd.errors import BuilddError
    from buildd.hooks import jax_cache
    from buildd.ui.problems import print_note

    try:
        store = store_of(os.environ)
        os.makedirs(store, 0o700, exist_ok=True)
    except (BuilddError, OSError) as error:
        cache.config.config.update("jax_compilation_cache_dir", None)
        print_note(f"buildd: {getattr(error, 'message', error)}; JAX keeps no programs")
        return
    jax_cache.begin(cache, store)
    jax_cache.begin_compiler(compiler)
