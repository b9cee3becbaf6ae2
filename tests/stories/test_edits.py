"""Edits after which other compiler caches hand out old objects, with real nvcc; `scripts/campaign/edits` has more."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support.edits import EditedProject
from tests.support.toolkit import small_toolkit
from tests.support.user import User

pytestmark = pytest.mark.cuda

STORY = (
    # Only under __CUDA_ARCH__, only under one architecture, only on the host: the other passes do not see it.
    *("value of device", "value of newer", "value of host"),
    # Found first from now on.
    *("second.h in the first folder", "forced.h in the working folder", "late.h in -I behind -isystem"),
    *("optional.h", "flags of the environment", "library in the first folder"),
)


def build(user: User, work: EditedProject, *options: str) -> int:
    """How many actions ran."""
    user.environ = {**user.environ, **work.environment}
    status, said = user.buildd("build", "--no-daemon", "--json", "-C", str(work.folder), *options)
    assert status == 0, said
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return sum(event.get("body", event).get("type") == "started" for event in events)


def test_no_edit_leaves_an_old_object(tmp_path: Path) -> None:
    """All edits at once: each shows in a number of its own."""
    bin_folder = small_toolkit() / "bin"
    user = User(tmp_path)
    nvcc, cuobjdump = str(bin_folder / "nvcc"), str(bin_folder / "cuobjdump")
    work = EditedProject(tmp_path / "project", "cuda", nvcc, cuobjdump, random.Random(1), units=("a",))
    edits = work.edits()
    try:
        assert build(user, work) == 2
        before = work.made()
        for name in STORY:
            edits[name].do()
        assert build(user, work) == 2
        right = work.clean(tmp_path / "clean")
        assert right is not None and work.made() == right != before
        edits["touched"].do()
        edits["outputs removed"].do()
        assert build(user, work) == 0, "what changes nothing compiles nothing"
        assert work.made() == right
    finally:
        user.end()
