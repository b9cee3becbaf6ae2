"""A real cluster on two hosts: the link between them is cut in the middle of a build, and heals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from protocol import messages as m
from tests.support.clusters import environ
from tests.support.node_network import NodeNetwork, needs_root
from tests.support.ray_builds import SOURCES, Met, build_under, project
from tests.support.ray_cluster import RayCluster
from tests.support.scheduler_harness import Harness
from tests.support.waiting import until_async

pytestmark = pytest.mark.ray
MOST_S = 30.0
CUT_S = 1.5
"""A short cut: less than after which Ray gives a node up."""


@pytest.fixture
def network() -> Iterator[NodeNetwork]:
    needs_root()
    network = NodeNetwork()
    try:
        yield network
    finally:
        network.close()


@pytest.fixture
def cluster(network: NodeNetwork) -> Iterator[RayCluster]:
    cluster = RayCluster(network)
    try:
        cluster.add("beta", far=True)
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


def assert_once(met: Met, alone: bytes) -> None:
    assert met.story.done.outcome is m.Outcome.BUILT and met.library == alone
    assert sorted(event.text for event in met.story.of(m.LogLine)) == [f"says {name}" for name in SOURCES]
    assert len(met.story.of(m.Finished)) == len(SOURCES) + 1, "each job ended once"


def test_a_node_that_comes_back_spoils_nothing(cluster: RayCluster, alone: bytes, tmp_path: Path) -> None:
    assert cluster.network is not None
    workspace = project(tmp_path)
    met = build_under("link cut", cluster, workspace, after=cluster.network.heal)
    assert_once(met, alone)
    assert met.noticed_s < MOST_S and met.lost
    assert sum(met.runs.values()) == len(SOURCES) + met.lost, "what was not lost ran once"
    assert workspace.build().done.hits == len(SOURCES) + 1


def test_a_short_cut_spoils_nothing(cluster: RayCluster, alone: bytes, tmp_path: Path) -> None:
    assert cluster.network is not None
    network, workspace = cluster.network, project(tmp_path)
    engine = RayEngine(RaySettings(cluster.address, cluster.python), environ())

    async def run() -> Met:
        async with Harness(workspace, cluster=engine) as harness:
            engine.wake()
            await until_async(lambda: engine.slots() >= 4, "the nodes are there", 120.0)
            log = harness.submit(workspace.request())
            ran = workspace.project / "ran"
            await until_async(lambda: ran.exists() and len(ran.read_text().splitlines()) >= 5, "all run", 120.0)
            network.cut()
            workspace.write("gate", "")  # the far node's tools end while nobody hears of them
            await asyncio.sleep(CUT_S)
            network.heal()
            story = await harness.finish(log)
            return Met(story, workspace.library, 0.0, engine.losses, {})

    met = asyncio.run(run())
    assert_once(met, alone)
    assert workspace.build().done.hits == len(SOURCES) + 1
