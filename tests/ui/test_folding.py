"""Backtraces of templates: both ends are shown, and every other line as it came."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest

from buildd.ui.folding import Folding
from buildd.ui.narrator import Narrator, Telling
from buildd.ui.plain import PlainView
from buildd.ui.view import Writer
from tests.support.paths import DATA
from tests.support.recorded import events, finished, line, replay, started

RECORDED = DATA / "diagnostics"
GCC = [
    "a.h:1:2: In instantiation of ‘f’",
    *(f"a.h:{number}:5:   required from ‘g<{number}>’" for number in range(6)),
    "a.cpp:9:3:   required from here",
    "a.h:1:9: error: no",
]


def folded(lines: Iterable[str]) -> list[str]:
    folding = Folding("buildd log b")
    return [*(shown for line in lines for shown in folding.feed(line)), *folding.rest()]


def test_nvccs_backtrace() -> None:
    lines = (RECORDED / "nvcc-template.txt").read_text().splitlines()[:8]
    shown = folded(lines)
    assert shown == [*lines[:5], "            (2 more levels between: buildd log b)", *lines[7:]]


def test_gccs_backtrace() -> None:
    assert folded(GCC) == [*GCC[:2], "    (4 more levels between: buildd log b)", *GCC[6:]]


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.txt")), ids=lambda path: path.stem)
def test_what_is_no_long_backtrace_is_shown_as_it_came(path: Path) -> None:
    lines = path.read_text(errors="replace").splitlines()
    shown = folded(lines)
    left = iter(lines)
    assert all(line in left for line in shown if "more levels between" not in line)
    hidden = len(lines) - sum("more levels between" not in line for line in shown)
    assert hidden == sum(int(line.split("(")[1].split()[0]) for line in shown if "more levels between" in line)


@pytest.mark.parametrize("complete", [False, True])
def test_a_build_shows_it_folded_and_its_log_whole(complete: bool) -> None:
    told = [started(1, "a.o"), *(line(1, text) for text in GCC), finished(1, "a.o", 1.0)]
    stream = io.StringIO()
    view = PlainView(Writer(stream), Narrator(Telling(build="b", complete=complete)))
    replay(view, events(*((0.0, body) for body in told)))
    text = stream.getvalue()
    assert ("4 more levels between: buildd log b" in text) is not complete and GCC[-1] in text
    assert all(step in text for step in GCC) is complete
