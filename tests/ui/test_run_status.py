"""The words of the status line of `buildd run`, at every width."""

from __future__ import annotations

import pytest

from buildd.ui.run_status import RunningCompile, RunStatus, words

BUSY = RunStatus(
    done=12,
    hits=9,
    running=(RunningCompile("reduce.cu", 3.1, 8.0), RunningCompile("saxpy.cu", 0.4)),
    waiting=6,
    waiting_for="memory: needs 1.9 GiB, 0.8 GiB free",
)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (100, "buildd: 3 compiled, 9 hits; reduce.cu 3.1 s / ~8.0 s, saxpy.cu 0.4 s; 6 waiting for memory"),
        (80, "3 compiled, 9 hits; reduce.cu 3.1 s / ~8.0 s, saxpy.cu 0.4 s; 6 waiting"),
        (60, "3 compiled, 9 hits; 2 running; 6 waiting"),
        (40, "3 compiled, 9 hits; 2 running; 6 waiting"),
        (20, "3 compiled, 9 hits"),
    ],
)
def test_a_line_says_what_fits(columns: int, line: str) -> None:
    shown = words(BUSY, columns)
    assert len(shown) <= columns
    assert shown == line


def test_every_width_has_a_line_that_fits() -> None:
    for columns in range(1, 200):
        assert 0 < len(words(BUSY, columns)) <= columns


def test_before_anything_is_done_or_compiled() -> None:
    assert words(RunStatus(), 80) == ""
    starting = RunStatus(running=(RunningCompile("a.cu", 1.0),))
    assert words(starting, 80) == "buildd: a.cu 1.0 s"
    assert words(RunStatus(done=1, hits=1), 80) == "buildd: 1 hit"


def test_a_name_that_is_long_or_odd_does_no_harm() -> None:
    odd = RunStatus(running=(RunningCompile(f"\x1b[2J{'x' * 300}.cu", 1.0),))
    line = words(odd, 60)
    assert line.isprintable() and len(line) <= 60 and ".cu 1.0 s" in line
