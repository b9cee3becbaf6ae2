"""Lets Inductor keep to the configurations that its coordinate descent found in an earlier process.

Inductor stores the end of a coordinate descent, and reads it when a later process takes a kernel from the cache. It
misses it in three cases, and the process repeats the descent: measured on an H100, two thirds of the start of a program
with `mode="max-autotune"`. torch before 2.13 forgets that the configuration comes from a descent, and does not look for
kernels that have one configuration. Every torch looks under the configurations that are compiled now; the result is
filed under those that the kernel's source names, and they differ if Inductor has taken a constant out (XBLOCK), left
out what does not compile, or added smaller blocks. Runs in the user's own process; knows Inductor's autotuner alone.
"""

from __future__ import annotations

import logging
from typing import Any

from .entries import tell

_log = logging.getLogger("buildd.inductor")


def begin(heuristics: Any) -> None:
    """Keep to the descents of earlier processes from now on.

    Args:
        heuristics: the module torch._inductor.runtime.triton_heuristics, just imported.
    """
    kind = heuristics.CachingAutotuner
    theirs = getattr(kind, "recheck_autotune_cache", None)
    if theirs is None or not hasattr(heuristics, "check_autotune_cache"):
        return

    def recheck_autotune_cache(self: Any, reload_kernel_from_src: Any, *arguments: Any, **named: Any) -> Any:
        answer = theirs(self, reload_kernel_from_src, *arguments, **named)
        try:
            if self.inductor_meta.get("coordinate_descent_tuning") and not any(map(_is_found, self.compile_results)):
                _keep_to_found(heuristics, self, reload_kernel_from_src)
        except Exception as error:
            # The edge to the user's program: Inductor descends again.
            tell(_log, "not kept", error)
        return answer

    kind.recheck_autotune_cache = recheck_autotune_cache


def _is_found(result: Any) -> bool:
    return bool(getattr(result.config, "found_by_coordesc", False))


def _keep_to_found(heuristics: Any, tuner: Any, reload_kernel_from_src: Any) -> None:
    configs = [result.config for result in tuner.compile_results]
    best = _found_by_descent(heuristics.check_autotune_cache(configs, tuner.filename, tuner.inductor_meta)[0])
    if best is None:
        # A kernel that was just made from its source has looked under the configurations that the source names.
        best = _found_by_descent(getattr(reload_kernel_from_src(), "configs", None))
    if best is None:
        return
    wanted = heuristics.triton_config_to_hashable(best)
    for result in tuner.compile_results:
        if heuristics.triton_config_to_hashable(result.config) == wanted:
            result.config.found_by_coordesc = True
            tuner.compile_results = [result]
            return
    if tuner.fn.fn is None:
        tuner.fn = reload_kernel_from_src().fn
    tuner.compile_results = [tuner._precompile_config(best)]


def _found_by_descent(configs: Any) -> Any:
    """The only one of these configurations, if a descent has found it; else None."""
    return configs[0] if configs and len(configs) == 1 and getattr(configs[0], "found_by_coordesc", False) else None
