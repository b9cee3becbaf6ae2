"""Builds on nodes that do not see the project's files: these are carried there, and results stay those of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from protocol import messages as m
from tests.cluster.test_away_jobs import built_with, connected, nodes_of, project
from tests.support.clusters import environ, fake_settings
from tests.support.scheduler_harness import Harness, Story, Workspace


@pytest.fixture(autouse=True)
def kept(tmp_path: Path) -> None:
    """The folder in which the nodes of this machine keep files."""
    shutil.rmtree(f"/tmp/buildd-inputs-{os.getuid()}", ignore_errors=True)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return project(tmp_path)


def test_a_node_that_sees_no_file_of_the_project_builds_it(workspace: Workspace) -> None:
    assert workspace.build(store=str(workspace.folder / "other")).done.outcome is m.Outcome.BUILT
    alone = workspace.library
    story, engine = built_with(workspace, fake_settings(workspace.folder, hidden=workspace.project))
    assert story.done.outcome is m.Outcome.BUILT and workspace.library == alone
    assert not story.of(m.Notice), story
    assert any(nodes_of(story).values()) and engine.losses == 0
    assert workspace.build().done.hits == 4, "results of nodes are stored"
    workspace.write("include/x.h", "y\n")
    assert len(workspace.build().ran()) == 4, "headers that were read there are known"
