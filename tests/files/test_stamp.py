"""Names of files with their links resolved."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildd.files.stamp import real_path

NAMES = [
    "real",
    "real/inner",
    "real/file",
    "linked/inner",
    "linked/file",
    "linked/up/real",
    "far",
    "far/..",
    "far/../file",
    "real/./inner",
    "real//inner",
    "real/inner/",
    "loop",
    "loop/x",
    "nowhere",
    "nowhere/x",
    "missing/a/b",
    "real/file/x",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "file").touch()
    (tmp_path / "linked").symlink_to("real")
    (tmp_path / "real" / "up").symlink_to("..")
    (tmp_path / "far").symlink_to(tmp_path / "linked" / "inner")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing/folder")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_real_path_is_that_of_the_library(tree: Path, name: str) -> None:
    path = f"{tree}/{name}"
    assert real_path(path, {}) == os.path.realpath(path)
    known: dict[str, str] = {}
    for other in ("linked/up/linked", "far", "real"):  # what is known of other paths changes nothing
        real_path(f"{tree}/{other}", known)
    assert real_path(path, known) == os.path.realpath(path)


def test_each_folder_on_the_way_is_looked_at_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = os.path.islink
    monkeypatch.setattr(os.path, "islink", lambda path: looked.append(path) or real(path))
    known: dict[str, str] = {}
    for name in ("real/inner", "real/file", "real/inner/x", "real"):
        real_path(f"{tree}/{name}", known)
    assert len(looked) == len(set(looked))
