"""What a worker's modules asked of the file system, as `buildd.keys.questions` reads, answers and words it."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys import questions
from buildd.keys.questions import KIND, NAMES, PACKAGES, Questions
from codegen.plan import Discovery


@pytest.mark.parametrize("discovery", [Discovery.GCC, Discovery.NONE])
def test_only_workers_ask(discovery: Discovery) -> None:
    assert questions.asked_by(discovery, {"": b"absent /x\n"}.get) == Questions()


def test_lines_with_blanks_in_their_paths() -> None:
    asked = questions.asked_by(
        Discovery.REPORTED, {"": b"/a/b.py\nabsent /c d/e f\nnames 00ff /g h\npackages 11 /i\n"}.get
    )
    assert [name for name, _ in asked.answers] == ["/c d/e f//kind", "/g h//names", "/i//packages"]
    assert [str(digest) for _, digest in asked.answers][1:] == ["00ff", "11"]
    assert [questions.path_of(name) for name, _ in asked.answers] == ["/c d/e f", "/g h", "/i"]
    assert all(questions.is_question(name) for name, _ in asked.answers) and not questions.is_question("/a/names")


def test_a_reason_not_to_store_stands_alone() -> None:
    asked = questions.asked_by(Discovery.REPORTED, {"": b"absent /c\nunstored it starts git\n"}.get)
    assert asked == Questions(unstored="it starts git")


def test_answers_change_with_what_they_are_about_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    snapshot = Snapshot(Files(), str(tmp_path))

    def answers() -> tuple[str, ...]:
        return tuple(questions.answer(snapshot, name) for name in ("x" + KIND, "folder" + NAMES, "folder" + PACKAGES))

    first = answers()
    (tmp_path / "other").touch()
    (tmp_path / "folder/__pycache__").mkdir()
    assert answers() == first
    (tmp_path / "folder/a.json").touch()
    second = answers()
    assert [old == new for old, new in zip(first, second, strict=True)] == [True, False, True]
    (tmp_path / "folder/numpy-2.dist-info").mkdir()
    (tmp_path / "x").mkdir()
    third = answers()
    assert all(old != new for old, new in zip(second, third, strict=True))
    (tmp_path / "x").rmdir()
    (tmp_path / "x").touch()
    assert answers()[0] not in (first[0], third[0])
    now = Snapshot(Files(), str(tmp_path))
    assert questions.difference(now, {"x" + KIND: second[0]}) == "input x: appeared"
    assert not questions.difference(now, {"x" + KIND: answers()[0]})
    assert questions.folders_of(("x" + KIND, "folder" + NAMES)) == {".", "folder"}
