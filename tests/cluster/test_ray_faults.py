"""A real cluster of two nodes that fails in the middle of a build: nothing is lost, nothing is told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from buildd.scheduling import second_start
from protocol import messages as m
from tests.support.clusters import environ
from tests.support.ray_builds import DEADLINE_S, FAULTS, SOURCES, build_under, project, stop_tools
from tests.support.ray_cluster import RayCluster
from tests.support.scheduler_harness import Harness, Story
from tests.support.waiting import until_async

pytestmark = pytest.mark.ray
MOST_S = 30.0
"""To notice a fault. On an idle machine it takes less than 10 s (docs/ray.md)."""


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.add("beta")
        cluster.add("gamma")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    workspace = project(tmp_path_factory.mktemp("alone"))
    workspace.write("gate", "")
    assert workspace.build().done.outcome is m.Outcome.BUILT
    return workspace.library


def test_a_node_whose_tools_stand_still_holds_no_build_up(
    cluster: RayCluster, alone: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node itself is well, and says so: only the time tells."""
    monkeypatch.setattr(second_start, "SLOWNESS", 0.1)
    workspace = project(tmp_path)
    engine = RayEngine(RaySettings(cluster.address, cluster.python), environ())

    async def run() -> Story:
        async with Harness(workspace, cluster=engine) as harness:
            engine.wake()
            await until_async(lambda: engine.slots() >= 4, "the nodes are there", DEADLINE_S)
            log = harness.submit(workspace.request())
            ran = workspace.project / "ran"
            await until_async(lambda: ran.exists() and len(ran.read_text().splitlines()) >= 5, "all run", DEADLINE_S)
            await asyncio.to_thread(stop_tools, cluster, engine)
            workspace.write("gate", "")
            return await harness.finish(log)

    story = asyncio.run(run())
    assert story.done.outcome is m.Outcome.BUILT and workspace.library == alone
    assert sorted(event.text for event in story.of(m.LogLine)) == [f"says {name}" for name in SOURCES]
    assert len(story.of(m.Finished)) == len(SOURCES) + 1, "each job ended once"
    assert engine.second_starts and not engine.losses
    assert {event.node for event in story.of(m.Finished)} == {"", "gamma"}
    assert workspace.build().done.hits == len(SOURCES) + 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cluster_that_fails_costs_time_alone(fault: str, cluster: RayCluster, alone: bytes, tmp_path: Path) -> None:
    workspace = project(tmp_path)
    met = build_under(fault, cluster, workspace)
    assert met.story.done.outcome is m.Outcome.BUILT and met.library == alone
    assert met.noticed_s < MOST_S
    assert sorted(event.text for event in met.story.of(m.LogLine)) == [f"says {name}" for name in SOURCES]
    assert len(met.story.of(m.Finished)) == len(SOURCES) + 1, "each job ended once"
    assert sum(met.runs.values()) == len(SOURCES) + met.lost, "what was not lost ran once"
    assert workspace.build().done.hits == len(SOURCES) + 1
