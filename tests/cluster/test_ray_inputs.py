"""A real cluster of two nodes, one of which does not see the project."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.cluster.ray_engine import RayEngine
from buildd.cluster.ray_settings import RaySettings
from protocol import messages as m
from tests.support.clusters import environ
from tests.support.ray_cluster import RayCluster
from tests.support.scheduler_harness import Harness
from tests.support.travelling_builds import (
    built_objects,
    c_project,
    differences_from_nvcc,
    needs_namespaces,
    nodes_of,
    nvcc_project,
)
from tests.support.waiting import until_async

pytestmark = pytest.mark.ray


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    needs_namespaces()
    shutil.rmtree(f"/tmp/buildd-inputs-{os.getuid()}", ignore_errors=True)
    cluster = RayCluster()
    (tmp_path / "held").mkdir()
    try:
        cluster.add("beta", cpus=2)
        cluster.add("gamma", cpus=2, hidden=tmp_path / "held")
        yield cluster
    finally:
        cluster.close()


def test_both_nodes_make_the_objects_of_this_machine(cluster: RayCluster, tmp_path: Path) -> None:
    workspace = c_project(tmp_path / "held", "-g3", "-O1", sources="abcdefgh")
    assert workspace.build(store=str(tmp_path / "other")).done.outcome is m.Outcome.BUILT
    here = built_objects(workspace)
    engine = RayEngine(RaySettings(cluster.address, sys.executable), environ())

    async def run() -> set[str]:
        used: set[str] = set()
        async with Harness(workspace, cluster=engine) as harness:
            engine.wake()
            await until_async(lambda: engine.slots() >= 4, "both nodes are there", 120.0)
            # While the nodes start their first workers, this machine may do all there is to do.
            for number in range(50):
                shutil.rmtree(workspace.project / "build")
                story = await harness.build(workspace.request(store=str(tmp_path / f"store-{number}")))
                assert story.done.outcome is m.Outcome.BUILT and built_objects(workspace) == here
                assert not story.of(m.Notice)
                used.update(nodes_of(story).values())
                if used >= {"beta", "gamma"}:
                    break
        return used

    assert asyncio.run(run()) == {"", "beta", "gamma"}, engine.problem
    assert not engine.losses


def test_two_daemons_share_a_cluster(cluster: RayCluster, tmp_path: Path) -> None:
    """Both carry the same headers to the same node at the same time, and each has its own results."""
    works = [c_project(tmp_path / "held" / name, "-O1", sources="abcdef") for name in ("one", "two")]
    here = []
    for work in works:
        assert work.build(store=str(tmp_path / "other" / work.folder.name)).done.outcome is m.Outcome.BUILT
        here.append(built_objects(work))
    engines = [RayEngine(RaySettings(cluster.address, sys.executable), environ()) for _ in works]

    async def build(number: int) -> set[str]:
        work, engine = works[number], engines[number]
        used: set[str] = set()
        async with Harness(work, cluster=engine) as harness:
            engine.wake()
            await until_async(lambda: engine.slots() >= 4, "both nodes are there", 120.0)
            for turn in range(50):
                shutil.rmtree(work.project / "build")
                story = await harness.build(work.request(store=str(tmp_path / f"store-{number}-{turn}")))
                assert story.done.outcome is m.Outcome.BUILT and built_objects(work) == here[number]
                assert len(story.of(m.Finished)) == 6
                used.update(nodes_of(story).values())
                if used >= {"beta", "gamma"}:
                    break
        return used

    async def run() -> list[set[str]]:
        return list(await asyncio.gather(*map(build, range(2))))

    assert asyncio.run(run()) == [{"", "beta", "gamma"}] * 2


@pytest.mark.cuda
def test_steps_of_nvcc_run_on_nodes(cluster: RayCluster, tmp_path: Path) -> None:
    workspace = nvcc_project(tmp_path / "held")
    engine = RayEngine(RaySettings(cluster.address, sys.executable), environ())

    async def run() -> None:
        async with Harness(workspace, cluster=engine) as harness:
            engine.wake()
            await until_async(lambda: engine.slots() >= 4, "both nodes are there", 120.0)
            story = await harness.build(workspace.request(environment=dict(os.environ)))
            assert story.done.outcome is m.Outcome.BUILT, story

    asyncio.run(run())
    assert engine.done and not engine.losses, engine.problem
    assert not differences_from_nvcc(workspace, tmp_path / "plain/k.o")
