"""Importing ejkernel leaves JAX's cache folder as the user has it, and keeps no pickles."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from buildd.hooks import ejkernel_folder

THEIRS = "/theirs"


class Config:
    """jax.config."""

    def __init__(self, folder: str | None) -> None:
        self.jax_compilation_cache_dir = folder

    def update(self, name: str, value: str | None) -> None:
        setattr(self, name, value)


def after_ejit(monkeypatch: pytest.MonkeyPatch, folder: str | None) -> tuple[str | None, Any]:
    """JAX's folder, and ejkernel's module, after a function was decorated."""
    jax: Any = types.ModuleType("jax")
    jax.config = Config(folder)
    monkeypatch.setitem(sys.modules, "jax", jax)
    module: Any = types.ModuleType("ejkernel.callib._ejit")
    module.ECACHE_COMPILES = True

    def ejit(function: Any) -> Any:
        jax.config.update("jax_compilation_cache_dir", THEIRS)
        return function

    module.ejit = ejit
    ejkernel_folder.begin(module)
    assert module.ejit(len) is len
    return jax.config.jax_compilation_cache_dir, module


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMPILE_FUNC_DIR", "JAX_COMPILATION_CACHE_DIR", "BUILDD_DISABLE"):
        monkeypatch.delenv(name, raising=False)


def test_the_users_folder_stays_and_without_one_ejkernel_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, module = after_ejit(monkeypatch, "/mine")
    assert folder == "/mine" and module.ECACHE_COMPILES is False
    assert after_ejit(monkeypatch, None)[0] == THEIRS
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "buildd://")
    assert after_ejit(monkeypatch, None)[0] is None, "the store, for which JAX has no folder"


def test_who_names_ejkernels_folder_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_FUNC_DIR", THEIRS)
    folder, module = after_ejit(monkeypatch, "/mine")
    assert folder == THEIRS and module.ECACHE_COMPILES is False


def test_buildd_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDD_DISABLE", "1")
    folder, module = after_ejit(monkeypatch, "/mine")
    assert folder == THEIRS and module.ECACHE_COMPILES is True


def test_easydels_own_copy_keeps_no_pickles_either() -> None:
    module = types.SimpleNamespace(ECACHE_COMPILES=True)
    ejkernel_folder.no_pickles(module)
    assert module.ECACHE_COMPILES is False
    ejkernel_folder.no_pickles(types.SimpleNamespace())
