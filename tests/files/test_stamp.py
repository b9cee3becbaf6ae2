"""Stamps of files, and names of files with their links resolved."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildd.files import devices, sweep
from buildd.files.stamp import moved_since, real_path, stamp_of

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


def test_a_link_behind_a_linked_folder_is_followed_as_the_system_does(tmp_path: Path) -> None:
    (tmp_path / "usr" / "lib" / "gcc").mkdir(parents=True)
    (tmp_path / "usr" / "lib" / "libx.so.6").touch()
    (tmp_path / "usr" / "lib" / "gcc" / "libx.so").symlink_to("../libx.so.6")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "gcc").symlink_to(tmp_path / "usr" / "lib" / "gcc")
    path = str(tmp_path / "env" / "gcc" / "libx.so")
    later_ns = time.time_ns() + 3_600_000_000_000
    assert not moved_since(path, later_ns, {})
    (tmp_path / "usr" / "lib" / "libx.so.6").unlink()
    assert moved_since(path, later_ns, {})


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "overlay"])
def test_stamps_of_a_network_file_system_are_taken_from_the_open_file(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There `stat` may tell what was some seconds ago; a compiler opens the file, and sees what is."""
    path = tmp_path / "h.h"
    path.write_text("1")
    device, old, usual = os.makedev(0, 77), os.stat(path), os.stat
    fields = {name: getattr(old, name) for name in dir(old) if name.startswith("st_")}

    def cached(*words: Any, **named: Any) -> Any:
        return (
            SimpleNamespace(**fields, **{"st_dev": device})
            if os.fsdecode(words[0]) == str(path)
            else usual(*words, **named)
        )

    del fields["st_dev"]
    monkeypatch.setattr(os, "stat", cached)
    monkeypatch.setattr(devices, "_mounted", lambda: {device: kind})
    monkeypatch.setattr(devices, "_kinds", devices._Kinds())
    path.write_text("two")
    found = stamp_of(str(path))
    assert found is not None and found.size == (1 if kind == "overlay" else 3)
    before = sweep.packed((device, old.st_ino, old.st_size, old.st_mtime_ns, old.st_ctime_ns))
    as_before = sweep.Sweep(tmp_path / "native").all_equal([os.fsencode(path)], before)
    assert as_before == (kind == "overlay"), "what says that nothing has changed sees the same"
    path.unlink()
    assert (stamp_of(str(path)) is None) == (kind != "overlay")
