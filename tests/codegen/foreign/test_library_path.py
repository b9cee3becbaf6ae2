"""LD_LIBRARY_PATH, as far as its folders hold something that a compiler could load."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from codegen.foreign.library_path import without_idle


def test_folders_without_a_library_are_left_out(tmp_path: Path) -> None:
    for name, file in (("crates", "libserde-0123456789abcdef.so"), ("objects", "a.o"), ("own", "libmpc.so.3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "fast/glibc-hwcaps").mkdir(parents=True)
    value = ":".join(f"{tmp_path}/{name}" for name in ("crates", "own", "empty", "none", "objects", "fast"))
    assert without_idle(value, time.time_ns()) == f"{tmp_path}/own:{tmp_path}/fast"
    # Such entries stand for the working folder.
    assert without_idle(f":lib:{tmp_path}/empty", time.time_ns()) == ":lib"


@pytest.mark.parametrize("age_s", [0, 100])
def test_a_library_that_comes_counts_at_once(tmp_path: Path, age_s: int) -> None:
    now_ns = time.time_ns()
    os.utime(tmp_path, ns=(now_ns - age_s * 10**9,) * 2)
    for _ in range(2):
        assert without_idle(str(tmp_path), now_ns) == ""
    (tmp_path / "libmpc.so.3").touch()
    assert without_idle(str(tmp_path), now_ns) == str(tmp_path)
