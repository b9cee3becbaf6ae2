"""A real cluster of two nodes that fails in the middle of a build: nothing is lost, nothing is told twice."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
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
from tests.support.travelling_builds import needs_namespaces
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


def test_a_node_whose_disk_fills_up_costs_time_alone(alone: bytes) -> None:
    """Jobs fail there in the middle of a build, and the next build's jobs from the beginning."""
    needs_namespaces()
    cluster = RayCluster()
    # Ray and jobs write below /tmp on a node; the project is elsewhere.
    project_folder = Path(tempfile.mkdtemp(prefix="buildd-full-", dir="/var/tmp"))
    try:
        node = cluster.add("beta", disk_mib=64)
        workspace = project(project_folder)
        engine = RayEngine(RaySettings(cluster.address, cluster.python), environ())

        async def run() -> list[Story]:
            async with Harness(workspace, cluster=engine) as harness:
                engine.wake()
                await until_async(lambda: engine.slots() >= 2, "the node is there", DEADLINE_S)
                log = harness.submit(workspace.request())
                ran = workspace.project / "ran"
                await until_async(
                    lambda: ran.exists() and len(ran.read_text().splitlines()) >= 3, "all run", DEADLINE_S
                )
                await asyncio.to_thread(fill, node.seen(Path("/tmp/filler")))
                workspace.write("gate", "")
                first = await harness.finish(log)
                for name in SOURCES:
                    workspace.write(
                        f"src/{name}.cu", (workspace.project / f"src/{name}.cu").read_text() + "//! line more\n"
                    )
                return [first, await harness.build(workspace.request())]

        first, second = asyncio.run(run())
        assert first.done.outcome is second.done.outcome is m.Outcome.BUILT
        said = [event.text for event in first.of(m.LogLine) if event.text.startswith("says")]
        assert sorted(said) == [f"says {name}" for name in SOURCES]
        assert any("No space left" in event.text for event in first.of(m.LogLine))
        assert any("beta: fake ended with status 1; runs again here" in event.text for event in first.of(m.Notice))
        for story in (first, second):
            assert len(story.of(m.Finished)) == len(SOURCES) + 1, "each job ended once"
            assert {event.node for event in story.of(m.Finished)} == {""}, "what failed there was made here"
        assert "beta: its last 3 jobs failed; is its disk full?" in engine.problem and not engine.nodes
        assert workspace.build().done.hits == len(SOURCES) + 1
    finally:
        cluster.close()
        shutil.rmtree(project_folder, ignore_errors=True)


def fill(path: Path) -> None:
    """Write a file until its disk has no room."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
