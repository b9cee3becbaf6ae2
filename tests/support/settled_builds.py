"""Builds of a fake project whose files are old enough to be trusted, and edits of it while its compiler runs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

from buildd.files.kernel_clock import STEP_NS
from tests.support.scheduler_harness import FAKE, Story, Workspace
from tests.support.waiting import until, until_settled


def clean(workspace: Workspace, source: str = "a.cu") -> bytes:
    """What the compiler makes of a source now, without any cache."""
    out = workspace.folder / "clean.o"
    subprocess.run(
        [sys.executable, "-I", "-S", FAKE, "-I", "first", "-I", "include", f"src/{source}", "-o", out],
        cwd=workspace.project,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    return out.read_bytes()


def built(workspace: Workspace, source: str = "a.cu") -> bytes:
    return (workspace.project / f"build/{source}.o").read_bytes()


def build(workspace: Workspace) -> Story:
    settle(workspace)
    return workspace.build()


def settle(workspace: Workspace) -> None:
    """Wait until nothing in the project is young, so that nothing is caught only because of that."""
    until_settled(workspace.project, 3 * STEP_NS)


def during(workspace: Workspace, change: Callable[[], object]) -> Story:
    """Build, and change something when the compiler has read the includes of src/a.cu."""
    source = workspace.project / "src/a.cu"
    source.write_text(source.read_text() + "//! touch reached\n//! wait-for go\n")
    settle(workspace)

    def meddle() -> None:
        try:
            until((workspace.project / "reached").exists, "the compiler reads src/a.cu")
            change()
        finally:
            (workspace.project / "go").touch()

    thread = threading.Thread(target=meddle)
    thread.start()
    story = workspace.build()
    thread.join()
    assert "a.cu.o" in story.ran()
    return story
