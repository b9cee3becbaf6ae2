"""Whether names that a compile asked for were the same all the while, in a folder that other compiles write to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from buildd.files.digests import Files
from buildd.files.kernel_clock import STEP_NS
from buildd.files.snapshot import Snapshot
from tests.support.waiting import until_settled

ASKED = {"later.h", "here.h", "link.h", "gen"}


def turned(folder: Path) -> None:
    (folder / "new").symlink_to("nowhere")
    (folder / "new").rename(folder / "link.h")


def rewritten(folder: Path) -> None:
    (folder / "new").write_text("")
    (folder / "new").rename(folder / "here.h")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda folder: None, True),
        (lambda folder: (folder / "a.o").write_text(""), True),
        (lambda folder: (folder / "gen/a.o").write_text(""), True),
        (lambda folder: (folder / "later.h").write_text(""), False),
        (lambda folder: (folder / "here.h").unlink(), False),
        (rewritten, False),
        (turned, False),
    ],
    ids=["nothing", "another-name", "below", "appeared", "gone", "rewritten", "link-turned"],
)
def test_only_the_names_that_were_asked_for_count(tmp_path: Path, change: Callable[[Path], object], same: bool) -> None:
    (tmp_path / "gen").mkdir()
    (tmp_path / "here.h").write_text("")
    (tmp_path / "link.h").symlink_to("here.h")
    until_settled(tmp_path, 3 * STEP_NS)
    snapshot = Snapshot(Files(), str(tmp_path))
    assert snapshot.listing(".")
    since_ns = snapshot.files.now_ns()
    change(tmp_path)
    assert snapshot.listed_since(".", since_ns, ASKED) == same


def test_a_folder_that_was_not_listed_before_counts_as_changed(tmp_path: Path) -> None:
    snapshot = Snapshot(Files(), str(tmp_path))
    since_ns = snapshot.files.now_ns()
    (tmp_path / "a.o").write_text("")
    assert not snapshot.listed_since(".", since_ns, ASKED)
    assert snapshot.listing(".")
    assert not snapshot.listed_since(".", since_ns, ASKED)
