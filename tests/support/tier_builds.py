"""Machines of tests of the shared tier: a small project and a store each, built by schedulers without sockets."""

from __future__ import annotations

from pathlib import Path

from buildd.tier.tier import Tier
from protocol import messages as m
from tests.support.scheduler_harness import Story, Workspace

SOURCES = {"src/a.cu": '#include "h.h"\nA\n', "src/b.cu": '#include "h.h"\nB\n', "include/h.h": "H\n"}


def machine(folder: Path, name: str) -> Workspace:
    """A machine that has the project and an empty store."""
    workspace = Workspace(folder / name)
    for path, text in SOURCES.items():
        workspace.write(path, text)
    return workspace


def built(workspace: Workspace, tier: Tier | None, **fields: object) -> Story:
    """Build once, as a process of its own."""
    workspace.options["tier"] = tier
    story = workspace.build(**fields)
    assert story.done.outcome is m.Outcome.BUILT, story
    return story
