"""What ejkernel and EasyDeL would do to JAX's cache: another folder than the user's, and pickles instead of it.

Runs in the user's own process; standard library only. Knows `ejit`, which sets JAX's folder at each use, and the switch
of its second cache (EASYDEL_CACHE_COMPILES): that one's key has no static values and no closures, so it can return the
results of another function. The store keeps the programs instead.
"""

import functools
import os
import sys

from .entries import is_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_THEIRS = "COMPILE_FUNC_DIR"
"""ejkernel's variable for that folder: a user who sets it wants it."""


def begin(ejit: "Any") -> None:
    """Wrap ejkernel.callib._ejit, just imported."""
    no_pickles(ejit)
    if os.environ.get(_THEIRS) or is_on("BUILDD_DISABLE"):
        return
    compile_it = ejit.ejit

    @functools.wraps(compile_it)
    def kept(*arguments: "Any", **named: "Any") -> "Any":
        config = sys.modules["jax"].config
        before = config.jax_compilation_cache_dir
        made = compile_it(*arguments, **named)
        if (before or os.environ.get(_FOLDER)) and config.jax_compilation_cache_dir != before:
            # `buildd:` is the store, for which JAX has no folder.
            config.update("jax_compilation_cache_dir", before)
        return made

    ejit.ejit = kept


def no_pickles(module: "Any") -> None:
    """Turn off the cache of pickles in a module that has just read its switch. `buildd run` has said so."""
    if getattr(module, "ECACHE_COMPILES", False) and not is_on("BUILDD_DISABLE"):
        module.ECACHE_COMPILES = False
