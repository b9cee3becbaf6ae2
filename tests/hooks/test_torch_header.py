"""The precompiled header of Inductor: made once through us, and left alone from then on."""

from __future__ import annotations

import os
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildd.hooks import torch_header


class Builder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def get_target_file_path(self) -> str:
        return str(self.path)


@pytest.fixture
def codecache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As much of Inductor's module as is changed."""
    module: Any = types.ModuleType("_a_codecache")
    module.made = []

    def _worker_compile_cpp(lock_path: str, cpp_builders: tuple[Builder, ...]) -> None:
        for builder in cpp_builders:
            if not builder.path.exists():
                module.made.append(builder.path.name)
                builder.path.write_text(f"made {len(module.made)}")

    _worker_compile_cpp.__module__, _worker_compile_cpp.__qualname__ = module.__name__, "_worker_compile_cpp"
    module._worker_compile_cpp = _worker_compile_cpp
    monkeypatch.delenv("BUILDD_DISABLE", raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module


def test_one_that_somebody_else_has_made_is_made_again_once(codecache: Any, tmp_path: Path) -> None:
    torch_header.begin(codecache, str(tmp_path / "store"))
    header, kernel = tmp_path / "x.h.gch", tmp_path / "k.so"
    header.write_text("somebody else's")
    kernel.write_text("somebody else's")
    for _ in range(3):
        codecache._worker_compile_cpp("lock", (Builder(header),))
        codecache._worker_compile_cpp("lock", cpp_builders=[Builder(kernel)])
    assert codecache.made == ["x.h.gch"] and kernel.read_text() == "somebody else's"
    # A header that is made without buildd is noticed again.
    header.write_text("made without us")
    codecache._worker_compile_cpp("lock", (Builder(header),))
    assert codecache.made == ["x.h.gch"] * 2 and header.read_text() == "made 2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.so", "x.h.gch", "x.h.gch.buildd"]


def test_each_store_has_its_own(codecache: Any, tmp_path: Path) -> None:
    plain, header = codecache._worker_compile_cpp, tmp_path / "x.h.gch"
    for store in ("one", "two", "two"):
        codecache._worker_compile_cpp = plain
        torch_header.begin(codecache, str(tmp_path / store))
        codecache._worker_compile_cpp("lock", (Builder(header),))
    assert codecache.made == ["x.h.gch"] * 2


def test_processes_of_inductors_find_it_by_its_name(codecache: Any, tmp_path: Path) -> None:
    torch_header.begin(codecache, str(tmp_path))
    assert pickle.loads(pickle.dumps(codecache._worker_compile_cpp)) is codecache._worker_compile_cpp


def test_it_is_left_alone_where_we_take_no_part_or_may_not(
    codecache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_header.begin(codecache, str(tmp_path / "store"))
    header = tmp_path / "x.h.gch"
    header.write_text("somebody else's")
    with monkeypatch.context() as patch:
        patch.setenv("BUILDD_DISABLE", "1")
        codecache._worker_compile_cpp("lock", (Builder(header),))
    with monkeypatch.context() as patch:

        def refused(path: str) -> None:
            raise PermissionError(path)

        patch.setattr(os, "unlink", refused)
        codecache._worker_compile_cpp("lock", (Builder(header),))
    assert codecache.made == [] and list(tmp_path.iterdir()) == [header] and header.read_text() == "somebody else's"
