"""A node that is slow with its last jobs: they are begun on another one, and stay one job each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from buildd.scheduling import second_start
from protocol import messages as m
from tests.support.clusters import environ, fake_settings
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.travelling_builds import assert_built_once, connected, nodes_of, project
from tests.support.waiting import until_async


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(second_start, "LEAST_S", 0.3)
    monkeypatch.setattr(second_start, "SLOWNESS", 0.05)
    monkeypatch.setattr(second_start, "LOOK_S", 0.1)
    return logging_project(tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The library, as a build without a cluster makes it."""
    other = logging_project(tmp_path_factory.mktemp("alone"))
    assert other.build().done.outcome is m.Outcome.BUILT
    return other.library


def logging_project(folder: Path) -> Workspace:
    """The file "ran" tells which compile was begun."""
    workspace = project(folder)
    for name in "abc":
        workspace.write(f"src/{name}.cu", f'#include "x.h"\n//! log ran\n//! line says {name}\n{name}\n')
    return workspace


async def nodes_are_free(engine: RayEngine) -> None:
    await until_async(lambda: not sum(node.jobs for node in engine.status().nodes), "the nodes are free")


@pytest.mark.parametrize("hidden", [False, True])
def test_a_slow_nodes_jobs_end_on_another_one(workspace: Workspace, alone: bytes, hidden: bool) -> None:
    folder = workspace.project if hidden else None
    engine = RayEngine(fake_settings(workspace.folder, fault="slow", hidden=folder, gamma=3, beta=2), environ())

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            story = await harness.build(workspace.request())
            await nodes_are_free(engine)
            return story

    story = asyncio.run(run())
    assert_built_once(story, workspace, alone)
    # The first job that goes away goes to beta. How many follow depends on how fast this machine is.
    assert engine.second_starts and not engine.losses and not story.of(m.Notice)
    assert set(nodes_of(story).values()) == {"", "gamma"}, "beta never says that a tool has ended"
    if not hidden:
        ran = (workspace.project / "ran").read_text().split()
        # A start that is ended may not have come so far.
        assert len(set(ran)) == 3 and len(ran) <= 3 + engine.second_starts
    assert workspace.build().done.hits == 4


def test_a_job_is_begun_again_only_where_another_node_has_room(workspace: Workspace) -> None:
    engine = RayEngine(fake_settings(workspace.folder, fault="slow", beta=2), environ())

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            request = workspace.request()
            log = harness.submit(request)
            await until_async(lambda: sum(bool(tool.begun_s) for tool in engine.tools) == 2, "both slots are taken")
            assert not any(map(engine.has_room_beside, engine.tools))
            harness.scheduler.cancel(request.request_id)
            return await harness.finish(log)

    assert asyncio.run(run()).done.outcome is m.Outcome.CANCELLED
    assert not engine.second_starts and not engine.losses


def test_a_cancelled_build_ends_both_starts(workspace: Workspace) -> None:
    engine = RayEngine(fake_settings(workspace.folder, fault="slow", beta=4, gamma=4), environ())
    for name in "abc":
        workspace.write(f"src/{name}.cu", f"//! wait-for gate\n{name}\n")

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            await connected(engine)
            request = workspace.request()
            log = harness.submit(request)
            await until_async(lambda: engine.second_starts == 2, "the jobs on nodes are begun again")
            assert engine.slots() == 8 - 2, "their slots are not given to others"
            harness.scheduler.cancel(request.request_id)
            story = await harness.finish(log)
            await nodes_are_free(engine)
            return story

    assert asyncio.run(run()).done.outcome is m.Outcome.CANCELLED
    assert not engine.losses
