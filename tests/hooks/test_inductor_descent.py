"""A configuration that a coordinate descent found is kept to in a later process, as torch 2.11 does not.

A stand-in for Inductor's module: its autotuner reads what was found, and forgets that it was.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from buildd.hooks import inductor_descent


class Tuner:
    """An autotuner of Inductor."""

    def __init__(self, *sizes: int, descends: bool = True) -> None:
        self.compile_results = [SimpleNamespace(config=config(size)) for size in sizes]
        self.filename = "kernel.py"
        self.inductor_meta = {"coordinate_descent_tuning": descends}
        self.fn = SimpleNamespace(fn=None)
        self.compiled: list[Any] = []

    def recheck_autotune_cache(self, reload_kernel_from_src: Any) -> None:
        pass

    def _precompile_config(self, found: Any) -> Any:
        self.compiled.append(found.size)
        return SimpleNamespace(config=found)


def config(size: int, *, found: bool = False) -> Any:
    return SimpleNamespace(size=size, **({"found_by_coordesc": True} if found else {}))


def rechecked(tuner: Tuner, stored: Any, named: Any = None) -> list[tuple[int, bool]]:
    """The configurations that a tuner has after the check, and whether it will leave them alone.

    Args:
        stored: what is found under the configurations that the tuner has.
        named: what is found under those that the kernel's source names.
    """

    class Kind(Tuner):
        pass

    def check_autotune_cache(configs: list[Any], filename: str, meta: dict[str, bool]) -> tuple[list[Any], None, None]:
        if isinstance(stored, Exception):
            raise stored
        return (configs if stored is None else [stored]), None, None

    module = SimpleNamespace(
        CachingAutotuner=Kind,
        check_autotune_cache=check_autotune_cache,
        triton_config_to_hashable=lambda one: one.size,
    )
    inductor_descent.begin(module)
    tuner.__class__ = Kind
    own = [config(1), config(2)] if named is None else [named]
    tuner.recheck_autotune_cache(lambda: SimpleNamespace(fn="reloaded", configs=own))
    return [(one.config.size, getattr(one.config, "found_by_coordesc", False)) for one in tuner.compile_results]


def test_one_that_is_compiled_already_is_marked() -> None:
    assert rechecked(Tuner(8, 16), config(16, found=True)) == [(16, True)]
    # A kernel with one configuration is descended from, too.
    assert rechecked(Tuner(8), config(8, found=True)) == [(8, True)]


def test_another_one_is_compiled() -> None:
    tuner = Tuner(8)
    assert rechecked(tuner, config(4, found=True)) == [(4, True)]
    assert tuner.compiled == [4] and tuner.fn == "reloaded"


def test_one_that_is_filed_under_the_configurations_of_the_source_is_found() -> None:
    """Those that are compiled are others: one of them did not compile, say."""
    assert rechecked(Tuner(8, 16), None, config(16, found=True)) == [(16, True)]
    tuner = Tuner(8)
    assert rechecked(tuner, None, config(4, found=True)) == [(4, True)] and tuner.compiled == [4]
    assert rechecked(Tuner(8, 16), None, config(16)) == [(8, False), (16, False)]


@pytest.mark.parametrize("stored", [None, config(8), OSError("the disk")])
def test_without_a_descent_nothing_changes(stored: Any) -> None:
    assert rechecked(Tuner(8, 16), stored) == [(8, False), (16, False)]
    assert rechecked(Tuner(8, 16, descends=False), config(16, found=True)) == [(8, False), (16, False)]


def test_a_torch_without_such_a_check_is_left_alone() -> None:
    inductor_descent.begin(SimpleNamespace(CachingAutotuner=object))
