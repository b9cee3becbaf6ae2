"""Python's collector of garbage rests while a large library is imported or a trace is loaded.

Runs in the user's own process: standard library only. Nearly all objects that an import makes stay, and the collector
would look through them again and again: a tenth of the start of a JAX program.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def paused(*, then_old: bool = False) -> Iterator[None]:
    """Collect nothing meanwhile. Does nothing where the program itself collects nothing.

    Args:
        then_old: all objects count as old afterwards, without a look at each. Only a full collection finds those that
            became garbage meanwhile.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # What the program itself has frozen stays so.
            if then_old and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def at_rest(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """The function that fills a module, with the collector at rest."""

    def exec_module(module: Any) -> None:
        with paused(then_old=True):
            load(module)

    return exec_module
